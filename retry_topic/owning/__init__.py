"""Effectively once into a broker that has transactions: one owner per shard, and a claim's number in each transaction.

    claim (number n) ─► transaction {messages, n} ─► settle
                              │
    death ─► new owner: raise the epoch, fence the old producer, read n: claims up to n are settled, later ones released

The dispatcher knows nothing of it: its store is an `OwnedStore`, which claims only where this process owns the shard,
and its publisher a `ClaimPublisher`.
"""

from retry_topic.owning.publisher import ClaimPublisher
from retry_topic.owning.shards import Shards
from retry_topic.owning.store import OwnedStore, in_transactions

__all__ = ["ClaimPublisher", "OwnedStore", "Shards", "in_transactions"]
