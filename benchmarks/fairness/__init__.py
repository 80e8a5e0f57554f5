"""`python -m benchmarks fairness`: one tenant is a million messages behind, and a hundred others go on as usual.

A consumer takes 2,000 messages a second, one after the other, from one topic. A hundred tenants get ten messages a
second each, and one tenant has a million overdue messages. The receiver computes the lateness of each message of the
hundred from the due time in the message: `others_p99_ms`. The store begins to search for overdue messages when the run
begins, so this search is part of the figure. An earlier run in the same store measures the same while the topic is not
fair: `others_p99_ms_unfair`. In that run the messages of the hundred come after the million, so few or none arrive. A
message that did not arrive counts as late from its due time to the end of the run. So this figure is a lower bound, and
grows with the length of the run.

The consumer holds 40 messages at most, because messages that wait in a consumer are claimed and no longer shared.

`share_error` is how far the share of a key is from its weight while all keys have enough: the greatest error of all
keys. `burst_vs_unfair` is the rate of a burst of all tenants in a fair topic, divided by that of the same messages in a
topic that is not fair. The messages are stored less than a minute ahead, so they are in the queues of their keys when
they are due. `burst_far_ahead_vs_unfair` is the same for messages that are not in these queues yet: the claims move
them. `schedule_vs_unfair` compares the server's time to store a message. `bytes_per_key` is the memory of a key with
one overdue message, beyond that of the message.

`off_vs_before` compares the server's time of a claim and its settlement with two libraries of scripts. "Before" is the
library without the folder of fair shares. "Off" is the whole library while no topic is fair. Both have a few steps of
the core: they read the field of `meta` that says whether a topic is fair.

One gate is a time and not a ratio, because it is about what a tenant notices: 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.fairness.costs import bytes_per_key, claim_us, schedule_us
from benchmarks.fairness.shares import burst_rate, share_error
from benchmarks.fairness.tenants import Load, backlog, others_late_ms
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, percentile, ratios
from benchmarks.server import bench_server, surroundings

FIGURES = (
    Figure(
        "others_p99_ms",
        "ms",
        "lateness of the hundred others, 99 of 100, while one tenant is far behind",
        at_most=50,
        baseline="others_p99_ms_unfair",
    ),
    Figure("others_later_p99_ms", "ms", "the same in the second half of the run, when most overdue messages are found"),
    Figure("share_error", "of 1", "greatest error of a key's share, as a part of what its weight gives", at_most=0.05),
    Figure(
        "burst_vs_unfair",
        "x",
        "rate of a burst in a fair topic, divided by that in a topic that is not fair",
        at_least=0.8,
        baseline="baseline.unfair_msgs_per_s",
    ),
    Figure(
        "burst_far_ahead_vs_unfair",
        "x",
        "the same for messages that were stored more than a minute ahead",
        baseline="baseline.unfair_msgs_per_s",
    ),
    Figure(
        "schedule_vs_unfair",
        "x",
        "server's time to store a message in a topic that is not fair, divided by that in a fair one",
        baseline="baseline.unfair_schedule_us",
    ),
    Figure(
        "off_vs_before",
        "x",
        "server's time of a claim and its settlement without the folder of fair shares, divided by that with it",
        at_least=0.95,
        baseline="baseline.before_claim_us",
    ),
    Figure("bytes_per_key", "bytes", "memory of a key with one overdue message, beyond that of the message"),
    Figure(
        "others_p99_ms_unfair",
        "ms",
        "baseline: lateness of the hundred others in a topic that is not fair, a lower bound",
    ),
    Figure("others_arrived", "messages", "messages of the others that arrived"),
    Figure("others_arrived_unfair", "messages", "the same while the topic is not fair"),
    Figure("taken_per_s", "msg/s", "messages that the consumer took; less than 2,000 on a machine that is too slow"),
    Figure("taken_per_s_unfair", "msg/s", "the same while the topic is not fair"),
    Figure("early", "messages", "messages that arrived before they were due", at_most=0),
    Figure("behind", "messages", "how far the one tenant is behind"),
    Figure("baseline.unfair_msgs_per_s", "msg/s", "baseline: a burst in a topic that is not fair"),
    Figure(
        "baseline.unfair_schedule_us", "us", "baseline: server's time to store a message in a topic that is not fair"
    ),
    Figure(
        "baseline.before_claim_us",
        "us",
        "baseline: server's time of a claim and its settlement without the folder of fair shares",
    ),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        behind: overdue messages of the one tenant. Defaults to 1 M.
        seconds: how long the others send. Defaults to 20.
        unfair_seconds: the same while the topic is not fair. Defaults to 10.
        served: messages over which shares are counted. Defaults to 40,000.
        rounds: rounds of bursts and of claims. Defaults to 7.
        burst: messages in a burst. Defaults to 10,000.
        keys: keys whose memory is measured. Defaults to 100,000.
    """

    behind: int = 1_000_000
    seconds: float = 20.0
    unfair_seconds: float = 10.0
    served: int = 40_000
    rounds: int = 7
    burst: int = 10_000
    keys: int = 100_000


