"""How long a backlog makes others wait: 100,000 messages due at the same millisecond, drained by a real dispatcher.

A server serves one client at a time, so a stall is a turn of its event loop that lasts. `max_stall_ms` is the server's
own figure for it, `eventloop_duration_max` of INFO: the longest time between two looks at its sockets, several scripts
of one pipeline and the write to the append-only file included. That is exact, while a PING from outside also measures
when the operating system let the asker run; `max_ping_ms`, from a process of its own every 0.5 ms, is the cross-check.
`max_script_ms` is the longest single FCALL in the server's slow log, which records everything during the drain.

Both ways are measured, claim and settle as well as the one-script push; the slower one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.messages import NullPublisher, ids, in_batches, push_items
from benchmarks.narration import Narration
from benchmarks.outside import Outside, ping
from benchmarks.rounds import interleaved
from benchmarks.server import BenchServer
from wheel_sched.dispatcher import Dispatcher, PushTarget

_PUSH_TO = PushTarget(create=True)
_GIVE_UP_S = 120.0


class Stall(NamedTuple):
    """One drain, in ms."""

    turn: float
    script: float
    ping: float


def measure_stalls(server: BenchServer, count: int, rounds: int, narration: Narration) -> dict[str, Any]:
    """Medians over rounds of each way, the slower way as the headline; and the worst turn of all rounds."""
    runs: dict[str, Callable[[], Stall]] = {
        "claim drain": partial(drain, server, count, None),
        "push drain": partial(drain, server, count, _PUSH_TO),
    }
    ways = interleaved(rounds, runs, narration)
    medians = {
        name.removesuffix(" drain"): Stall(*(round(median(column), 3) for column in zip(*stalls, strict=True)))
        for name, stalls in ways.items()
    }
    return {
        "max_stall_ms": max(stall.turn for stall in medians.values()),
        "max_script_ms": max(stall.script for stall in medians.values()),
        "max_ping_ms": max(stall.ping for stall in medians.values()),
        "worst_stall_ms": max(stall.turn for stalls in ways.values() for stall in stalls),
        "stall_messages": count,
        "stall_rounds": rounds,
        "stalls": {name: stall._asdict() for name, stall in medians.items()},
    }


def drain(server: BenchServer, count: int, push: PushTarget | None) -> Stall:
    """Drain `count` messages that are due at once."""
    store = server.empty_store()
    due_ms = time.time_ns() // 1_000_000
    for batch in in_batches(push_items(ids(count), [due_ms] * count)):
        store.schedule(batch)
    asker = Outside(ping, server.url)
    server.watch_stalls()
    dispatcher = Dispatcher(store, NullPublisher(), push=push)
    with dispatcher:
        give_up = time.monotonic() + _GIVE_UP_S
        while dispatcher.stats.published < count:
            assert time.monotonic() < give_up, f"not drained: {dispatcher!r}"
            time.sleep(0.005)  # the dispatcher tells nobody when it is through
    asker.stop()
    longest_ping_ms = asker.result()
    return Stall(*server.stalls(), longest_ping_ms)
