"""How long a backlog makes others wait: 100,000 messages due at the same millisecond, drained by a real dispatcher.

A server serves one client at a time, so a stall is what anybody else waits while it is at work. `max_stall_ms` is
that: a process of its own asks for the server's TIME every 0.5 ms, and the answer says, by the server's own clock, when
it came to the question. How much of such a wait was the server's work has two bounds, both measured over that very
interval, and the lower one counts:

- the wait without the time in which the server was ready to run and had no processor, as the kernel counts it
  (`schedstat`): a machine with more to do than it has processors makes any program wait, also one that does nothing;
- the processor time that the server, with all its threads, has used from the question to the answer: what a hypervisor
  takes, or needs to wake a processor that it had put to sleep, is no work of the server either.

Nothing is modelled; every script, and whatever stood in line before the question, is in both. Where the kernel does not
tell, the whole wait is the stall. Not in it is waiting for the disk (`stall_events` has that), and a stall that begins
while the asker sleeps is up to 0.5 ms longer than told.

What was not corrected stands beside it, so that anybody can judge the machine: `max_wait_ms` is the longest wait as a
whole, `max_turn_ms` the server's own `eventloop_duration_max` (the longest time between two looks at its sockets),
`max_script_ms` the longest FCALL in its slow log, which records everything during the drain, and `stall_events` what
its latency monitor saw beside it: a write to the append-only file that had to wait for the disk (`aof-write-...`) is a
stall too, though not the scripts'. `idle_wait_ms` is the baseline: the same question, asked at the same moment, of
a second server that nobody else calls; no stall below it can be seen from outside at all. `oversleep_ms` is how much
longer the asker slept than it wanted, without any server. `withheld` and `preemptions` count what the machine did to
the server: the longest time without a processor in one wait, and how often in a drain one was taken from it.

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
from benchmarks.outside import Outside, Waits, ask_the_time
from benchmarks.rounds import interleaved
from benchmarks.server import BenchServer, Stalls, bench_server
from wheel_sched.dispatcher import Dispatcher, PushTarget

_PUSH_TO = PushTarget(create=True)
_GIVE_UP_S = 120.0


class Stall(NamedTuple):
    """One drain, in ms: the server's view and the asker's."""

    server: Stalls
    asker: Waits


def measure_stalls(
    server: BenchServer, count: int, rounds: int, narration: Narration
) -> tuple[dict[str, Any], dict[str, float]]:
    """Medians over rounds of each way, the slower way as the headline, and the worst of all rounds; the baselines."""
    names = ids(count)
    with bench_server() as idle:
        runs: dict[str, Callable[[], Stall]] = {
            "claim drain": partial(drain, server, idle, names, None),
            "push drain": partial(drain, server, idle, names, _PUSH_TO),
        }
        ways = interleaved(rounds, runs, narration)
    medians = {name.removesuffix(" drain"): _medians(stalls) for name, stalls in ways.items()}
    drains = list(chain.from_iterable(ways.values()))
    events = {event for stall in drains for event in stall.server.events}

    def slower(figure: str) -> float:
        return max(way[figure] for way in medians.values())

    return {
        **{f"max_{figure}_ms": slower(figure) for figure in ("stall", "wait", "turn", "script")},
        "worst_stall_ms": round(max(stall.asker.stall for stall in drains), 3),
        "stall_events": {event: max(stall.server.events.get(event, 0) for stall in drains) for event in sorted(events)},
        "stall_messages": count,
        "stall_rounds": rounds,
        "stalls": medians,
    }, {f"{figure}_ms": slower(figure) for figure in ("idle_wait", "oversleep")}


def _medians(stalls: Sequence[Stall]) -> dict[str, float]:
    figures: dict[str, Callable[[Stall], float]] = {
        "stall": lambda stall: stall.asker.stall,
        "wait": lambda stall: stall.asker.wait,
        "turn": lambda stall: stall.server.turn,
        "script": lambda stall: stall.server.script,
        "withheld": lambda stall: stall.asker.withheld,
        "preemptions": lambda stall: stall.server.preemptions,
        "idle_wait": lambda stall: stall.asker.idle,
        "oversleep": lambda stall: stall.asker.oversleep,
    }
    return {name: round(median(map(figure, stalls)), 3) for name, figure in figures.items()}


def drain(server: BenchServer, idle: BenchServer, names: Sequence[str], push: PushTarget | None) -> Stall:
    """Drain messages that are due at once."""
    count = len(names)
    store = server.empty_store()
    due_ms = time.time_ns() // 1_000_000
    for batch in in_batches(push_items(names, [due_ms] * count)):
        store.schedule(batch)
    asker = Outside(ask_the_time, server.url, server.pid, idle.url)
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
