"""`python -m benchmarks dispatch`: how fast and how punctually a dispatcher delivers, measured at the receiver.

`bursts` explains the bursts; `timing` explains lateness, wake-up and idleness. The baselines show the best that this
machine can do: for lateness, how late a sleeping thread wakes; for bursts, the rate of a bare pipelined XADD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.bursts import Burst, to_memory, to_stream, xadd_rate
from benchmarks.figures import Figure
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, median_spread
from benchmarks.server import bench_server, surroundings
from benchmarks.timing import Timed, idle_commands, lateness, sleeping_thread, wake_up

FIGURES = (
    Figure("burst_memory_msgs_per_s", "msg/s", "burst through claim, memory broker, settle", at_least=50_000),
    Figure("burst_streams_msgs_per_s", "msg/s", "burst by the one-script push to a stream", at_least=20_000),
    Figure("lateness_ms.p50", "ms", "from due time to receiver, half of the messages", at_most=1.5),
    Figure("lateness_ms.p99", "ms", "due to receiver, 99 of 100", at_most=10),
    Figure("lateness_ms.max", "ms", "the same, the latest message"),
    Figure("early", "messages", "messages before their due time, in all of this run", at_most=0),
    Figure("lost", "messages", "messages that never reached the receiver", at_most=0),
    Figure("wakeup_ms.p50", "ms", "an earlier message from another process, half of them", at_most=3),
    Figure("wakeup_ms.p99", "ms", "the same, 99 of 100"),
    Figure("idle_commands", "commands", "sent in 10 s by a dispatcher with nothing to do", at_most=0),
    Figure("baseline.sleeping_thread_ms.p50", "ms", "baseline: how late a sleeping thread wakes"),
    Figure("baseline.sleeping_thread_ms.p99", "ms", "the same, 99 of 100"),
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
        lateness_s: the due times of these messages are spread over so many seconds. Defaults to 5.
        wakeups: how often the wake-up is measured. Defaults to 100.
        sleeps: how often the baseline's thread sleeps in each round of lateness. Defaults to 200.
        idle_s: for how many seconds an idle dispatcher may send no command. Defaults to 10.
    """

    rounds: int = 7
    burst_messages: int = 10_000
    lateness_rounds: int = 5
    lateness_messages: int = 2_000
    lateness_s: float = 5.0
    wakeups: int = 100
    sleeps: int = 200
    idle_s: float = 10.0


FULL = Sizes()
QUICK = Sizes(rounds=3, lateness_rounds=1, wakeups=30)


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(3 * sizes.rounds + 2 * sizes.lateness_rounds + 2)
    with bench_server() as server:
        rates: dict[str, Callable[[], Burst]] = {
            "burst to memory": partial(to_memory, server, sizes.burst_messages),
            "burst to a stream": partial(to_stream, server, sizes.burst_messages),
            "bare XADD": lambda: Burst(xadd_rate(server, sizes.burst_messages), 0, 0),
        }
        bursts = interleaved(sizes.rounds, rates, narration)
        waits: dict[str, Callable[[], Timed]] = {
            "lateness": partial(lateness, server, sizes.lateness_messages, sizes.lateness_s),
            "sleeping thread": lambda: Timed(sleeping_thread(sizes.sleeps), 0, 0),
        }
        timed = interleaved(sizes.lateness_rounds, waits, narration)
        narration.step(f"wake-up, {sizes.wakeups} times")
        woken = wake_up(server, sizes.wakeups)
        around = surroundings(server, sizes.rounds)
    narration.step(f"idle for {sizes.idle_s:g} s, with an empty store and with 1,000 messages due in an hour")
    idle = idle_commands(sizes.idle_s)
    narration.close()
    speeds = {name: round(median(burst.msgs_per_s for burst in found)) for name, found in bursts.items()}
    spreads = {name: median_spread([each.lateness_ms for each in found]) for name, found in timed.items()}
    judged: list[Burst | Timed] = [woken, *chain.from_iterable(bursts.values()), *chain.from_iterable(timed.values())]
    return {
        "burst_memory_msgs_per_s": speeds["burst to memory"],
        "burst_streams_msgs_per_s": speeds["burst to a stream"],
        "lateness_ms": spreads["lateness"],
        "early": sum(each.early for each in judged),
        "lost": sum(each.lost for each in judged),
        "wakeup_ms": woken.lateness_ms,
        "wakeup_samples": sizes.wakeups,
        "idle_commands": sum(idle.values()),
        "idle": {**idle, "seconds": sizes.idle_s},
        "lateness_rounds": sizes.lateness_rounds,
        **around,
        "baseline": {"sleeping_thread_ms": spreads["sleeping thread"], "xadd_msgs_per_s": speeds["bare XADD"]},
    }
