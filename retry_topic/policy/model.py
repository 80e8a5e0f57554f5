"""The retry policy as data: immutable, versioned, comparable, and checked as a whole when it is created.

A policy decides nothing itself; `decision.decide` reads it. It has two caps: on the number of attempts, and on the age
(the time since the first failure). Each of the two may be lifted, but not both: a message that is never given up stays
in the store forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from retry_topic.message import Message
from retry_topic.policy.checks import check_duration, check_integer, check_name, check_tuple
from retry_topic.policy.delays import Delay, Exponential, check_delay
from retry_topic.policy.fair import Fair
from retry_topic.policy.flow import Breaker, Budget, Rate, check_flow
from retry_topic.policy.once_per_key import Collapse, Debounce, check_once
from retry_topic.policy.rules import MAX_ATTEMPTS, Rule
from wheel_sched.duration import UNITS_MS
from wheel_sched.errors import ConfigError

MAX_VERSION = 999_999_999


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed message is retried, and when it is given up.

    Args:
        name: the policy's name. Defaults to "default".
        version: a number that its author raises with every change. Headers and explanations show which version decided.
            Defaults to 1.
        delay: how long to wait before a retry. Defaults to exponential from 1 s by 2 to 1 h with full jitter.
        max_attempts: most deliveries, including the first one; None lifts the cap. Defaults to 8.
        max_age_ms: a retry must be due within this time of the first failure; None lifts the cap. Defaults to
            604,800,000 (7 d, Kafka's own default retention).
        retry_after_max_ms: longest wait that a handler or a remote side may ask for. Defaults to 86,400,000 (1 d).
        rules: exceptions for some errors; the first match wins. Defaults to none.
        rate: most retries of the topic released per unit of time. Defaults to None: no limit.
        burst: most retries released at once after a pause. Defaults to 0: a second's worth.
        spread_ms: each due time is delayed by a random time up to this, so that equal due times separate. Defaults to
            0.
        budget: limits retries to a share of the first attempts. Defaults to None: no limit.
        breaker: holds back retries to a failing destination. Defaults to None: no circuit breaker.
        collapse: of several retries that wait under one key, only the first goes out. Defaults to None: all go out.
        debounce: of several retries that wait under one key, only the last goes out. Defaults to None: all go out.
        fair: shares the due messages between keys, such as tenants. Only for the policy of a single topic. Defaults to
            None: they go out by due time.
    """

    name: str = "default"
    version: int = 1
    delay: Delay = field(default_factory=Exponential)
    max_attempts: int | None = 8
    max_age_ms: int | None = 7 * UNITS_MS["d"]
    retry_after_max_ms: int = UNITS_MS["d"]
    rules: tuple[Rule, ...] = ()
    rate: Rate | None = None
    burst: int = 0
    spread_ms: int = 0
    budget: Budget | None = None
    breaker: Breaker | None = None
    collapse: Collapse | None = None
    debounce: Debounce | None = None
    fair: Fair | None = None

    def __post_init__(self) -> None:
        problems = check_name("name", self.name) + check_integer("version", self.version, 1, MAX_VERSION)
        problems += check_delay(self.delay) + check_tuple("rules", self.rules)
        if self.max_attempts is not None:
            problems += check_integer("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if self.max_age_ms is not None:
            problems += check_duration("max_age", self.max_age_ms)
        if self.max_attempts is None and self.max_age_ms is None:
            problems.append("expected max_attempts or max_age to be limited, got: both unlimited")
        problems += check_duration("retry_after_max", self.retry_after_max_ms)
        problems += check_flow(self.rate, self.burst, self.spread_ms, self.budget, self.breaker)
        problems += check_once(self.collapse, self.debounce)
        if self.fair is not None and not isinstance(self.fair, Fair):
            problems.append(f"expected fair to be a Fair or None, got: {self.fair!r}")
        if problems:
            raise ConfigError(problems)

    @property
    def ident(self) -> str:
        """`name@version`, the value of the `retry-policy` header."""
        return f"{self.name}@{self.version}"

    @property
    def once_per_key(self) -> Collapse | Debounce | None:
        """The setting `collapse` or `debounce`, if the policy has one."""
        return self.collapse or self.debounce

    @property
    def limited(self) -> bool:
        """Whether a rate, a budget or a circuit breaker may hold back retries that were claimed.

        A rate of a fair topic holds retries back before they are claimed.
        """
        return (self.rate is not None and self.fair is None) or self.budget is not None or self.breaker is not None

    def place_of(self, message: Message, *, by_key: bool) -> tuple[tuple[str, ...], str | None]:
        """The refs and the route that the fair key of a message gives its item; see `Fair.place_of`."""
        return ((), None) if self.fair is None else self.fair.place_of(message, by_key=by_key)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The policies of a service: a default and policies of single topics.

    Args:
        default: the policy of topics without their own policy. Defaults to `RetryPolicy()`.
        topics: policies by topic. Defaults to none.
    """

    default: RetryPolicy = field(default_factory=RetryPolicy)
    topics: Mapping[str, RetryPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if problems := [problem for topic in self.topics for problem in check_name("topic", topic)]:
            raise ConfigError(problems)
        # A read-only copy: a later change of the caller's dict must not change the set.
        object.__setattr__(self, "topics", MappingProxyType(dict(self.topics)))

    @property
    def least_attempts(self) -> int:
        """The lowest `max_attempts` of all policies and rules; `MAX_ATTEMPTS` if all are lifted."""
        policies = (self.default, *self.topics.values())
        caps = [policy.max_attempts for policy in policies]
        caps += [rule.max_attempts for policy in policies for rule in policy.rules]
        return min((cap for cap in caps if cap is not None), default=MAX_ATTEMPTS)

    def for_topic(self, topic: str) -> RetryPolicy:
        """The policy that decides about messages of `topic`."""
        return self.topics.get(topic, self.default)
