"""The dispatcher's counters of lateness."""

from __future__ import annotations

from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS


def test_the_bound_of_a_bucket_is_inclusive() -> None:
    """Upper bounds are inclusive, as in Prometheus. A lateness above an hour has its own bucket."""
    stats = DispatcherStats()
    for bound_ms in LATENESS_BUCKETS_MS:
        stats.late(1_000_000_000, [1_000_000_000 - bound_ms])
    stats.late(1_000_000_000, [0])
    assert stats.lateness_counts == [1] * (len(LATENESS_BUCKETS_MS) + 1)
    assert stats.lateness_max_ms == 1_000_000_000


def test_an_item_on_time_is_in_the_first_bucket() -> None:
    """A negative lateness counts as on time, in the first bucket."""
    stats = DispatcherStats()
    stats.late(100, [100, 99, 101])
    assert stats.lateness_counts[0] == 3
    assert stats.lateness_max_ms == 1


def test_the_buckets_rise_from_a_millisecond_to_an_hour() -> None:
    """The bounds of the buckets rise, as the search for a bucket requires."""
    assert list(LATENESS_BUCKETS_MS) == sorted(set(LATENESS_BUCKETS_MS))
    assert (LATENESS_BUCKETS_MS[0], LATENESS_BUCKETS_MS[-1]) == (1, 3_600_000)


def test_each_dispatcher_counts_for_itself() -> None:
    """Two dispatchers have separate lists of counters."""
    one, other = DispatcherStats(), DispatcherStats()
    one.late(10, [0])
    assert sum(other.lateness_counts) == 0
