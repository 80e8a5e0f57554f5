"""Brokers: one small protocol, one module per broker."""
