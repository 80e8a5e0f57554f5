"""Decides about a failed message: retry it at a time, or give it up. No side effects; the caller carries out the
decision.

The first of these steps that applies decides:

1. the handler's verdict "dead" -> dead;
2. the first matching rule says `dead`, and the handler did not ask for a retry -> dead;
3. cap by count: the failed delivery was the last one allowed -> dead;
4. the delay: what the handler's `Retry(after=...)` asks for, at most `retry_after_max`; else a draw from the policy's
   (or the rule's) delay, but at least the remote side's `Retry-After`, which has the same limit;
5. cap by age: the retry would be *due* later than `max_age` after the first failure -> dead (a wait for a retry that
   is not allowed any more is useless);
6. retry. The policy's `spread` adds a random delay up to its value, but not beyond the cap by age.

Invariants: `due_ms >= now_ms`; a first failure in the future counts as now, an attempt below 1 as 1, so no value of
a failure gives a message more attempts or time. Cost: O(rules). Any thread may decide; the caller owns the random
generator.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

from retry_topic.policy.delays import Draw
from retry_topic.policy.failure import Failure
from retry_topic.policy.model import RetryPolicy
from retry_topic.policy.rules import Match, first_match

DeadReason = Literal["verdict", "fatal", "max-attempts", "max-age"]


@dataclass(slots=True)
class Why:
    """The reasons of a decision. They are complete: `explain` needs no policy.

    Not frozen: each message makes one, and a frozen dataclass takes three times as long to create.

    Args:
        policy: `name@version` of the policy that decided.
        attempt: the delivery that failed, from 1.
        max_attempts: cap by count in force, None when lifted.
        now_ms: time of the decision.
        age_ms: time since the first failure.
        max_age_ms: cap by age in force, None when lifted.
        error_class: class of the error, "" when the handler raised none.
        verdict: what the handler asked for, None for nothing.
        match: the rule in force, if any.
        draw: the drawn delay; None when the handler asked for a delay, or no delay was computed (see `delay_ms`).
        asked_ms: wait that the handler or the remote side asked for, before the limit.
        bound_ms: the limit of `asked_ms`.
        delay_ms: the final delay; None when the verdict, a rule or the cap by count had decided before a delay was
            computed. If the cap by age decided: the delay that was too long.
        spread_ms: the part of the delay that the policy's spread added. Defaults to 0.
    """

    policy: str
    attempt: int
    max_attempts: int | None
    now_ms: int
    age_ms: int
    max_age_ms: int | None
    error_class: str = ""
    verdict: str | None = None
    match: Match | None = None
    draw: Draw | None = None
    asked_ms: int | None = None
    bound_ms: int = 0
    delay_ms: int | None = None
    spread_ms: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. The rule is given by number, name and what matched."""
        match = self.match
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in ("match", "draw")},
            "rule": match and {"number": match.number, "name": match.rule.name} | _matched(match),
            "draw": self.draw and asdict(self.draw),
        }


def _matched(match: Match) -> dict[str, Any]:
    return {"pattern": match.pattern, "subject": match.subject, "dead": match.rule.dead}


@dataclass(slots=True)
class RetryDecision:
    """Deliver the message again at `due_ms`, which is `delay_ms` after the decision."""

    due_ms: int
    delay_ms: int
    why: Why


@dataclass(slots=True)
class DeadDecision:
    """Give the message up and keep it as a dead letter."""

    reason: DeadReason
    why: Why


Decision = RetryDecision | DeadDecision


def decide(policy: RetryPolicy, failure: Failure, now_ms: int, rng: random.Random) -> Decision:
    """Decide what happens to a message after `failure`, at `now_ms`."""
    match = first_match(policy.rules, failure) if policy.rules else None
    return decide_by(match, policy, failure, now_ms, rng)


def decide_by(match: Match | None, policy: RetryPolicy, failure: Failure, now_ms: int, rng: random.Random) -> Decision:
    """Like `decide`, for a caller that already knows the matching rule. The decision has no reference to `failure`."""
    rule = match.rule if match else None
    max_attempts = rule.max_attempts if rule and rule.max_attempts is not None else policy.max_attempts
    max_age_ms = rule.max_age_ms if rule and rule.max_age_ms is not None else policy.max_age_ms
    attempt = max(1, failure.attempt)
    first_failed_ms = now_ms if failure.first_failed_ms is None else min(failure.first_failed_ms, now_ms)

    age_ms, asked_ms = now_ms - first_failed_ms, failure.retry_after_ms
    why = Why(policy.ident, attempt, max_attempts, now_ms, age_ms, max_age_ms, failure.error_class, failure.verdict)
    why.match, why.asked_ms, why.bound_ms = match, asked_ms, policy.retry_after_max_ms

    if failure.verdict == "dead":
        return DeadDecision("verdict", why)
    if rule and rule.dead and failure.verdict != "retry":
        return DeadDecision("fatal", why)
    if max_attempts is not None and attempt >= max_attempts:
        return DeadDecision("max-attempts", why)

    wait_ms = None if asked_ms is None else min(max(0, asked_ms), policy.retry_after_max_ms)
    if wait_ms is not None and failure.verdict == "retry":
        delay_ms = wait_ms
    else:
        delay = rule.delay if rule and rule.delay is not None else policy.delay
        why.draw = delay.draw(attempt, failure.previous_delay_ms, rng)
        delay_ms = max(why.draw.delay_ms, wait_ms or 0)
    why.delay_ms, due_ms = delay_ms, now_ms + delay_ms
    if max_age_ms is not None and due_ms > first_failed_ms + max_age_ms:
        return DeadDecision("max-age", why)
    if policy.spread_ms:
        room_ms = policy.spread_ms if max_age_ms is None else first_failed_ms + max_age_ms - due_ms
        why.spread_ms = min(rng.randint(0, policy.spread_ms), room_ms)
        delay_ms, due_ms = delay_ms + why.spread_ms, due_ms + why.spread_ms
        why.delay_ms = delay_ms
    return RetryDecision(due_ms, delay_ms, why)
