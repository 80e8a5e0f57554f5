"""Simulates a policy: many messages fail again and again with the same error, on a virtual clock.

Handlers take no time here, so elapsed time is waiting time only. Cost: attempts x samples decisions (a few microseconds
each); nothing sleeps. The functions are pure: the caller gives the random generator, and the same seed gives the same
numbers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from retry_topic.policy.decision import DeadDecision, decide
from retry_topic.policy.failure import Failure
from retry_topic.policy.model import RetryPolicy
from wheel_sched.errors import ConfigError

MAX_DECISIONS = 10_000_000  # about a minute; more is a typing error


@dataclass(frozen=True, slots=True)
class Spread:
    """Four points of a distribution, in ms. Each point is a value that occurred (nearest rank)."""

    min_ms: int
    p50_ms: int
    p90_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class Step:
    """What happens after failure number `attempt`.

    Args:
        attempt: the delivery that failed, from 1.
        retried: number of messages that get a retry.
        died: number of messages that are dead, by reason.
        delay: the wait before the retry; None without a retry.
        elapsed: time from the first failure to the retry; None without a retry.
    """

    attempt: int
    retried: int
    died: Mapping[str, int]
    delay: Spread | None
    elapsed: Spread | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """The steps of a simulation, up to the last attempt that a message reached."""

    policy: str
    samples: int
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def simulate(
    policy: RetryPolicy,
    attempts: int = 20,
    samples: int = 1_000,
    rng: random.Random | None = None,
    *,
    error_class: str = "builtins.Exception",
    error_mro: tuple[str, ...] = (),
    status: int | None = None,
) -> Simulation:
    """Let `samples` messages fail up to `attempts` times each.

    Args:
        policy: the policy that decides.
        attempts: most failures of a message. Defaults to 20.
        samples: number of messages. Defaults to 1,000.
        rng: the random generator. Defaults to one with seed 0, so that every run gives the same numbers.
        error_class: class of every error, for the rules. Defaults to a plain Exception.
        error_mro: parents of that class. Defaults to none.
        status: HTTP status of every error. Defaults to None.

    Raises:
        ConfigError: attempts or samples are below 1, or there are more than `MAX_DECISIONS` decisions.
    """
    if attempts < 1 or samples < 1 or attempts * samples > MAX_DECISIONS:
        raise ConfigError(
            f"expected attempts and samples to be at least 1 and at most {MAX_DECISIONS} decisions, "
            f"got: {attempts} attempts, {samples} samples"
        )
    rng = random.Random(0) if rng is None else rng
    first = Failure(first_failed_ms=0, error_class=error_class, error_mro=error_mro, status=status)
    alive: list[tuple[int, int | None]] = [(0, None)] * samples  # (virtual now, previous delay) of each sample
    steps: list[Step] = []
    for attempt in range(1, attempts + 1):
        survivors: list[tuple[int, int | None]] = []
        delays_ms: list[int] = []
        died: Counter[str] = Counter()
        for now_ms, previous_ms in alive:
            failure = replace(first, attempt=attempt, previous_delay_ms=previous_ms)
            decision = decide(policy, failure, now_ms, rng)
            if isinstance(decision, DeadDecision):
                died[decision.reason] += 1
            else:
                delays_ms.append(decision.delay_ms)
                survivors.append((decision.due_ms, decision.delay_ms))
        elapsed = _spread([due_ms for due_ms, _ in survivors])
        steps.append(Step(attempt, len(survivors), dict(died), _spread(delays_ms), elapsed))
        alive = survivors
        if not alive:
            break
    return Simulation(policy.ident, samples, tuple(steps))


def _spread(values_ms: list[int]) -> Spread | None:
    if not values_ms:
        return None
    ordered = sorted(values_ms)
    p50_ms, p90_ms = (ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 90))
    return Spread(ordered[0], p50_ms, p90_ms, ordered[-1])
