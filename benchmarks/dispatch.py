"""`python -m benchmarks dispatch`: what the dispatcher delivers, judged by the receiver.

`bursts` explains the bursts; `timing` explains lateness, wake-up and idleness. Each ratio has a baseline that a bare
program reaches in the same round: a pipelined XADD for the bursts, and for the latencies a program that adds each
message to the stream itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.bursts import Burst, to_memory, to_stream, xadd_rate
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, median_spread, over_rounds, ratios
from benchmarks.server import bench_server, surroundings
from benchmarks.timing import Timed, bare_lateness, bare_wake_up, idle_commands, lateness, wake_up

FIGURES = (
    Figure(
        "burst_memory_vs_xadd",
        "x",
        "rate of a burst through claim, memory broker and settle, divided by that of a bare pipelined XADD",
        at_least=0.7,
        baseline="baseline.xadd_msgs_per_s",
    ),
    Figure(
        "burst_streams_vs_xadd",
        "x",
        "rate of a burst by the one-script push to a stream, divided by that of the bare XADD",
        at_least=0.7,
        baseline="baseline.xadd_msgs_per_s",
    ),
    Figure("burst_memory_msgs_per_s", "msg/s", "burst through claim, memory broker, settle"),
    Figure("burst_streams_msgs_per_s", "msg/s", "burst by the one-script push to a stream"),
    Figure(
        "lateness_vs_bare.p50",
        "x",
        "half of the messages: time from due to receiver, divided by that of a thread that sleeps and adds them itself",
        at_most=3,
        baseline="baseline.bare_lateness_ms.p50",
    ),
    Figure("lateness_vs_bare.p99", "x", "the same, 99 of 100", at_most=5, baseline="baseline.bare_lateness_ms.p99"),
    Figure("lateness_ms.p50", "ms", "from due time to receiver, half of the messages"),
    Figure("lateness_ms.p99", "ms", "due to receiver, 99 of 100"),
    Figure("lateness_ms.max", "ms", "the same, the latest message"),
    Figure("early", "messages", "messages before their due time, in all of this run", at_most=0),
    Figure("lost", "messages", "messages that never reached the receiver", at_most=0),
    Figure(
        "wakeup_vs_bare",
        "x",
        "median time of a due message from another process to the receiver, divided by that of a bare XADD",
        at_most=3,
        baseline="baseline.bare_wakeup_ms.p50",
    ),
    Figure("wakeup_ms.p50", "ms", "an earlier message from another process, half of them"),
    Figure("wakeup_ms.p99", "ms", "the same, 99 of 100"),
    Figure("idle_commands", "commands", "commands that a dispatcher with nothing to do sends in 10 s", at_most=0),
    Figure("baseline.bare_lateness_ms.p50", "ms", "baseline: a thread that sleeps and adds the message itself"),
    Figure("baseline.bare_lateness_ms.p99", "ms", "the same, 99 of 100"),
    Figure("baseline.bare_wakeup_ms.p50", "ms", "baseline: a message added to the stream by its producer"),
    Figure("baseline.xadd_msgs_per_s", "msg/s", "baseline: a bare pipelined XADD, 500 a round trip"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds of the bursts and their baseline. Defaults to 7.
        burst_messages: messages due at the same millisecond. Defaults to 10,000.
        lateness_rounds: rounds that measure lateness. Defaults to 5.
        lateness_messages: messages in each of these rounds. Defaults to 2,000.
        lateness_s: over how many seconds the due times of these messages are spread. Defaults to 5.
        wakeups: how often each of these rounds measures the wake-up. Defaults to 50.
        idle_s: for how many seconds an idle dispatcher may send no command. Defaults to 10.
    """

    rounds: int = 7
    burst_messages: int = 10_000
    lateness_rounds: int = 5
    lateness_messages: int = 2_000
    lateness_s: float = 5.0
    wakeups: int = 50
    idle_s: float = 10.0


