"""How a consumer behaves, and what it did."""

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
        idle_ms: after this another consumer takes over what a dead one had; while a handler works, its message is
            kept alive. Defaults to 30 s.
        crash_cap: consumers that may die over one message before it is dead-lettered as poison. Defaults to 5.
        secrets: for signed headers, as in `ServiceConfig`: the first one signs, any verifies. Defaults to none.
        ordering: "key" handles the messages of a key one after the other, and parks those behind one that failed
            until it succeeds or is given up; all consumers of the group must agree. Defaults to "none".
        parked_cap: messages that may be parked behind one; above it the consumer keeps them unsettled and, when its
            hands are full, reads no more. Defaults to 10,000.
        reports: tell the store how attempts ended, once a second, as a policy's `budget` and `breaker` need.
            Defaults to False.
        destination: header whose value names what an attempt was for, as the policy's `breaker.by`. Defaults to "":
            the topic.
        history: how many attempts the store keeps, as in `ServiceConfig`: a consumer adds those that went through after
            a failure, in the background. Defaults to 0: none.
        group_topics: the group's own, as in `ServiceConfig`. Defaults to those named after it.
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
    """What is wrong with a tuple of secrets; a problem never quotes one."""
    if not isinstance(secrets, tuple) or not all(isinstance(secret, bytes) for secret in secrets):
        return [f"expected secrets to be a tuple of bytes, got: {type(secrets).__name__}"]
    return [f"expected a secret of at least 16 bytes, got: {len(one)}" for one in secrets if len(one) < 16]


@dataclass(slots=True)
class ConsumerStats:
    """Counters since the start; read from any thread.

    `acknowledged`, `retried` and `dead` count what is settled at the broker; `poison` and `expired` are reasons of
    the dead. `parked` went into a line behind their key's head. `in_flight` is how many are being handled or settled
    now.
    """

    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0
    in_flight: int = 0
    poison: int = 0
    expired: int = 0
