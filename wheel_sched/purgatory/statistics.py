"""The counters of a purgatory, which count without a lock.

A `Tally` counts with `next(itertools.count())`. This is one C call, so no other thread can interrupt it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

LATENESS_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
_EXACT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PurgatoryStats:
    """The counters of a purgatory at one moment.

    Args:
        watched: entries in all watcher lists; an operation counts once per key.
        keys: number of watcher lists, one for each key under which operations wait.
        delayed: operations whose timer runs.
        satisfied: completed by a successful try, at once or later.
        forced: completed by `force_complete` or `close`.
        expired: completed by the timer.
        cancelled: removed by `cancel_for_key` without completion.
        failed: callbacks and tries whose error went to `on_error` of the purgatory, because no caller could catch it.
        lateness_counts: expirations by lateness: one bucket for each inclusive upper bound in `LATENESS_BUCKETS_MS`,
            and one for greater values.
        lateness_sum_ms: sum over all expirations. A lateness above 10 s counts as whole seconds, rounded up.
        lateness_max_ms: the greatest lateness of an expiration.
    """

    watched: int
    keys: int
    delayed: int
    satisfied: int
    forced: int
    expired: int
    cancelled: int
    failed: int
    lateness_counts: tuple[int, ...]
    lateness_sum_ms: int
    lateness_max_ms: int


class Tally:
    """A number that any thread may increase by one.

    Attributes:
        add: increases the number by one. It is a single C call, so no other thread can interrupt it.
    """

    __slots__ = ("_lock", "_reads", "add")

    def __init__(self) -> None:
        self.add = count().__next__
        self._lock = threading.Lock()
        self._reads = 0  # a read takes a number from the count too

    @property
    def value(self) -> int:
        """How often `add` was called."""
        with self._lock:
            value = self.add() - self._reads
            self._reads += 1
        return value


class Lateness:
    """The lateness of expirations: one tally for each value that occurred.

    Usually expirations are a few milliseconds late, so there are few tallies. Above 10 s there is one tally per second,
    so there are few tallies after a long stall too.
    """

    __slots__ = ("_tallies", "max_ms")

    def __init__(self) -> None:
        self._tallies: dict[int, Tally] = {}
        self.max_ms = 0

    def add(self, lateness_ms: int) -> None:
        """Count one expiration."""
        tally = self._tallies.get(lateness_ms)
        if tally is None:
            rounded_ms = lateness_ms if lateness_ms <= _EXACT_MS else -(-lateness_ms // 1_000) * 1_000
            tally = self._tallies.setdefault(rounded_ms, Tally())
        tally.add()
        if lateness_ms > self.max_ms:
            self.max_ms = lateness_ms

    def by_ms(self) -> dict[int, int]:
        """The number of expirations by lateness."""
        return {lateness_ms: tally.value for lateness_ms, tally in list(self._tallies.items())}


def bucketed(by_ms: Mapping[int, int]) -> tuple[int, ...]:
    """The number of expirations in each bucket of `LATENESS_BUCKETS_MS`; the last number counts those above all."""
    counts = [0] * (len(LATENESS_BUCKETS_MS) + 1)
    for lateness_ms, times in by_ms.items():
        counts[bisect_left(LATENESS_BUCKETS_MS, lateness_ms)] += times
    return tuple(counts)
