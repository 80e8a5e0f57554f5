"""`Lateness` counts how late operations expired, and `Tally` counts events. Several threads may count without a
lock."""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections import Counter
from typing import Any

from wheel_sched.purgatory import LATENESS_BUCKETS_MS
from wheel_sched.purgatory.statistics import Lateness, Tally, bucketed


def test_each_lateness_falls_into_the_bucket_of_its_bound() -> None:
    """A lateness that equals a bucket's upper bound falls into this bucket. A lateness above all bounds has a bucket
    too.

    `Lateness` rounds values above ten seconds up to whole seconds. The rounding does not change the bucket.
    """
    for lateness_ms in [0, *(bound + by for bound in LATENESS_BUCKETS_MS for by in (-1, 0, 1)), 10_500, 3_600_001]:
        lateness = Lateness()
        lateness.add(lateness_ms)
        counts = bucketed(lateness.by_ms())
        assert counts.index(1) == bisect_left(LATENESS_BUCKETS_MS, lateness_ms), lateness_ms
        assert (sum(counts), lateness.max_ms) == (1, lateness_ms)


def test_the_sum_is_exact_up_to_ten_seconds_and_to_the_second_above() -> None:
    """Up to ten seconds each lateness in ms has a counter of its own. A greater one is rounded up to seconds, so
    that a long stall makes few counters."""
    lateness = Lateness()
    for lateness_ms in range(0, 10_001, 7):
        lateness.add(lateness_ms)
    by_ms = lateness.by_ms()
    assert sum(late * count for late, count in by_ms.items()) == sum(range(0, 10_001, 7))
    for lateness_ms in range(10_001, 100_000, 13):
        lateness.add(lateness_ms)
    assert len(lateness.by_ms()) - len(by_ms) == 90
    assert sum(lateness.by_ms().values()) == len(range(0, 10_001, 7)) + len(range(10_001, 100_000, 13))


def test_threads_that_count_at_once_lose_nothing(run_all: Any) -> None:
    """No count is lost, even when two threads count the same new value at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    lateness = Lateness()
    rng = random.Random(1)
    late = [[rng.randrange(20_000) for _ in range(500)] for _ in range(4)]

    def work(mine: list[int]) -> None:
        for lateness_ms in mine:
            lateness.add(lateness_ms)

    try:
        run_all([lambda mine=mine: work(mine) for mine in late])
    finally:
        sys.setswitchinterval(interval)
    rounded = Counter(ms if ms <= 10_000 else -(-ms // 1_000) * 1_000 for mine in late for ms in mine)
    assert lateness.by_ms() == rounded


def test_a_tally_can_be_read_while_threads_raise_it(run_all: Any) -> None:
    """While threads count, the numbers that another thread reads never fall. The final number is exact."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    tally = Tally()
    seen: list[int] = []

    def raise_it() -> None:
        for _ in range(5_000):
            tally.add()

    def read() -> None:
        for _ in range(500):
            seen.append(tally.value)

    try:
        run_all([raise_it, raise_it, read])
    finally:
        sys.setswitchinterval(interval)
    assert seen == sorted(seen)
    assert (tally.value, tally.value) == (10_000, 10_000)
