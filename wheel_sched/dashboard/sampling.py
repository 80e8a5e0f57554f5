"""Samples of the store's counters, from which pages compute rates. Pages read them at most once a second together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from wheel_sched.store import Counts

EVENTS = ("accepted", "completed", "died", "lapsed", "cancelled", "requeued", "deleted")
_KEPT = 300
_FRESH_S = 1.0


class Sample(NamedTuple):
    """The counters at one time: `at_s` by the clock of this process, `ever` the events of each kind so far."""

    at_s: float
    counts: Counts
    ever: dict[str, int]


class Sampler:
    """Keeps the last 300 samples of the counters. Thread-safe.

    Args:
        read: reads the counters.
        clock: seconds that only rise. Defaults to `time.monotonic`.
    """

    def __init__(self, read: Callable[[], Counts], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def now(self) -> Sample:
        """The newest sample, at most a second old. Several callers at the same time cost one read of the store."""
        with self._lock:
            at_s = self._clock()
            if not self._samples or at_s - self._samples[-1].at_s >= _FRESH_S:
                counts = self._read()
                ever = {event: counts.happened(event) for event in EVENTS}
                self._samples.append(Sample(at_s, counts, ever))
            return self._samples[-1]

    def rate(self, event: str, over_s: float = 10.0) -> float | None:
        """Events a second over about the last `over_s` seconds; None without an older sample."""
        with self._lock:
            if len(self._samples) < 2:
                return None
            last = self._samples[-1]
            first = next((one for one in self._samples if last.at_s - one.at_s <= over_s), last)
            if first is last:
                first = self._samples[-2]
            return max(0.0, (last.ever[event] - first.ever[event]) / (last.at_s - first.at_s))

    def series(self, event: str) -> list[float]:
        """Events a second between each two neighbouring samples, oldest first."""
        with self._lock:
            kept = list(self._samples)
        return [
            max(0.0, (later.ever[event] - earlier.ever[event]) / (later.at_s - earlier.at_s))
            for earlier, later in pairwise(kept)
        ]
