"""Metrics of purgatories: how many operations wait, how they ended, and how late they expired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from wheel_sched.observability.histogram import cumulated
from wheel_sched.purgatory import LATENESS_BUCKETS_MS, Completion, PurgatoryStats

_GAUGES = {
    "watched": "Entries in watcher lists; an operation counts once per key.",
    "keys": "Keys with waiting operations.",
    "delayed": "Operations that wait for their timer.",
}
_COUNTERS = {
    "cancelled": "Operations that were cancelled.",
    "failed": "Tries and callbacks that raised an error without a caller to receive it.",
}


def of_purgatories(purgatories: Mapping[str, PurgatoryStats]) -> Iterator[Metric]:
    """The metrics of purgatories. Their names become the label `purgatory`."""
    for field, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"wheel_sched_purgatory_{field}", text, labels=["purgatory"])
        for name, stats in purgatories.items():
            gauge.add_metric([name], getattr(stats, field))
        yield gauge
    completed = CounterMetricFamily(
        "wheel_sched_purgatory_completed", "Operations that were completed.", labels=["purgatory", "reason"]
    )
    lateness = HistogramMetricFamily(
        "wheel_sched_purgatory_expiration_lateness_seconds",
        "From an operation's deadline to its expiration.",
        labels=["purgatory"],
    )
    for name, stats in purgatories.items():
        for reason in Completion:
            completed.add_metric([name, reason.value], getattr(stats, reason.value))
        lateness.add_metric([name], cumulated(LATENESS_BUCKETS_MS, stats.lateness_counts), stats.lateness_sum_ms / 1000)
    yield completed
    for field, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"wheel_sched_purgatory_{field}", text, labels=["purgatory"])
        for name, stats in purgatories.items():
            counter.add_metric([name], getattr(stats, field))
        yield counter
    yield lateness
