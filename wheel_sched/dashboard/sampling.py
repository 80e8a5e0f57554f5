"""Samples the store's counters. Pages compute rates from the samples.

All pages together cause at most one read a second.
"""

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
    """The counters at the time `at_s` of this process's clock. `ever` counts the events of each kind so far."""

    at_s: float
    counts: Counts
    ever: dict[str, int]


class Sampler:
    """Keeps the last 300 samples of the counters. Thread-safe.

    Args:
        read: reads the counters.
        clock: returns seconds that never go back. Defaults to `time.monotonic`.
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

    def rate(self, event: str, over_s: float = 10.0, topic: str | None = None) -> float | None:
        """Events a second over the last `over_s` seconds, of one topic or of all. None if there is no older sample."""
        with self._lock:
            if len(self._samples) < 2:
                return None
            last = self._samples[-1]
            first = next((one for one in self._samples if last.at_s - one.at_s <= over_s), last)
            if first is last:
                first = self._samples[-2]
            return _speed(first, last, event, topic)

    def series(self, event: str, topic: str | None = None) -> list[float]:
        """Events a second between each sample and the next one, oldest first, of one topic or of all."""
        with self._lock:
            kept = list(self._samples)
        return [_speed(earlier, later, event, topic) for earlier, later in pairwise(kept)]


def _speed(earlier: Sample, later: Sample, event: str, topic: str | None) -> float:
    if topic is None:
        happened = later.ever[event] - earlier.ever[event]
    else:
        happened = later.counts.ever.get((event, topic), 0) - earlier.counts.ever.get((event, topic), 0)
    return max(0.0, happened / (later.at_s - earlier.at_s))
