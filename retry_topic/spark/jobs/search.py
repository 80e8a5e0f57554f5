"""Searches for a better retry policy on a recovery curve: fewer tries with the same success and wait.

The recovery curve (`curves`) is the probability that a message still fails a given time after its first failure. A
random search over exponential policies comes first. Then the search takes smaller and smaller steps around the best
policy. A score is a look-up on the curve, so a few hundred scores take a moment. The same seed gives the same policy.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from retry_topic.policy.delays import Exponential
from retry_topic.spark.jobs.curves import Curve, Score, schedules, score

_TRIALS = 150
_STEPS = 90
SLACK = 0.005  # share of the success that the search may give up for fewer tries
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ScoredPolicy:
    """A policy and its score on the curve."""

    delay: Exponential
    attempts: int
    score: Score


def search(curve: Curve, *, success: float, wait_p90_ms: int, seed: int = 0) -> ScoredPolicy:
    """Find the policy with the fewest tries that reaches `success` and the wanted wait.

    Args:
        curve: the recovery curve of the messages.
        success: the wanted share of successes. The search accepts `SLACK` less. It accepts still less when the curve
            never reaches this share.
        wait_p90_ms: the p90 of the wait may be about this long; 0 for no limit.
        seed: seed of the search. Defaults to 0.
    """
    rng = random.Random(seed)
    wanted = min(success, 1.0 - float(curve.failing[-1])) - SLACK
    longest_ms = max(1_000, min(curve.horizon_ms, _DAY_MS))

    def judged(base_ms: float, factor: float, cap_ms: float, attempts: float) -> tuple[float, ScoredPolicy]:
        base = int(min(max(base_ms, 100), longest_ms))
        delay = Exponential(
            _rounded(base),
            round(min(max(factor, 1.0), 5.0), 2),
            _rounded(int(min(max(cap_ms, base), longest_ms))) if cap_ms > base else _rounded(base),
            jitter="equal",
        )
        count = int(min(max(round(attempts), 1), 25))
        found = score(curve, schedules(delay, count, seed))
        short = max(0.0, wanted - found.success)
        late = max(0.0, math.log2((found.wait_ms["p90"] + 1) / (wait_p90_ms * 1.1 + 1))) if wait_p90_ms else 0.0
        # success counts most, then wait, then tries; a short wait decides between equal policies
        unknown = 50.0 if found.beyond else 0.0  # the history says nothing about so late a retry
        cost = short * 10_000 + unknown + late * 20 + found.tries + found.wait_ms["p90"] / (100 * longest_ms)
        return cost, ScoredPolicy(delay, count, found)

    def drawn() -> tuple[float, float, float, float]:
        base = 100 * (longest_ms / 100) ** rng.random()
        return base, rng.uniform(1.0, 4.0), base * (longest_ms / base) ** rng.random(), rng.uniform(1, 20)

    best_at = drawn()
    best = judged(*best_at)
    for _ in range(_TRIALS):
        at = drawn()
        found = judged(*at)
        if found[0] < best[0]:
            best, best_at = found, at
    for step in range(_STEPS):
        width = 1.0 - step / _STEPS
        base, factor, cap, attempts = best_at
        at = (
            base * math.exp(rng.gauss(0, width)),
            factor + rng.gauss(0, width),
            cap * math.exp(rng.gauss(0, width)),
            attempts + rng.gauss(0, 3 * width),
        )
        found = judged(*at)
        if found[0] < best[0]:
            best, best_at = found, at
    return best[1]


def _rounded(delay_ms: int) -> int:
    """Round a delay to two significant digits, because people read the policy."""
    if delay_ms < 100:
        return delay_ms
    size = 10 ** (len(str(delay_ms)) - 2)
    return int(max(size, round(delay_ms / size) * size))
