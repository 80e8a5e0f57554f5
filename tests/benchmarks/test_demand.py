"""The load of the purgatory benchmark is the load that its page describes."""

from __future__ import annotations

import time

import pytest

from benchmarks.purgatory.demand import CASES, TIMEOUT_MS, intervals_ms
from benchmarks.purgatory.designs import NewRequest


@pytest.mark.parametrize(("case", "timed_out"), [("low", 0.08), ("high", 0.5)])
def test_kafka_17568_requests_complete_after_their_latency(case: str, timed_out: float) -> None:
    """The latencies have the percentiles that the case states, and a request completes once its latency has passed.

    The benchmark of KAFKA-17568 used the timeout as the latency, so no request completed before its timeout.
    """
    latency = CASES[case]
    samples_ms = sorted(sample / 1e6 for sample in latency.samples_ns(seed=1))
    percentiles = [samples_ms[len(samples_ms) * percent // 100] for percent in (50, 75)]
    assert percentiles == pytest.approx([latency.pct50_ms, latency.pct75_ms], rel=0.05)
    assert sum(sample >= TIMEOUT_MS for sample in samples_ms) / len(samples_ms) == pytest.approx(timed_out, abs=0.02)
    now_ns = time.monotonic_ns()
    assert NewRequest(now_ns, lambda: None).try_complete()
    assert not NewRequest(now_ns + 3_600_000_000_000, lambda: None).try_complete()


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    """The mean rate of arrivals is as asked for, although intervals are whole milliseconds: remainders are carried
    over."""
    intervals = intervals_ms(40_000, seed=1)
    assert len(intervals) / sum(intervals) * 1_000 == pytest.approx(40_000, rel=0.05)
