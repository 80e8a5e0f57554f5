"""Converts counts per bucket to the cumulative form of Prometheus."""

from __future__ import annotations

from collections.abc import Sequence


def cumulated(bounds_ms: Sequence[int], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Each upper bound in seconds, the last one infinite, with the count at or below it."""
    bounds = [str(bound_ms / 1000) for bound_ms in bounds_ms] + ["+Inf"]
    total, buckets = 0, []
    for bound, count in zip(bounds, list(counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
