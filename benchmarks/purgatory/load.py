"""Measures one point of the benchmark: one design under one load.

`python -m benchmarks.purgatory.load '{"design": "new", "case": "low", "rate": 100000, ...}'` prints one JSON object.

The calling thread makes requests at their arrival times, or as fast as it can when it is behind. A second thread
completes each request when its latency is over. The reaper of the design expires all other requests. Completions may
fall behind; `drained` says that all requests ended soon after the last one was made.

The garbage collector runs after every 50,000 allocations with every design, as a server with many live objects would
configure it. With its default of 700 it would take a quarter of the processor time to visit the waiting requests.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.purgatory.demand import CASES, KEYS, TIMEOUT_MS, intervals_ms
from benchmarks.purgatory.designs import DESIGNS, Request
from benchmarks.resident import peak_bytes, resident_bytes
from wheel_sched.purgatory.statistics import Tally

DRAIN_S = 1.5  # this long after the last request, every timeout has passed
_REVISITED = 50  # the thread also looks again at the buckets of this many past ms, where requests may be added late
_MS = 1_000_000
_COLLECT_AT = (50_000, 20, 100)


@dataclass(frozen=True, slots=True)
class PurgatoryLoad:
    """The load of one point.

    Args:
        design: "new": our purgatory. "old": Kafka's purgatory before its redesign. "bare": a lower bound, our
            purgatory without locks and statistics. See `designs`.
        case: "low": few requests time out; "high": half of the requests time out.
        rate: requests a second.
        requests: how many requests are made.
        wheel_size: slots per level of the wheel. Defaults to 4096, as in the library.
        seed: the seed of the random samples. Defaults to 1.
    """

    design: str
    case: str
    rate: int
    requests: int
    wheel_size: int = 4096
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one point.

    Args:
        achieved: requests a second that were made.
        cpu_us: processor time of the whole process per request, in microseconds.
        peak_mib: the largest memory of the process, minus its memory at the start.
        drained: whether all requests were completed within `DRAIN_S` seconds after the last one was made.
        sustained: whether `achieved` is at least 98 % of the rate, and `drained` is true.
    """

    design: str
    case: str
    rate: int
    achieved: int
    cpu_us: float
    peak_mib: float
    drained: bool
    sustained: bool


class Completer:
    """A thread that completes requests when their latency is over. It has one bucket of requests per millisecond."""

    def __init__(self, start_ns: int, span_ms: int) -> None:
        self._start_ns = start_ns
        self.buckets: list[list[Request]] = [[] for _ in range(span_ms + 2)]
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        reached = 0
        buckets = self.buckets
        while not self._stopping:
            now_ms = min((time.monotonic_ns() - self._start_ns) // _MS, len(buckets))
            for bucket in buckets[max(0, reached - _REVISITED) : now_ms]:
                while bucket:
                    bucket.pop().force_complete()
            reached = max(reached, now_ms)
            time.sleep(0.001)

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        for bucket in self.buckets:
            while bucket:
                bucket.pop().force_complete()


def run(load: PurgatoryLoad) -> Point:
    """Measure the design under the load."""
    intervals = intervals_ms(load.rate, load.seed)
    latencies = CASES[load.case].samples_ns(load.seed + 1)
    planned_ms = int(load.requests / load.rate * 1000)
    completed = Tally()
    done = completed.add
    design = DESIGNS[load.design](load.wheel_size)
    make, watch = design.request, design.try_complete_else_watch
    # room for a run that takes ten times as long as planned; later requests complete at the end
    start_ns = time.monotonic_ns()
    completer = Completer(start_ns, planned_ms * 10 + 10 * TIMEOUT_MS)
    buckets, last = completer.buckets, len(completer.buckets) - 1
    timeout_ns = TIMEOUT_MS * _MS
    give_up_ns = (planned_ms + 500) * _MS  # a run that takes longer cannot catch up any more
    start_ns = completer._start_ns = time.monotonic_ns()
    arrival_ns, samples = start_ns, len(intervals)
    memory_before = resident_bytes()
    cpu_before = time.process_time()
    made = 0
    for number in range(load.requests):
        sample = number % samples
        interval = intervals[sample]
        if interval:
            arrival_ns += interval * _MS
            ahead_ns = arrival_ns - time.monotonic_ns()
            if ahead_ns > 0:
                time.sleep(ahead_ns / 1e9)
            elif ahead_ns < -give_up_ns:
                break
        latency_ns = latencies[sample]
        completes_at_ns = time.monotonic_ns() + latency_ns
        request = make(completes_at_ns, done)
        if latency_ns < timeout_ns:
            buckets[min((completes_at_ns - start_ns) // _MS + 1, last)].append(request)
        watch(request, KEYS)
        made = number + 1
    made_ns = time.monotonic_ns() - start_ns
    drained_by = time.monotonic() + DRAIN_S
    drained = False
    while not drained and time.monotonic() < drained_by:
        time.sleep(0.005)
        drained = completed.value >= made
    cpu_s = time.process_time() - cpu_before
    memory = max(0, peak_bytes() - memory_before)
    completer.stop()
    design.close()
    achieved = made / made_ns * 1e9
    kept_up = made == load.requests and achieved >= 0.98 * load.rate
    return Point(
        load.design,
        load.case,
        load.rate,
        round(achieved),
        round(cpu_s / made * 1e6, 2),
        round(memory / 2**20, 1),
        drained,
        kept_up and drained,
    )


def main() -> None:
    """Measure the point that the argument describes, and print it as JSON."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)
    print(json.dumps(asdict(run(PurgatoryLoad(**arguments)))))


if __name__ == "__main__":
    main()
