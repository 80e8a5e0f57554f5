"""Recovery curves: the probability that a message still fails a time t after its first failure.

The attempts of a message show only at some times whether it still fails. A message that failed at L and succeeded at S
recovered in between: its recovery time is interval-censored. A message that was given up at L recovers later or never.
The curve is Turnbull's (1976) non-parametric maximum likelihood estimate by self-consistency. It is computed only at
the times `GRID_MS`, in ms after the first failure: the *grid lines*. After the last attempt in the history the curve is
unknown and stays flat.

This module does not use Spark. Its input is counts of intervals, a few thousand at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from retry_topic.policy.delays import Delay

Floats: TypeAlias = Any  # an array of float64; Any, so that types can be checked without numpy

STEPS = 12  # grid lines for each doubling of the time: the error of a time is at most 3 %
LEAST_MS = 50  # the grid has no lines between 0 and this
LINES = STEPS * 24 + 1  # up to ten days
GRID_MS: tuple[int, ...] = (0, *(round(LEAST_MS * 2 ** (n / STEPS)) for n in range(LINES)))
_ROUNDS = 400
_REDRAWN_ROUNDS = 80  # enough, because a resampled curve is near the fitted curve
_DRAWS = 48  # schedules drawn from a policy with jitter


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of messages that still failed at grid line `failed` and had recovered at grid line `recovered`.

    Both are indexes into `GRID_MS`. `recovered` is None when no attempt succeeded. Each time is rounded to the nearest
    line. Rounding failures down and successes up would be wrong. A failure and a success at the same time would then
    have overlapping intervals, and messages that never recover would count as recovered in the overlap.
    """

    failed: int
    recovered: int | None
    messages: int


@dataclass(slots=True)
class Curve:
    """The share of messages that still fail, by the time after their first failure.

    Args:
        failing: the share at each time of `GRID_MS`; 1 at the first time and never rising.
        horizon_ms: time of the last attempt. After it nothing is known.
        messages: number of messages from which the curve was estimated.
    """

    failing: Floats
    horizon_ms: int
    messages: int
    _grid: Floats = field(default_factory=lambda: np.asarray(GRID_MS, dtype=np.float64), repr=False)

    def at(self, times_ms: Floats) -> Floats:
        """The share of messages that still fail at these times, by linear interpolation; at the horizon, if later."""
        known = np.minimum(times_ms, self.horizon_ms)
        return np.interp(known, self._grid, self.failing)


def fit(intervals: Sequence[Interval]) -> Curve:
    """Estimate the recovery curve from intervals, by maximum likelihood."""
    seen = _Seen(intervals)
    return _curve(seen.mass(seen.counts, _ROUNDS), seen)


class _Seen:
    """The intervals in which messages recovered, as stretches of the grid `GRID_MS`, for the estimate of a curve.

    A stretch is the time between two neighbouring grid lines; stretch n begins at line n. The last stretch means "later
    or never". A recovery after the horizon (the latest attempt in the intervals) also counts as "later or never".
    """

    def __init__(self, intervals: Sequence[Interval]) -> None:
        looked = [i.failed for i in intervals] + [i.recovered for i in intervals if i.recovered is not None]
        self.horizon = min(max(looked, default=0), len(GRID_MS) - 1)
        self.counts = np.asarray([i.messages for i in intervals], dtype=np.float64)
        self._open = np.asarray([i.recovered is None for i in intervals])
        self._low = np.asarray([min(i.failed, self.horizon) for i in intervals])
        self._high = np.asarray([self.horizon if i.recovered is None else i.recovered for i in intervals])

    def mass(self, counts: Floats, rounds: int, begin: Floats | None = None) -> Floats:
        """The estimated share of messages that recover in each stretch of the grid.

        Args:
            counts: a number of messages for each of the constructor's intervals, in the same order.
            rounds: the estimation ends after at most so many rounds.
            begin: the shares to begin with. Defaults to None: equal shares.
        """
        size, total = len(GRID_MS), counts.sum()
        mass = np.full(size, 1.0 / size) if begin is None else begin
        for _ in range(rounds):
            reached = np.concatenate(([0.0], np.cumsum(mass)))
            likely = reached[self._high] - reached[self._low] + self._open * mass[-1]
            weights = counts / np.maximum(likely, 1e-300)
            edges = np.bincount(self._low, weights, size + 1) - np.bincount(self._high, weights, size + 1)
            covered = np.cumsum(edges)[:-1]
            covered[-1] += weights[self._open].sum()
            step = mass * np.maximum(covered, 0.0) / total
            moved = float(np.abs(step - mass).max())
            mass = step
            if moved < 1e-8:
                break
        return mass


