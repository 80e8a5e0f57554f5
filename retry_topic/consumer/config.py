"""The settings of a consumer, and its counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from wheel_sched.errors import ConfigError
from wheel_sched.store.members.announcer import CONSUMER_EVERY_MS, every_problem


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a `Consumer`.

    Args:
        concurrency: messages handled at the same time. Defaults to 8.
        idle_ms: after this time another consumer takes over the messages of a dead consumer; on Kafka after at least
            6 s. A living consumer renews its messages while handlers work on them. Defaults to 30 s.
        crash_cap: consumers that may die over one message before it is dead-lettered as poison. Defaults to 5.
        secrets: for signed headers, as in `ServiceConfig`: the first one signs, any of them verifies. Defaults to none.
        ordering: "key" handles the messages of a key one after the other. Messages behind a failed one are parked until
            it succeeds or is given up. All consumers of the group must have the same value. Defaults to "none".
        parked_cap: the number of messages that may be parked behind one failed message. Further messages stay
            unsettled. The consumer stops reading a topic when too many of its messages are unsettled. Defaults to
            10,000.
        reports: whether the consumer reports the results of attempts to the store, about once a second. A policy's
            `budget` and `breaker` and the `max_in_flight` of fair keys need these reports. Defaults to False.
        destination: the header whose value names the destination of an attempt, as in the policy's `breaker.by`.
            Defaults to "": the topic.
        history: how many attempts the store keeps, as in `ServiceConfig`. The consumer adds successes after a failure,
            in the background. Defaults to 0: no history.
        group_topics: the group's own topics, as in `ServiceConfig`. Defaults to those named after the group.
        announce_ms: how often the consumer announces itself in the store, for `wheel-sched ps` and `doctor`. 0: never.
            Defaults to 5 s.
        keep_tracebacks: whether a failed message keeps the traceback of its last failed attempt, until it is delivered
            again. It has source lines of your code and no values of variables, at most 4 KiB. Defaults to True.
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
    announce_ms: int = CONSUMER_EVERY_MS
    keep_tracebacks: bool = True

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "idle_ms": 100, "crash_cap": 1, "parked_cap": 1, "history": 0}
        problems = settings_problems(self, least, {"ordering": ("none", "key")})
        for name in ("reports", "keep_tracebacks"):
            if type(getattr(self, name)) is not bool:
                problems.append(f"expected {name} to be True or False, got: {getattr(self, name)!r}")
        if not isinstance(self.destination, str):
            problems.append(f"expected destination to be the name of a header, got: {self.destination!r}")
        if problems:
            raise ConfigError(problems)


def settings_problems(config: Any, least: Mapping[str, int], choices: Mapping[str, tuple[str, str]]) -> list[str]:
    """The problems of settings that consumers and services have in common, one text for each problem.

    `secrets`, `group_topics` and `announce_ms` are always checked.

    Args:
        config: a `ConsumerConfig` or a `ServiceConfig`.
        least: the names of settings that must be whole numbers, each with its least value.
        choices: the names of settings with two legal values, each with these values.
    """
    problems = [
        f"expected {name} to be a whole number from {low} up, got: {getattr(config, name)!r}"
        for name, low in least.items()
        if type(getattr(config, name)) is not int or getattr(config, name) < low
    ]
    problems += [
        f"expected {name} to be {one!r} or {other!r}, got: {getattr(config, name)!r}"
        for name, (one, other) in choices.items()
        if getattr(config, name) not in (one, other)
    ]
    if not isinstance(config.group_topics, GroupTopics):
        problems.append(f"expected group_topics to be GroupTopics, got: {config.group_topics!r}")
    if problem := every_problem("announce_ms", config.announce_ms):
        problems.append(problem)
    return problems + secrets_problems(config.secrets)


def secrets_problems(secrets: object) -> list[str]:
    """The problems of a setting `secrets`, one text for each. The texts never quote a secret."""
    if not isinstance(secrets, tuple) or not all(isinstance(secret, bytes) for secret in secrets):
        return [f"expected secrets to be a tuple of bytes, got: {type(secrets).__name__}"]
    return [f"expected a secret of at least 16 bytes, got: {len(one)}" for one in secrets if len(one) < 16]


@dataclass(slots=True)
class ConsumerStats:
    """Counters since the start. Any thread may read them.

    `acknowledged`, `retried` and `dead` count deliveries that are settled at the broker; `poison` and `expired` are
    reasons for `dead`. `parked` counts messages that were parked behind the failed message of their key. `in_flight` is
    the number of deliveries that are being handled or settled now.
    """

    delivered: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0
    in_flight: int = 0
    poison: int = 0
    expired: int = 0
