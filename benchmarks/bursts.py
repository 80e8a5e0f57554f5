"""Bursts: 10,000 messages are due at the same millisecond. The time counts from then until the last one has arrived.

The messages are stored before they are due, while the dispatcher sleeps. The receiver notes the arrival: a
`MemoryBroker` notes when it took each record, and the id of a stream entry says when the server added it. Both times
are whole milliseconds, rounded down. So one millisecond is added, and the reported rate is never too high.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.messages import BATCH, TOPIC, NullPublisher, ids, in_batches, message, push_items
from benchmarks.server import BenchServer
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.message.encoding import to_fields
from retry_topic.release.broker_publisher import BrokerPublisher
from wheel_sched.dispatcher import Dispatcher, PushTarget
from wheel_sched.store import DelayStore, Item

_GIVE_UP_S = 60.0
_LEAD_MS = 250
_SLOWEST_PER_MS = 10  # the slowest machine stores this many messages in a ms; so the due time is far enough ahead
_MARGIN_MS = 50  # all messages must be stored this long before they are due


class Burst(NamedTuple):
    """The result of one burst: messages per second, and how many messages came early or never."""

    msgs_per_s: float
    early: int
    lost: int


def to_memory(server: BenchServer, count: int) -> Burst:
    """Measure a burst that a dispatcher claims, publishes to a `MemoryBroker`, and settles."""
    store = server.empty_store()
    broker = MemoryBroker(create_topics=True)
    with Dispatcher(store, BrokerPublisher(broker)):
        gc.collect()
        gc.freeze()  # `wheel-sched serve` freezes its objects too
        due_ms = store_ahead(store, count)
        wait_for(lambda: broker.topics().get(TOPIC, 0) >= count)
    gc.unfreeze()
    records = broker.records(TOPIC)
    arrivals = [record.source.timestamp_ms or 0 for record in records if record.source is not None]
    return _burst(count, due_ms, arrivals, {record.header("n") for record in records})


def to_stream(server: BenchServer, count: int) -> Burst:
    """Measure a burst that the server pushes to one of its streams, in the same script that claims the messages."""
    store = server.empty_store()
    with Dispatcher(store, NullPublisher(), push=PushTarget(create=True)):
        due_ms = store_ahead(store, count)
        wait_for(lambda: _length(server) >= count)
    entries: Any = server.client.xrange(TOPIC)
    arrivals = [int(entry_id.partition(b"-")[0]) for entry_id, _ in entries]
    return _burst(count, due_ms, arrivals, {fields[b"n"] for _, fields in entries})


def xadd_rate(server: BenchServer, count: int) -> float:
    """The baseline: messages per second of a bare pipelined XADD of the same entries, with 500 in a round trip."""
    server.client.flushall()
    rows = [to_fields(message(0, number)) for number in range(count)]
    begun = time.perf_counter()
    for at in range(0, count, BATCH):
        pipeline = server.client.pipeline(transaction=False)
        for fields in rows[at : at + BATCH]:
            pipeline.execute_command("XADD", TOPIC, "*", *fields)
        pipeline.execute()
    return count / (time.perf_counter() - begun)


def store_ahead(store: DelayStore, count: int) -> int:
    """Store a burst before it is due. Returns its due time in epoch ms."""
    names = ids(count)
    return store_items_ahead(store, count, lambda due_ms: in_batches(push_items(names, [due_ms] * count)))


def store_items_ahead(store: DelayStore, count: int, batches: Callable[[int], Iterable[Sequence[Item]]]) -> int:
    """Store items before they are due; `batches` makes them for a due time. Returns the due time in epoch ms."""
    due_ms = time.time_ns() // 1_000_000 + _LEAD_MS + count // _SLOWEST_PER_MS
    stored_us = 0
    for batch in batches(due_ms):
        stored_us = store.schedule(batch).now_us
    assert stored_us // 1000 + _MARGIN_MS < due_ms, "this machine is too slow to store the burst before it is due"
    return due_ms


def wait_for(done: Callable[[], bool]) -> None:
    """Wait until `done` returns true. It may return late: the figures use the times that the receiver noted."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not done():
        assert time.monotonic() < give_up, "the burst did not arrive"
        time.sleep(0.02)  # a shorter pause would take processor time from the measured threads


def _length(server: BenchServer) -> int:
    length: Any = server.client.xlen(TOPIC)
    return int(length)


def _burst(count: int, due_ms: int, arrivals_ms: Sequence[int], distinct: set[Any]) -> Burst:
    took_ms = max(arrivals_ms) + 1 - due_ms
    return Burst(count * 1000 / took_ms, sum(at < due_ms for at in arrivals_ms), count - len(distinct))
