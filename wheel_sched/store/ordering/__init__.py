"""Ordering keys: a failed key is closed, and its later messages are parked behind its head."""
