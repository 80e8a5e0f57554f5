"""How long other clients of the server wait while a dispatcher drains 100,000 messages due at the same millisecond.

A server serves one client at a time, so all others wait while it works. A separate process, the asker, asks the server
for its TIME every 0.5 ms. The answer says, by the server's clock, when the server read the question. The stall is
the part of the longest wait in which the server worked. Two upper bounds of this part are measured during the same
wait, and `max_stall_ms` is the smaller one:

- the wait without the time in which the server was ready to run and had no processor (`schedstat`). On a machine with
  more work than processors every program waits, also an idle one;
- the processor time that all threads of the server used between question and answer. It does not include time that a
  hypervisor takes.

Where the kernel reports neither, the whole wait is the stall. Waiting for the disk is not part of a stall (see
`stall_events`). A stall that begins while the asker sleeps is up to 0.5 ms longer than measured.

The result also has raw values, which show how busy the machine was:

- `max_wait_ms`: the whole of the longest wait;
- `max_turn_ms`: `eventloop_duration_max` of the server, the longest time between two looks at its sockets;
- `max_script_ms`: the longest FCALL in the slow log, which records every command during the drain;
- `stall_events`: events of the latency monitor, such as a write to the append-only file that waited for the disk;
- `idle_wait_ms`: the baseline, the wait for the same question at the same moment at a server that nobody else calls. No
  client can notice a shorter stall;
- `oversleep_ms`: how much too long the asker slept between two questions, which depends on no server;
- `withheld`, `preemptions`: the longest time without a processor in one wait, and how often in a drain another process
  took a processor from the server.

The drain is measured with claim and settle, and with the one-script push; the slower one counts. `stall_vs_script` is
the stall divided by its baseline of the same round: the stall while another client runs scripts of 1 ms, one after the
other. A client that asks at a random moment waits for up to one such script, whatever the machine.
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
from benchmarks.processor import Processor
from benchmarks.rounds import interleaved, over_rounds, ratios
from benchmarks.server import BenchServer, Stalls, bench_server
from wheel_sched.dispatcher import Dispatcher, PushTarget

_PUSH_TO = PushTarget(create=True)
_GIVE_UP_S = 120.0
_SPIN = "for _ = 1, tonumber(ARGV[1]) do end return 1"  # a script that only takes time
_SCRIPT_MS, _SCRIPTS_S = 1.0, 2.0


class Stall(NamedTuple):
    """What was measured in one run of `drain` or `scripts`, in ms.

    `server`: what the server recorded. `asker`: what the asker measured, the process that asks the server for its TIME.
    """

    server: Stalls
    asker: Waits


def measure_stalls(
    server: BenchServer, count: int, rounds: int, narration: Narration
) -> tuple[dict[str, Any], dict[str, float]]:
    """Measure the stalls. Returns the figures, and the baselines.

    There are two ways to drain: with claim and settle, and with the push. A figure is the median over rounds of the
    slower way.
    """
    names = ids(count)
    with bench_server() as idle:
        runs: dict[str, Callable[[], Stall]] = {
            "claim drain": partial(drain, server, idle, names, None),
            "push drain": partial(drain, server, idle, names, _PUSH_TO),
            "scripts of 1 ms": partial(scripts, server, idle),
        }
        ways = interleaved(rounds, runs, narration)
    bare = [stall.asker.stall for stall in ways.pop("scripts of 1 ms")]
    over_bare = {
        name: over_rounds(ratios([stall.asker.stall for stall in stalls], bare)) for name, stalls in ways.items()
    }
    spread = max(over_bare.values(), key=lambda found: found["median"])
    medians = {name.removesuffix(" drain"): _medians(stalls) for name, stalls in ways.items()}
    drains = list(chain.from_iterable(ways.values()))
    events = {event for stall in drains for event in stall.server.events}

    def slower(figure: str) -> float:
        return max(way[figure] for way in medians.values())

    return {
        "stall_vs_script": spread["median"],
        "spread": {"stall_vs_script": spread},
        **{f"max_{figure}_ms": slower(figure) for figure in ("stall", "wait", "turn", "script")},
        "worst_stall_ms": round(max(stall.asker.stall for stall in drains), 3),
        "stall_events": {event: max(stall.server.events.get(event, 0) for stall in drains) for event in sorted(events)},
        "stall_messages": count,
        "stall_rounds": rounds,
        "stalls": medians,
    }, {
        "script_stall_ms": round(median(bare), 3),
        **{f"{figure}_ms": slower(figure) for figure in ("idle_wait", "oversleep")},
    }


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
    """Store messages that are due now, and measure the stalls while a dispatcher drains them."""
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
            time.sleep(0.005)  # the dispatcher does not signal the end
    asker.stop()
    waits = asker.result()
    return Stall(server.stalls(), waits)


def scripts(server: BenchServer, idle: BenchServer) -> Stall:
    """Measure the stalls while a client runs scripts of 1 ms, one after the other."""
    server.client.flushall()
    turns = _turns_per_script(server)
    asker = Outside(ask_the_time, server.url, server.pid, idle.url)
    server.watch_stalls()
    until_s = time.monotonic() + _SCRIPTS_S
    while time.monotonic() < until_s:
        server.client.eval(_SPIN, 0, turns)
    asker.stop()
    waits = asker.result()
    return Stall(server.stalls(), waits)


def _turns_per_script(server: BenchServer) -> int:
    """How many turns of its loop the script makes in 1 ms of the server's processor time."""
    turns = 1_000_000
    processor = Processor(server.pid)
    took_ns = []
    for _ in range(5):
        before_ns = processor.worked_ns()
        server.client.eval(_SPIN, 0, turns)
        took_ns.append(processor.worked_ns() - before_ns)
    return max(1, round(turns * _SCRIPT_MS * 1_000_000 / median(took_ns)))
