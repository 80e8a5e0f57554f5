"""The settings of a consumer, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from wheel_sched.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a `Consumer`.

    Args:
        concurrency: messages handled at the same time. Defaults to 8.
        idle_ms: after this time another consumer takes over the messages of a dead one. While a handler works, its
            message is kept alive. Defaults to 30 s.
        crash_cap: consumers that may die over one message before it is dead-lettered as poison. Defaults to 5.
        secrets: for signed headers, as in `ServiceConfig`: the first one signs, any of them verifies. Defaults to none.
        ordering: "key" handles the messages of a key one after the other. Messages behind a failed one are parked until
            it succeeds or is given up. All consumers of the group must have the same value. Defaults to "none".
        parked_cap: the number of messages that may be parked behind one. Further messages stay unsettled. The consumer
            stops reading when its read-ahead is full of unsettled messages. Defaults to 10,000.
        reports: report the results of attempts to the store once a second. A policy's `budget` and `breaker` need them.
            Defaults to False.
        destination: the header whose value names the destination of an attempt, as in the policy's `breaker.by`.
            Defaults to "": the topic.
        history: how many attempts the store keeps, as in `ServiceConfig`. The consumer adds successes after a failure,
            in the background. Defaults to 0: no history.
        group_topics: the group's own topics, as in `ServiceConfig`. Defaults to those named after the group.
    """

    concurrency: int = 8
    idle_ms: int = 30_000
    crash_cap: int = 5
    secrets: tuple[bytes, ...] = ()
    ordering: Literal["none", "key"] = "none"
    parked_cap: int = 10_000
    reports: bool = False
    destination: str = ""
    history: int = 0
    group_topics: GroupTopics = NAMED_AFTER_GROUP

    def __post_init__(self) -> None:
        problems = [
            f"expected {name} to be a whole number from {least} up, got: {value!r}"
            for name, value, least in (
                ("concurrency", self.concurrency, 1),
                ("idle_ms", self.idle_ms, 100),
                ("crash_cap", self.crash_cap, 1),
                ("parked_cap", self.parked_cap, 1),
                ("history", self.history, 0),
            )
            if type(value) is not int or value < least
        ]
        if self.ordering not in ("none", "key"):
            problems.append(f"expected ordering to be 'none' or 'key', got: {self.ordering!r}")
        if type(self.reports) is not bool:
            problems.append(f"expected reports to be True or False, got: {self.reports!r}")
        if not isinstance(self.destination, str):
            problems.append(f"expected destination to be the name of a header, got: {self.destination!r}")
        if not isinstance(self.group_topics, GroupTopics):
            problems.append(f"expected group_topics to be GroupTopics, got: {self.group_topics!r}")
        problems += secrets_problems(self.secrets)
        if problems:
            raise ConfigError(problems)


def secrets_problems(secrets: object) -> list[str]:
    """The problems of a tuple of secrets; they never quote a secret."""
    if not isinstance(secrets, tuple) or not all(isinstance(secret, bytes) for secret in secrets):
        return [f"expected secrets to be a tuple of bytes, got: {type(secrets).__name__}"]
    return [f"expected a secret of at least 16 bytes, got: {len(one)}" for one in secrets if len(one) < 16]


@dataclass(slots=True)
class ConsumerStats:
    """Counters since the start; read from any thread.

    `acknowledged`, `retried` and `dead` count deliveries that are settled at the broker; `poison` and `expired` are
    reasons for `dead`. `parked` counts messages that were parked behind their key's head. `in_flight` is the number of
    deliveries that are being handled or settled now.
    """

    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0
    in_flight: int = 0
    poison: int = 0
    expired: int = 0