FULL = Sizes()
QUICK = Sizes(behind=200_000, seconds=6, unfair_seconds=2, served=8_000, rounds=3, burst=5_000, keys=20_000)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    load = Load()
    bursts = Measured(sizes.rounds, sizes.burst, "messages")
    fair = Measured(1, load.count(sizes.seconds), "messages", sizes.seconds)
    later = Measured(1, load.count(sizes.seconds / 2), "messages", sizes.seconds / 2)
    unfair = Measured(1, load.count(sizes.unfair_seconds), "messages", sizes.unfair_seconds)
    return {
        **dict.fromkeys(("others_p99_ms", "taken_per_s"), fair),
        "others_later_p99_ms": later,
        **dict.fromkeys(("others_p99_ms_unfair", "taken_per_s_unfair"), unfair),
        "share_error": Measured(1, sizes.served, "messages"),
        **dict.fromkeys(
            ("burst_vs_unfair", "burst_far_ahead_vs_unfair", "schedule_vs_unfair", "off_vs_before"), bursts
        ),
        **dict.fromkeys(
            ("baseline.unfair_msgs_per_s", "baseline.unfair_schedule_us", "baseline.before_claim_us"), bursts
        ),
        "bytes_per_key": Measured(1, sizes.keys, "keys"),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(5 + 7 * sizes.rounds)
    with bench_server() as server:
        narration.step(f"{sizes.behind:,} overdue messages of one tenant")
        store = backlog(server, sizes.behind)
        narration.step(f"others for {sizes.unfair_seconds:g} s, not fair")
        unfair = others_late_ms(store, Load(), sizes.unfair_seconds, fair=False)
        narration.step(f"others for {sizes.seconds:g} s, fair")
        fair = others_late_ms(store, Load(), sizes.seconds, fair=True)
        narration.step("shares by weight")
        error = share_error(server, sizes.served)
        runs: dict[str, Callable[[], float]] = {
            "burst, fair": partial(burst_rate, server, sizes.burst, fair=True),
            "burst, not fair": partial(burst_rate, server, sizes.burst, fair=False),
            "burst, far ahead": partial(burst_rate, server, sizes.burst, fair=True, far_ahead=True),
            "storing, fair": partial(schedule_us, server, sizes.burst, fair=True),
            "storing, not fair": partial(schedule_us, server, sizes.burst, fair=False),
            "claims, off": partial(claim_us, server, sizes.burst, before=False),
            "claims, before": partial(claim_us, server, sizes.burst, before=True),
        }
        values = interleaved(sizes.rounds, runs, narration)
        narration.step("memory of keys")
        per_key = bytes_per_key(server, sizes.keys)
        around = surroundings(server, sizes.rounds)
    narration.close()
    spread = {
        "burst_vs_unfair": over_rounds(ratios(values["burst, fair"], values["burst, not fair"])),
        "burst_far_ahead_vs_unfair": over_rounds(ratios(values["burst, far ahead"], values["burst, not fair"])),
        "schedule_vs_unfair": over_rounds(ratios(values["storing, not fair"], values["storing, fair"])),
        "off_vs_before": over_rounds(ratios(values["claims, before"], values["claims, off"])),
    }
    return {
        "others_p99_ms": round(percentile(fair.late_ms, 99), 2),
        "others_later_p99_ms": round(percentile(fair.late_ms[len(fair.late_ms) // 2 :], 99), 2),
        "others_p50_ms": round(percentile(fair.late_ms, 50), 2),
        "others_max_ms": round(max(fair.late_ms), 2),
        "others_p99_ms_unfair": round(percentile(unfair.late_ms, 99), 2),
        "others_arrived": fair.arrived,
        "others_arrived_unfair": unfair.arrived,
        "taken_per_s": round(fair.taken_per_s),
        "taken_per_s_unfair": round(unfair.taken_per_s),
        "early": fair.early + unfair.early,
        "share_error": round(error, 4),
        "burst_vs_unfair": spread["burst_vs_unfair"]["median"],
        "burst_far_ahead_vs_unfair": spread["burst_far_ahead_vs_unfair"]["median"],
        "schedule_vs_unfair": spread["schedule_vs_unfair"]["median"],
        "off_vs_before": spread["off_vs_before"]["median"],
        "bytes_per_key": round(per_key, 1),
        "behind": sizes.behind,
        "spread": spread,
        **around,
        "baseline": {
            "unfair_msgs_per_s": round(median(values["burst, not fair"])),
            "unfair_schedule_us": round(median(values["storing, not fair"]), 2),
            "before_claim_us": round(median(values["claims, before"]), 1),
        },
    }
