"""Sends due messages from the store to the broker: publishers, limits, and the shards that this process owns.

    broker_publisher         sends due messages to any broker
    transactions             claims only in shards that this process owns, and sends each claim in one transaction
    shard_ownership          which shards this process owns, and how it takes one over
    originals                adds payloads that stayed in the retry topic
    flow                     holds back messages that their topic's limits do not allow yet
    fair                     tells the store which topics share their due messages between keys

Effectively once, into a broker that has transactions:

    claim (number n) ─► transaction {messages, n} ─► settle
                              │
    death ─► new owner: raise the epoch, fence the old producer, read n; settle claims up to n; put later claims back
"""
