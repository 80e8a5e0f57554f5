"""What single calls on a store cost its server, while other messages wait."""

from __future__ import annotations

import random
import time

from benchmarks.growth.script_time import ScriptTime
from benchmarks.messages import BATCH, TOPIC, VALUE, ids
from benchmarks.server import BenchServer
from wheel_sched.store import DelayStore, Done, Item

_HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# A larger sorted set does not fit into the processor's cache, so each of its log2(n) steps takes longer.
FAR = 80_000
CLAIM = 80  # items a claim, a usual size of a batch


def schedule_later(store: DelayStore, first: int, end: int, chance: random.Random, topics: int = 1) -> None:
    """Store the messages with the numbers from `first` up to `end`, due within a day, in `topics` topics."""
    begins_ms = store.now_ms() + _HOUR_MS
    for at in range(first, end, BATCH):
        names = ids(min(BATCH, end - at), f"w{at}-")
        items = [
            Item(name, begins_ms + chance.randrange(DAY_MS), VALUE, f"{TOPIC}{(at + number) % topics}")
            for number, name in enumerate(names)
        ]
        assert store.schedule(items).accepted == len(items)


def claims(server: BenchServer, store: DelayStore, count: int, topics: int = 1) -> tuple[float, float]:
    """The server's time to claim and to settle 80 due messages: medians over `count` claims.

    The messages are of `topics` topics, by turns.
    """
    due_ms, names = store.now_ms() - 1_000, ids(count * CLAIM, f"due{time.monotonic_ns()}-")
    due = [Item(name, due_ms, VALUE, f"{TOPIC}{place % topics}") for place, name in enumerate(names)]
    for at in range(0, len(due), BATCH):
        store.schedule(due[at : at + BATCH])
    with ScriptTime(server.client) as claiming:
        held = [store.claim(CLAIM) for _ in range(count)]
    with ScriptTime(server.client) as settling:
        for claim in held:
            assert len(claim.items) == CLAIM
            store.settle(claim, [Done(item.id) for item in claim.items])
    return claiming.typical_us, settling.typical_us
