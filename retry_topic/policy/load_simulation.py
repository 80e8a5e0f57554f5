"""Simulates the load that a policy causes: messages arrive at a rate, and each attempt fails with a probability.

The clock is virtual, and each attempt takes no time. Attempts fail independently of each other, except during an outage
at the start, when all of them fail. Flow control is not simulated: a rate, a budget or a circuit breaker makes retries
later, not fewer. Each message is followed to its end, so the numbers are complete. The same seed gives the same
numbers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from retry_topic.policy.decision import DeadDecision, decide
from retry_topic.policy.failure import Failure
from retry_topic.policy.model import RetryPolicy
from wheel_sched.errors import ConfigError

MAX_MESSAGES = 20_000
MAX_LOAD_ATTEMPTS = 200_000  # about a second of work
MAX_SECONDS = 86_400
MAX_PER_SECOND = 10_000
BUCKETS = 120


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages and failures that a policy has to handle in a simulation.

    Args:
        failure_rate: the probability that an attempt fails, 0 to 1.
        per_second: messages a second, 0.001 to 10,000. They arrive at equal distances. Defaults to 10.
        seconds: how long messages arrive, 1 to 86,400. Defaults to 60.
        outage_s: all attempts of the first seconds fail. Defaults to 0: no outage.
        error_class: class of every error, for the rules. Defaults to a plain Exception.
        status: HTTP status of every error. Defaults to None.
    """

    failure_rate: float
    per_second: float = 10
    seconds: int = 60
    outage_s: int = 0
    error_class: str = "builtins.Exception"
    status: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.failure_rate <= 1:  # false for NaN
            problems.append(f"expected the failure rate to be from 0 to 1, got: {self.failure_rate:g}")
        if not 0.001 <= self.per_second <= MAX_PER_SECOND:
            problems.append(f"expected 0.001 to {MAX_PER_SECOND:,} messages a second, got: {self.per_second:g}")
        if not 1 <= self.seconds <= MAX_SECONDS:
            problems.append(f"expected messages to arrive for 1 to {MAX_SECONDS:,} seconds, got: {self.seconds}")
        elif not 0 <= self.outage_s <= MAX_SECONDS:
            problems.append(f"expected an outage of 0 to {MAX_SECONDS:,} seconds, got: {self.outage_s}")
        elif not problems and self.messages > MAX_MESSAGES:
            problems.append(
                f"expected at most {MAX_MESSAGES:,} messages, got: {self.messages:,} "
                f"({self.per_second:g} a second for {self.seconds:,} s)"
            )
        if problems:
            raise ConfigError(problems)

    @property
    def messages(self) -> int:
        """How many messages arrive, at least one."""
        return max(1, round(self.per_second * self.seconds))


@dataclass(frozen=True, slots=True)
class LoadSimulation:
    """What a policy did with the traffic.

    Args:
        policy: name and version of the policy.
        messages: how many messages arrived.
        attempts: attempts of all messages.
        load_factor: attempts for each message.
        succeeded_at: how many messages succeeded at which attempt.
        died: how many messages died, by reason.
        success_ms: p50, p90 and p99 of the time from arrival to success; None if no message succeeded.
        bucket_ms: length of a bucket.
        attempts_in: attempts in each bucket, from the first arrival to twice the time of the arrivals.
        first_attempts_in: the first attempts among them.
        later: attempts after the last bucket.
        peak_per_second: attempts a second in the fullest bucket.
    """

    policy: str
    messages: int
    attempts: int
    load_factor: float
    succeeded_at: Mapping[int, int]
    died: Mapping[str, int]
    success_ms: Mapping[str, int] | None
    bucket_ms: int
    attempts_in: Sequence[int]
    first_attempts_in: Sequence[int]
    later: int
    peak_per_second: float

    @property
    def succeeded(self) -> int:
        """How many messages succeeded."""
        return sum(self.succeeded_at.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **asdict(self),
            "succeeded_at": {str(attempt): count for attempt, count in sorted(self.succeeded_at.items())},
            "succeeded": self.succeeded,
        }


def simulate_load(policy: RetryPolicy, traffic: Traffic, seed: int = 0) -> LoadSimulation:
    """Let messages arrive, fail and be retried until each has succeeded or is dead.

    Args:
        policy: the policy that decides.
        traffic: how many messages arrive, and how many of their attempts fail.
        seed: seed of failures and jitter. Defaults to 0.

    Raises:
        ConfigError: the messages need more than `MAX_LOAD_ATTEMPTS` attempts.
    """
    rng = random.Random(seed)
    bucket_ms = max(1, -(-2 * traffic.seconds * 1_000 // BUCKETS))
    buckets, first = [0] * BUCKETS, [0] * BUCKETS
    succeeded_at, died, waits_ms = Counter[int](), Counter[str](), list[int]()
    attempts = 0
    for number in range(traffic.messages):
        arrived_ms = int(number * 1_000 / traffic.per_second)
        first[min(arrived_ms // bucket_ms, BUCKETS - 1)] += 1
        end, tried_ms = _life(policy, traffic, arrived_ms, rng, MAX_LOAD_ATTEMPTS - attempts)
        attempts += len(tried_ms)
        for at_ms in tried_ms:
            if at_ms // bucket_ms < BUCKETS:
                buckets[at_ms // bucket_ms] += 1
        if end is None:
            succeeded_at[len(tried_ms)] += 1
            waits_ms.append(tried_ms[-1] - arrived_ms)
        else:
            died[end] += 1
    return LoadSimulation(
        policy=policy.ident,
        messages=traffic.messages,
        attempts=attempts,
        load_factor=attempts / traffic.messages,
        succeeded_at=dict(succeeded_at),
        died=dict(died),
        success_ms=_percentiles(waits_ms),
        bucket_ms=bucket_ms,
        attempts_in=buckets,
        first_attempts_in=first,
        later=attempts - sum(buckets),
        peak_per_second=max(buckets) * 1_000 / bucket_ms,
    )


def _life(
    policy: RetryPolicy, traffic: Traffic, arrived_ms: int, rng: random.Random, most: int
) -> tuple[str | None, list[int]]:
    """One message: why it died, None for a success; and the times of its attempts."""
    now_ms, first_ms, previous_ms = arrived_ms, None, None
    tried_ms: list[int] = []
    while True:
        if len(tried_ms) >= most:
            raise ConfigError(
                f"expected the messages to need at most {MAX_LOAD_ATTEMPTS:,} attempts, got more: simulate fewer "
                "messages, a lower failure rate, or a policy that gives up earlier"
            )
        tried_ms.append(now_ms)
        if rng.random() >= traffic.failure_rate and now_ms >= traffic.outage_s * 1_000:
            return None, tried_ms
        first_ms = now_ms if first_ms is None else first_ms
        failure = Failure(
            attempt=len(tried_ms),
            first_failed_ms=first_ms,
            previous_delay_ms=previous_ms,
            error_class=traffic.error_class,
            status=traffic.status,
        )
        decision = decide(policy, failure, now_ms, rng)
        if isinstance(decision, DeadDecision):
            return decision.reason, tried_ms
        now_ms, previous_ms = decision.due_ms, decision.delay_ms


def _percentiles(values_ms: list[int]) -> dict[str, int] | None:
    """Median, 90th and 99th percentile by nearest rank; None without values."""
    if not values_ms:
        return None
    ordered = sorted(values_ms)
    return {f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 90, 99)}
