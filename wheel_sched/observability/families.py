"""Families of metrics in the text form of Prometheus. All names begin with `wheel_sched_`. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["Metric", "Samples", "counter", "gauge", "lateness", "samples_of"]

Samples = Iterable[tuple[Sequence[str], float]]  # values of the labels, and a value


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"wheel_sched_{name}", text, labels=labels), samples)


def counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(f"wheel_sched_{name}", text, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def samples_of(stats: Mapping[str, Any], field: str) -> Samples:
    """The samples of one field: the field's value in each statistics object, labelled with the object's name."""
    return [((name,), getattr(one, field)) for name, one in stats.items()]


def lateness(name: str, text: str, label: str, bounds_ms: Sequence[int], stats: Mapping[str, Any]) -> Metric:
    """A histogram of lateness in seconds. Each bucket also counts the values of the buckets before it.

    `bounds_ms`: the bounds of the buckets; an infinite one is added. `stats`: statistics by the value of the label.
    """
    family = HistogramMetricFamily(f"wheel_sched_{name}", text, labels=[label])
    bounds = [str(bound_ms / 1000) for bound_ms in bounds_ms] + ["+Inf"]
    for owner, one in stats.items():
        counts = accumulate(map(float, list(one.lateness_counts)))
        family.add_metric([owner], list(zip(bounds, counts, strict=True)), one.lateness_sum_ms / 1000)
    return family