FULL = Sizes()
QUICK = Sizes(rounds=3, lateness_rounds=3, lateness_messages=800, lateness_s=2.0, wakeups=30)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    bursts = Measured(sizes.rounds, sizes.burst_messages, "messages")
    late = Measured(sizes.lateness_rounds, sizes.lateness_messages, "messages", sizes.lateness_s)
    wakeups = Measured(sizes.lateness_rounds, sizes.wakeups, "messages")
    return {
        **dict.fromkeys(("burst_memory_vs_xadd", "burst_streams_vs_xadd", "baseline.xadd_msgs_per_s"), bursts),
        **dict.fromkeys(("burst_memory_msgs_per_s", "burst_streams_msgs_per_s"), bursts),
        **dict.fromkeys(("lateness_vs_bare", "lateness_ms", "baseline.bare_lateness_ms"), late),
        **dict.fromkeys(("wakeup_vs_bare", "wakeup_ms", "baseline.bare_wakeup_ms"), wakeups),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(3 * sizes.rounds + 4 * sizes.lateness_rounds + 1)
    with bench_server() as server:
        rates: dict[str, Callable[[], Burst]] = {
            "burst to memory": partial(to_memory, server, sizes.burst_messages),
            "burst to a stream": partial(to_stream, server, sizes.burst_messages),
            "bare XADD": lambda: Burst(xadd_rate(server, sizes.burst_messages), 0, 0),
        }
        bursts = interleaved(sizes.rounds, rates, narration)
        waits: dict[str, Callable[[], Timed]] = {
            "lateness": partial(lateness, server, sizes.lateness_messages, sizes.lateness_s),
            "bare lateness": partial(bare_lateness, server, sizes.lateness_messages, sizes.lateness_s),
            "wake-up": partial(wake_up, server, sizes.wakeups),
            "bare wake-up": partial(bare_wake_up, server, sizes.wakeups),
        }
        timed = interleaved(sizes.lateness_rounds, waits, narration)
        around = surroundings(server, sizes.rounds)
    narration.step(f"idle for {sizes.idle_s:g} s, with an empty store and with 1,000 messages due in an hour")
    idle = idle_commands(sizes.idle_s)
    narration.close()
    rate = {name: [burst.msgs_per_s for burst in found] for name, found in bursts.items()}
    speeds = {name: round(median(values)) for name, values in rate.items()}
    late = {name: median_spread([each.lateness_ms for each in found]) for name, found in timed.items()}
    spread = {
        "burst_memory_vs_xadd": over_rounds(ratios(rate["burst to memory"], rate["bare XADD"])),
        "burst_streams_vs_xadd": over_rounds(ratios(rate["burst to a stream"], rate["bare XADD"])),
        "lateness_vs_bare.p50": _over_bare(timed, "lateness", "p50"),
        "lateness_vs_bare.p99": _over_bare(timed, "lateness", "p99"),
        "wakeup_vs_bare": _over_bare(timed, "wake-up", "p50"),
    }
    judged: list[Burst | Timed] = [*chain.from_iterable(bursts.values()), *chain.from_iterable(timed.values())]
    return {
        "burst_memory_vs_xadd": spread["burst_memory_vs_xadd"]["median"],
        "burst_streams_vs_xadd": spread["burst_streams_vs_xadd"]["median"],
        "burst_memory_msgs_per_s": speeds["burst to memory"],
        "burst_streams_msgs_per_s": speeds["burst to a stream"],
        "lateness_vs_bare": {part: spread[f"lateness_vs_bare.{part}"]["median"] for part in ("p50", "p99")},
        "lateness_ms": late["lateness"],
        "early": sum(each.early for each in judged),
        "lost": sum(each.lost for each in judged),
        "wakeup_vs_bare": spread["wakeup_vs_bare"]["median"],
        "wakeup_ms": late["wake-up"],
        "wakeup_samples": sizes.wakeups,
        "idle_commands": sum(idle.values()),
        "idle": {**idle, "seconds": sizes.idle_s},
        "lateness_rounds": sizes.lateness_rounds,
        "spread": spread,
        **around,
        "baseline": {
            "bare_lateness_ms": late["bare lateness"],
            "bare_wakeup_ms": late["bare wake-up"],
            "xadd_msgs_per_s": speeds["bare XADD"],
        },
    }


def _over_bare(timed: Mapping[str, Sequence[Timed]], name: str, part: str) -> dict[str, float]:
    """Divide a percentile of ours by the same percentile of the bare program in each round.

    Returns the least, the median and the greatest of these ratios.
    """
    ours, bare = ([each.lateness_ms[part] for each in timed[which]] for which in (name, f"bare {name}"))
    return over_rounds(ratios(ours, bare))
