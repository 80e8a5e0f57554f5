"""The ratios of the wheel benchmark. Each is computed in every round, and the figure is the median over rounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from benchmarks.rounds import over_rounds, ratios
from benchmarks.wheel.mixes import Mix

Rounds = dict[str, list[float]]  # nanoseconds by subject, a value per round
_COMPILED, _PURE = "wheel, compiled", "wheel, pure"


class _Ratio(NamedTuple):
    """A figure to compute: in each round, the time of the subject `over` divided by that of the subject `under`.

    A subject is what was measured, such as "heapq". The key `baseline` gets the median time of `baseline_subject`.
    """

    key: str
    times: Rounds
    over: str
    under: str
    baseline: str
    baseline_subject: str


def compare(
    plain: Mapping[tuple[Mix, int], tuple[Rounds, Rounds]], mixed: Mapping[tuple[Mix, int], Rounds]
) -> dict[str, Any]:
    """Compute all ratios for the uniform mix of deadlines.

    Args:
        plain: the times to schedule and to expire, by mix and number of pending timers.
        mixed: the times of a request when 90 % are cancelled, by mix and number of live timers.

    Returns:
        The figures by key, `spread` with the rounds of each figure, and `baseline` with the median nanoseconds of the
        subjects that the figures are compared with. A figure is None, and has no spread, if one of its two subjects
        was not measured.
    """
    add, expire = plain.get(("uniform", 10_000), ({}, {}))
    _, expire_100k = plain.get(("uniform", 100_000), ({}, {}))
    live = {label: mixed.get(("uniform", count), {}) for count, label in ((10_000, "10k"), (100_000, "100k"))}
    wanted = [
        _Ratio("compiled_schedule_vs_floor", add, _COMPILED, "floor", "floor_ns_10k", "floor"),
        _Ratio("pure_schedule_vs_handle", add, _PURE, "handle only", "handle_ns_10k", "handle only"),
        _Ratio("compiled_vs_kombu_100k.expire", expire_100k, "kombu", _COMPILED, "kombu_ns_100k.expire", "kombu"),
        _Ratio("compiled_vs_kombu_10k.add", add, "kombu", _COMPILED, "kombu_ns_10k.add", "kombu"),
        _Ratio("compiled_vs_kombu_10k.expire", expire, "kombu", _COMPILED, "kombu_ns_10k.expire", "kombu"),
        _Ratio("pure_vs_heapq_90cancelled_10k", live["10k"], "heapq", _PURE, "heapq_90cancelled_ns.10k", "heapq"),
    ]
    for label, times in live.items():
        key, baseline = f"compiled_vs_heapq_90cancelled.{label}", f"heapq_90cancelled_ns.{label}"
        wanted.append(_Ratio(key, times, "heapq", _COMPILED, baseline, "heapq"))
    ns = expire_100k.get(_COMPILED)
    found: dict[str, Any] = {"compiled_expire_ns_100k": None if ns is None else round(median(ns), 1)}
    spread: dict[str, dict[str, float]] = {}
    baselines: dict[str, Any] = {}
    for key, times, over, under, baseline, subject in wanted:
        if over in times and under in times:
            spread[key] = over_rounds(ratios(times[over], times[under]), 2)
        _put(found, key, spread[key]["median"] if key in spread else None)
        _put(baselines, baseline, round(median(times[subject]), 1) if subject in times else None)
    return {**found, "spread": spread, "baseline": baselines}


def _put(result: dict[str, Any], key: str, value: float | None) -> None:
    """Set a value in the nested result: the key "a.b" is the key `b` of the object `a`."""
    *path, last = key.split(".")
    for step in path:
        result = result.setdefault(step, {})
    result[last] = value
