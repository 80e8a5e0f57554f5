"""`python -m benchmarks kafka`: the retry service with a real Kafka broker, measured by a reader of committed records.

The broker and the store's server run on this machine. The benchmark needs Java 17 and Maven. It compares

- intake with a bare confluent-kafka loop that stores an item for each message with `schedule`, without policies,
  headers and positions;
- redelivery and lateness with bare loops over transactional producers, without a store;
- lateness of mixed delays with consumers that pause and seek: over one topic for each level of delay, as in Spring
  Kafka, and over a single topic for all delays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.figures import Figure
from benchmarks.kafka.bare import bare_lateness, bare_transactions
from benchmarks.kafka.levels import pause_and_seek
from benchmarks.kafka.site import Site, Timed, intake, lateness, plain_loop, redeliver, site
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, median_spread, over_rounds, ratios
from benchmarks.server import surroundings

FIGURES = (
    Figure(
        "intake_vs_plain",
        "x",
        "intake with policy and position, against a bare loop that stores the same items",
        at_least=0.7,
        baseline="plain_msgs_per_s",
    ),
    Figure(
        "redeliver_msgs_per_s",
        "msg/s",
        "messages due at once, through store and transactions to the reader",
    ),
    Figure(
        "redeliver_vs_bare",
        "x",
        "the same, against a bare loop of transactions with the same records",
        at_least=1,
        baseline="bare_transactions_msgs_per_s",
    ),
    Figure("lateness_ms.p50", "ms", "from due time to reader at 2,000 messages a second, half of them"),
    Figure("lateness_ms.p99", "ms", "the same, 99 of 100"),
    Figure(
        "lateness_vs_bare",
        "x",
        "p99 against that of bare transactions at the same rate",
        at_most=1.5,
        baseline="bare_lateness_ms.p99",
    ),
    Figure("early", "messages", "messages before their due time, in all of this run", at_most=0),
    Figure("mixed_lateness_ms.p50", "ms", "mixed delays: half of them"),
    Figure("mixed_lateness_ms.p99", "ms", "the same, 99 of 100"),
    Figure("spring_style_lateness_ms.p50", "ms", "theirs: topic per level of delay, pause and seek: half of them"),
    Figure("spring_style_lateness_ms.p99", "ms", "the same, 99 of 100"),
    Figure("spring_style_beyond_level_ms.p99", "ms", "the same, counted from the end of the level"),
    Figure("one_topic_lateness_ms.p50", "ms", "theirs: one topic for all delays, pause and seek: half of them"),
    Figure("one_topic_lateness_ms.p99", "ms", "the same, 99 of 100"),
    Figure("intake_msgs_per_s", "msg/s", "records that our intake takes in"),
    Figure("plain_msgs_per_s", "msg/s", "baseline: the bare loop"),
    Figure("bare_transactions_msgs_per_s", "msg/s", "baseline: bare transactions to the reader"),
    Figure("bare_lateness_ms.p50", "ms", "baseline: bare transactions at the same rate, half of them"),
    Figure("bare_lateness_ms.p99", "ms", "the same, 99 of 100"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds of intake, redelivery and their baselines. Defaults to 5.
        messages: messages in each of these rounds. Defaults to 20,000.
        lateness_rounds: rounds that measure lateness. Defaults to 5.
        lateness_s: seconds in which 2,000 messages a second are due. Defaults to 5.
        mixed: number of messages with mixed delays. Defaults to 2,000.
        longest_s: the longest of the mixed delays. Defaults to 60.
    """

    rounds: int = 5
    messages: int = 20_000
    lateness_rounds: int = 5
    lateness_s: float = 5.0
    mixed: int = 2_000
    longest_s: float = 60.0


