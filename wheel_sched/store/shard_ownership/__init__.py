"""Shard ownership: one dispatcher at a time owns a shard, and the broker knows which claims were published."""
