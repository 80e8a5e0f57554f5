"""Shares by weight, and the rate of a burst of many tenants."""

from __future__ import annotations

import gc
from collections import Counter

from benchmarks.bursts import store_items_ahead, wait_for
from benchmarks.messages import VALUE, ids, in_batches, message
from benchmarks.server import BenchServer
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.message.encoding import encode_body
from retry_topic.release.broker_publisher import BrokerPublisher
from wheel_sched.dispatcher import Dispatcher
from wheel_sched.store import Done, Item
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_key_of, fair_ref

TOPIC = "fair"
TENANTS = 100
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 0.5, "e": 2.5}
_CLAIM = 80


def share_error(server: BenchServer, served: int) -> float:
    """The greatest relative error of a key's share over `served` messages: 0.1 is 10 % off what its weight gives."""
    store = server.empty_store()
    FairShares(store).configure(TOPIC, FairSettings(weights=WEIGHTS))
    whole = sum(WEIGHTS.values())
    now_ms = store.now_ms()
    for key, weight in WEIGHTS.items():
        needed = int(served * weight / whole * 1.2) + _CLAIM
        names = ids(needed, key)
        for batch in in_batches([Item(name, now_ms - 1000, VALUE, TOPIC, (fair_ref(key),)) for name in names]):
            store.schedule(batch)
    counts: Counter[str] = Counter()
    while counts.total() < served:
        claim = store.claim(_CLAIM)
        assert claim.items, "overdue messages wait, and none can be claimed"
        counts.update(fair_key_of(item.refs) for item in claim.items)
        store.settle(claim, [Done(item.id) for item in claim.items])
    return max(abs(counts[key] / (counts.total() * weight / whole) - 1) for key, weight in WEIGHTS.items())


def burst_rate(server: BenchServer, count: int, *, fair: bool, far_ahead: bool = False) -> float:
    """Messages a second of a burst of a hundred tenants, from the due time to the last arrival at the receiver.

    With `far_ahead`, the topic is made fair after its messages were stored. They then wait outside the queues of their
    keys, like messages that were stored more than a minute ahead.
    """
    store = server.empty_store()
    shares = FairShares(store)
    shares.configure(TOPIC, FairSettings() if fair and not far_ahead else None)
    names = ids(count)

    def items(due_ms: int) -> list[Item]:
        return [
            Item(name, due_ms, encode_body(message(due_ms, number, TOPIC)), TOPIC, (fair_ref(f"t{number % TENANTS}"),))
            for number, name in enumerate(names)
        ]

    broker = MemoryBroker(create_topics=True)
    with Dispatcher(store, BrokerPublisher(broker)):
        gc.collect()
        gc.freeze()
        due_ms = store_items_ahead(store, count, lambda at_ms: in_batches(items(at_ms)))
        if far_ahead:
            shares.configure(TOPIC, FairSettings())
        wait_for(lambda: broker.topics().get(TOPIC, 0) >= count)
    gc.unfreeze()
    arrivals = [record.source.timestamp_ms or 0 for record in broker.records(TOPIC) if record.source is not None]
    assert min(arrivals) >= due_ms, "a message arrived before it was due"
    return count * 1000 / (max(arrivals) + 1 - due_ms)