FULL = Sizes()
QUICK = Sizes(rounds=3, messages=10_000, lateness_rounds=2, lateness_s=3.0, mixed=500, longest_s=4.0)
_PER_S = 2_000  # messages a second under steady load


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    rates = Measured(sizes.rounds, sizes.messages, "messages")
    late = Measured(sizes.lateness_rounds, round(_PER_S * sizes.lateness_s), "messages", sizes.lateness_s)
    mixed = Measured(1, sizes.mixed, "messages", sizes.longest_s)
    return {
        **dict.fromkeys(("intake_vs_plain", "intake_msgs_per_s", "plain_msgs_per_s"), rates),
        **dict.fromkeys(("redeliver_vs_bare", "redeliver_msgs_per_s", "bare_transactions_msgs_per_s"), rates),
        **dict.fromkeys(("lateness_ms", "lateness_vs_bare", "bare_lateness_ms"), late),
        **dict.fromkeys(("mixed_lateness_ms", "one_topic_lateness_ms"), mixed),
        **dict.fromkeys(("spring_style_lateness_ms", "spring_style_beyond_level_ms"), mixed),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(4 * sizes.rounds + 2 * sizes.lateness_rounds + 2)
    with site() as where:
        early: list[int] = []
        runs: dict[str, Callable[[], float]] = {
            "intake": partial(intake, where, sizes.messages),
            "bare loop": partial(plain_loop, where, sizes.messages),
            "redelivery": partial(redeliver, where, sizes.messages, early.append),
            "bare transactions": partial(bare_transactions, where, sizes.messages),
        }
        rates = interleaved(sizes.rounds, runs, narration)
        steady_ms = _spread(_PER_S, sizes.lateness_s)
        loops: dict[str, Callable[[], Timed]] = {
            "lateness": partial(lateness, where, steady_ms),
            "lateness of bare transactions": partial(bare_lateness, where, steady_ms),
        }
        waits = interleaved(sizes.lateness_rounds, loops, narration)
        delays_ms = _mixed(sizes.mixed, sizes.longest_s)
        narration.step(f"mixed delays of 1 to {sizes.longest_s:g} s")
        mixed = lateness(where, delays_ms)
        narration.step("the same by pause and seek: a topic per level, and one for all")
        theirs = pause_and_seek(where.servers, delays_ms, sizes.longest_s)
        around = surroundings(where.server, sizes.rounds)
    narration.close()
    ours, bare = (median_spread([each.spread_ms for each in rounds]) for rounds in waits.values())
    late, late_bare = ([each.spread_ms["p99"] for each in rounds] for rounds in waits.values())
    spread = {
        "intake_vs_plain": over_rounds(ratios(rates["intake"], rates["bare loop"])),
        "redeliver_vs_bare": over_rounds(ratios(rates["redelivery"], rates["bare transactions"])),
        "lateness_vs_bare": over_rounds(ratios(late, late_bare)),
    }
    return {
        "intake_vs_plain": spread["intake_vs_plain"]["median"],
        "redeliver_msgs_per_s": round(median(rates["redelivery"])),
        "redeliver_vs_bare": spread["redeliver_vs_bare"]["median"],
        "lateness_ms": ours,
        "lateness_vs_bare": spread["lateness_vs_bare"]["median"],
        "spread": spread,
        "early": sum(early) + sum(each.early for each in (*waits["lateness"], mixed)),
        "mixed_lateness_ms": mixed.spread_ms,
        "spring_style_lateness_ms": theirs.meant,
        "spring_style_beyond_level_ms": theirs.beyond_level,
        "one_topic_lateness_ms": theirs.one_topic,
        "intake_msgs_per_s": round(median(rates["intake"])),
        "plain_msgs_per_s": round(median(rates["bare loop"])),
        "bare_transactions_msgs_per_s": round(median(rates["bare transactions"])),
        "bare_lateness_ms": bare,
        **around,
        "kafka": Site.version,
    }


def _spread(per_s: int, seconds: float) -> list[int]:
    """Delays in ms with which `per_s` messages a second are due, for `seconds` seconds; the first delay is 2 s."""
    return [2_000 + round(n * 1000 / per_s) for n in range(round(per_s * seconds))]


def _mixed(count: int, longest_s: float) -> list[int]:
    """Delays in ms, spread evenly from 1 s to `longest_s` seconds, in a mixed order."""
    return [1_000 + round((n * 7919 % count) * (longest_s * 1000 - 1_000) / count) for n in range(count)]