def _curve(mass: Floats, seen: _Seen) -> Curve:
    failing = 1.0 - np.concatenate(([0.0], np.cumsum(mass[:-1])))
    return Curve(np.clip(failing, 0.0, 1.0), GRID_MS[seen.horizon], int(seen.counts.sum()))


def resample(intervals: Sequence[Interval], rounds: int, seed: int) -> list[Curve]:
    """Bootstrap: estimate curves from random draws of the messages. They show how far chance alone may move a curve.

    Each draw takes a third of the messages. For interval-censored times, draws of all messages give confidence
    intervals that are too narrow (Sen, Banerjee and Woodroofe, 2010); smaller draws repair that. `interval` uses these
    curves.
    """
    rng = np.random.default_rng(seed)
    seen = _Seen(intervals)
    total = int(seen.counts.sum())
    found = seen.mass(seen.counts, _ROUNDS)
    # a little mass everywhere: a stretch without mass could never get any again
    begin = 0.95 * found + 0.05 / len(found)
    draws = rng.multinomial(max(1, total // 3), seen.counts / total, size=rounds)
    return [_curve(seen.mass(np.asarray(draw, float), _REDRAWN_ROUNDS, begin), seen) for draw in draws]


@dataclass(frozen=True, slots=True)
class Score:
    """What a recovery curve predicts for a policy and the messages that failed once.

    Args:
        success: share of the messages that succeed in the end.
        tries: deliveries per message, including the first one.
        wait_ms: p50, p90 and p99 of the time from the first failure to the success, of the messages that succeed.
        beyond: whether the policy retries later than the curve's horizon. Then `success` is a lower bound.
    """

    success: float
    tries: float
    wait_ms: dict[str, int]
    beyond: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "success": round(self.success, 5),
            "tries": round(self.tries, 3),
            "wait_ms": self.wait_ms,
            "beyond": self.beyond,
        }


def schedules(delay: Delay, attempts: int, seed: int = 0) -> Floats:
    """The retry times of a policy, in ms after the first failure. Each row is one drawn schedule."""
    rng = random.Random(seed)
    steady = getattr(delay, "jitter", "") == "none" or type(delay).__name__ == "Fixed"
    rows = []
    for _ in range(1 if steady else _DRAWS):
        at_ms, previous, row = 0, None, []
        for failure in range(1, attempts):
            previous = delay.draw(failure, previous, rng).delay_ms
            at_ms += previous
            row.append(at_ms)
        rows.append(row)
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), attempts - 1)


def score(curve: Curve, times_ms: Floats) -> Score:
    """What a curve predicts for schedules of retry times. `schedules` makes such schedules."""
    if times_ms.shape[1] == 0:
        return Score(0.0, 1.0, {"p50": 0, "p90": 0, "p99": 0})
    failing = curve.at(times_ms)
    before = np.concatenate((np.ones((len(failing), 1)), failing[:, :-1]), axis=1)
    success = float(1.0 - failing[:, -1].mean())
    tries = 1.0 + float(before.sum(axis=1).mean())
    return Score(success, tries, _waits(times_ms, before - failing), bool(times_ms[:, -1].mean() > curve.horizon_ms))


def _waits(times_ms: Floats, gained: Floats) -> dict[str, int]:
    order = np.argsort(times_ms, axis=None)
    times, weights = times_ms.ravel()[order], gained.ravel()[order]
    reached = np.cumsum(weights)
    if reached[-1] <= 0:
        return {"p50": 0, "p90": 0, "p99": 0}
    found = {}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        found[name] = int(times[min(int(np.searchsorted(reached, share * reached[-1])), len(times) - 1)])
    return found


def interval(estimate: float, others: Iterable[float], least: float, most: float) -> tuple[float, float]:
    """A confidence interval of at least 95 %, within `least` and `most`.

    It is the estimate plus and minus 1.96 standard deviations of `others`, the same figure from each curve of
    `resample`. These curves have a third of the messages, so the interval is wider than chance alone requires. The
    extra width makes up for three further errors: times are rounded to the grid, times are censored, and one curve has
    both chosen and scored the policy. docs/spark-backtest.md says how often the interval contained the truth on
    histories with known recovery laws.
    """
    reach = 1.96 * float(np.std(np.asarray([*others]), ddof=1))
    return max(least, estimate - reach), min(most, estimate + reach)
