"""The load on a purgatory, as in Kafka's TestPurgatoryPerformance.

Requests arrive at exponential intervals, in whole milliseconds; the fraction that is cut off is added to the next
interval, as in the original. A request is complete after a log-normal latency, which two percentiles describe. If the
latency is not below the timeout, the request expires. (Kafka's later rewrite in Java uses the timeout as the latency,
so there no request completes early.)
"""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass
from typing import Final

TIMEOUT_MS: Final = 200
KEYS: Final = ("fakeKey0", "fakeKey1", "fakeKey2")
REQUEST_BYTES: Final = 100

_SAMPLES: Final = 100_000  # this many samples are drawn before the run, which uses them again and again
_P75: Final = 0.674490  # the 75th percentile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class Latency:
    """A log-normal latency.

    Args:
        pct75_ms, pct50_ms: the 75th and the 50th percentile, in ms.
    """

    pct75_ms: int
    pct50_ms: int

    def samples_ns(self, seed: int) -> array[int]:
        """Draw latencies in nanoseconds."""
        rng = random.Random(seed)
        mean = math.log(self.pct50_ms)
        deviation = (math.log(self.pct75_ms) - mean) / _P75
        return array("q", (int(rng.lognormvariate(mean, deviation) * 1e6) for _ in range(_SAMPLES)))


CASES: Final = {"low": Latency(60, 20), "high": Latency(400, 200)}  # the name says how many requests time out


def intervals_ms(rate: int, seed: int) -> array[int]:
    """Draw intervals in whole ms between arrivals at `rate` a second. A cut-off fraction is added to the next one."""
    rng = random.Random(seed)
    carried = 0.0
    intervals = array("q")
    for _ in range(_SAMPLES):
        carried += rng.expovariate(rate / 1000)
        whole = int(carried)
        intervals.append(whole)
        carried -= whole
    return intervals
