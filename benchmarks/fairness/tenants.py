"""One tenant far behind and many others in time: a consumer that takes a fixed number of messages a second.

The consumer is the publisher of the dispatcher. It takes a message when its turn in the consumer's pace has come, and
notes the time. The due time is in the message.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.messages import BATCH, VALUE, ids
from benchmarks.server import NAMESPACE, BenchServer
from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, PublisherTraits
from wheel_sched.store import Claimed, Dead, DelayStore, Done, Item, open_store
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref

TOPIC = "fair"
_HOUR_MS = 3_600_000
_HELD = 40  # the consumer holds at most this many messages
_LEAD_MS = 400  # time between the last stored message and the first due time
_SLACK_S = 0.02  # if the consumer is behind its pace, it makes up for at most this time
_PART = 50_000


@dataclass(frozen=True, slots=True)
class Load:
    """What the others send, and what the consumer takes.

    Args:
        tenants: how many others there are. Defaults to 100.
        each_per_s: messages a second of each. Defaults to 10.
        taken_per_s: messages a second that the consumer takes. Defaults to 2,000.
    """

    tenants: int = 100
    each_per_s: int = 10
    taken_per_s: int = 2_000

    def count(self, seconds: float) -> int:
        """How many messages the others send in `seconds` seconds."""
        return int(self.tenants * self.each_per_s * seconds)


class OthersLateness(NamedTuple):
    """How late the messages of the others were.

    `late_ms` also has the messages that did not arrive. `arrived` and `early` count messages of the others.
    `taken_per_s`: how many messages a second the consumer took.
    """

    late_ms: list[float]
    arrived: int
    early: int
    taken_per_s: float


class PacedConsumer:
    """Takes messages at a fixed pace. If a message has a due time in its body, notes when it was taken."""

    traits = PublisherTraits()

    def __init__(self, taken_per_s: int) -> None:
        self._step_s = 1 / taken_per_s
        self._next_s = 0.0
        self.taken = 0
        self.arrivals: list[tuple[str, int, float]] = []  # id, due (ms), arrival (ms)
        self.changed = threading.Event()

    def publish(self, batch: Batch) -> None:
        for place, item in enumerate(batch.items):
            now_s = time.monotonic()
            self._next_s = max(self._next_s, now_s - _SLACK_S)
            if self._next_s > now_s:
                time.sleep(self._next_s - now_s)
            self._next_s += self._step_s
            self.taken += 1
            if item.body.startswith(b"due"):
                self.arrivals.append((item.id, int(item.body[3:]), time.time() * 1000))
            batch.answers[place] = Done(item.id)

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)


def backlog(server: BenchServer, count: int) -> DelayStore:
    """Store overdue messages of one tenant in an empty store."""
    server.empty_store()
    store = open_store(server.url, namespace=NAMESPACE)
    ref, due_ms = (fair_ref("big"),), time.time_ns() // 1_000_000 - _HOUR_MS
    for part in range(0, count, _PART):
        names = ids(min(_PART, count - part), f"big{part}")
        for at in range(0, len(names), BATCH):
            store.schedule([Item(name, due_ms, VALUE, TOPIC, ref) for name in names[at : at + BATCH]])
    return store


def others_late_ms(store: DelayStore, load: Load, seconds: float, *, fair: bool) -> OthersLateness:
    """Let the others send for `seconds` seconds, and measure how late their messages are taken.

    The messages of this run that were not taken are removed afterwards.
    """
    FairShares(store).configure(TOPIC, FairSettings() if fair else None)
    series, total = ("fair" if fair else "unfair"), load.count(seconds)
    names = ids(total, series)
    step_ms = 1000 * seconds / total
    first_ms = time.time_ns() // 1_000_000 + _LEAD_MS + total // 10
    dues = {name: int(first_ms + number * step_ms) for number, name in enumerate(names)}
    items = [
        Item(name, dues[name], b"due%d" % dues[name], TOPIC, (fair_ref(f"other{number % load.tenants}"),))
        for number, name in enumerate(names)
    ]
    for at in range(0, total, BATCH):
        store.schedule(items[at : at + BATCH])
    assert time.time() * 1000 < first_ms, "this machine is too slow to store the messages before they are due"
    time.sleep(max(0.0, first_ms / 1000 - 0.1 - time.time()))
    consumer = PacedConsumer(load.taken_per_s)
    config = DispatcherConfig(batch=_HELD // 2, max_in_flight=_HELD)
    begun_s = time.monotonic()
    with Dispatcher(store, consumer, config=config):
        time.sleep(max(0.0, (first_ms + 1000 * seconds) / 1000 + 0.5 - time.time()))
        ended_ms, taken, took_s = time.time() * 1000, consumer.taken, time.monotonic() - begun_s
    arrived = {name: at_ms for name, _, at_ms in consumer.arrivals}
    late_ms = [arrived.get(name, max(ended_ms, due_ms)) - due_ms for name, due_ms in dues.items()]
    for at in range(0, total, BATCH):
        store.cancel(names[at : at + BATCH])
    return OthersLateness(late_ms, len(arrived), sum(late < 0 for late in late_ms), taken / took_s)
