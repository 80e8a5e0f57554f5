"""How long a backlog makes others wait: 100,000 messages due at the same millisecond, drained by a real dispatcher.

A server serves one client at a time, so a stall is a turn of its event loop that lasts. `max_stall_ms` is the server's
own figure for it, `eventloop_duration_max` of INFO: the longest time between two looks at its sockets, several scripts
of one pipeline and the write to the append-only file included. That is exact, while a PING from outside also measures
when the operating system let the asker run; `max_ping_ms`, from a process of its own every 0.5 ms, is the cross-check.
`max_script_ms` is the longest single FCALL in the server's slow log, which records everything during the drain, and
`stall_events` what the server's latency monitor saw beside it: a write to the append-only file that had to wait for
the disk (`aof-write-...`) is a stall too, though not the scripts'. `max_oversleep_ms` is how much longer the asker
slept than it wanted between two PINGs: the machine's own hiccups, without any server. A stall not far above it says
more of the machine than of the scripts; `preemptions` counts, on Linux, how often in a drain the machine took the
processor from the server: with one or more a script, all of these figures measure the neighbours.

Both ways are measured, claim and settle as well as the one-script push; the slower one counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from benchmarks.messages import NullPublisher, ids, in_batches, push_items
from benchmarks.narration import Narration
from benchmarks.outside import Outside, Waits, ping
from benchmarks.rounds import interleaved
from benchmarks.server import BenchServer, Stalls
from wheel_sched.dispatcher import Dispatcher, PushTarget

_PUSH_TO = PushTarget(create=True)
_GIVE_UP_S = 120.0


class Stall(NamedTuple):
    """One drain, in ms: the server's view and the asker's."""

    server: Stalls
    asker: Waits


def measure_stalls(server: BenchServer, count: int, rounds: int, narration: Narration) -> dict[str, Any]:
    """Medians over rounds of each way, the slower way as the headline; and the worst turn of all rounds."""
    names = ids(count)
    runs: dict[str, Callable[[], Stall]] = {
        "claim drain": partial(drain, server, names, None),
        "push drain": partial(drain, server, names, _PUSH_TO),
    }
    ways = interleaved(rounds, runs, narration)
    medians = {
        name.removesuffix(" drain"): {
            "turn": round(median(stall.server.turn for stall in stalls), 3),
            "script": round(median(stall.server.script for stall in stalls), 3),
            "ping": round(median(stall.asker.ping for stall in stalls), 3),
            "preemptions": round(median(stall.server.preemptions for stall in stalls)),
            "oversleep": round(median(stall.asker.oversleep for stall in stalls), 3),
        }
        for name, stalls in ways.items()
    }
    drains = [stall.server for stall in chain.from_iterable(ways.values())]
    events = {event for stall in drains for event in stall.events}
    return {
        "max_stall_ms": max(way["turn"] for way in medians.values()),
        "max_script_ms": max(way["script"] for way in medians.values()),
        "max_ping_ms": max(way["ping"] for way in medians.values()),
        "worst_stall_ms": max(stall.turn for stall in drains),
        "stall_events": {event: max(stall.events.get(event, 0) for stall in drains) for event in sorted(events)},
        "max_oversleep_ms": max(way["oversleep"] for way in medians.values()),
        "stall_messages": count,
        "stall_rounds": rounds,
        "stalls": medians,
    }


def drain(server: BenchServer, names: Sequence[str], push: PushTarget | None) -> Stall:
    """Drain messages that are due at once."""
    count = len(names)
    store = server.empty_store()
    due_ms = time.time_ns() // 1_000_000
    for batch in in_batches(push_items(names, [due_ms] * count)):
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
    waits = asker.result()
    return Stall(server.stalls(), waits)
