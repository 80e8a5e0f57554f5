"""The retry state of a message: the typed form of its retry headers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from retry_topic.headers.identity import retry_id

MAX_COUNT = 1_000_000
"""Greatest attempt or replay count there is; larger claims are clamped to it, which is past every sensible cap."""

_GATE = re.compile(r"[A-Za-z0-9_-]{12}\.[A-Za-z0-9_-]{16}")

Dialect = Literal["none", "own", "spring", "smallrye", "pulsar"]


@dataclass(slots=True, unsafe_hash=True)
class RetryState:
    """What the headers of a message say. Every field has a header of its own, see `names.FIELDS`.

    A value that nobody changes, `dataclasses.replace` makes another. It is not frozen because one is made for every
    message, and freezing makes that three times as dear.

    `attempt` counts the deliveries that have *failed*: 0 on a fresh message, 1 in the retry topic after the first
    failure; the delivery that is running is number `attempt + 1`.

    Args:
        id: `retry_id` of the message, the same for all its attempts.
        attempt: failed deliveries so far. Defaults to 0.
        max_attempts: cap by count when it last failed; told to consumers, never used to decide.
        first_failed_ms: epoch ms of the first failure.
        last_failed_ms: epoch ms of the last failure.
        due_ms: epoch ms of the next (or, on a delivered message, this) attempt; in the retry topic that of the attempt
            that failed.
        started_ms: epoch ms when the attempt that failed was started, for reports.
        policy: `name@version` of the policy that decided.
        delay_ms: the delay before this delivery.
        verdict: what the handler asked for by return value.
        retry_after_ms: wait asked for by the handler or the remote side.
        original_topic: where the message first failed.
        original_partition: its partition there.
        original_offset: its offset there, as text because brokers disagree.
        original_timestamp_ms: its timestamp there.
        consumer_group: the group whose handler failed.
        error_class: fully qualified class of the last error.
        error_mro: its parent classes, nearest first.
        error_message: its text.
        error_fingerprint: its group.
        error_status: its HTTP status.
        replays: how often it was replayed from the dead letters. Defaults to 0.
        ordering: the gate of its ordering key, see `wheel_sched.store.key_gates`; None = it is not ordered.
        published_ms: epoch ms when it was published for later, under the id it has; None: its id was made of its place.
        signature: HMAC over what decides and over the payload, see `signature`.
        oddities: what was wrong with the headers when they were read; says nothing about the state, so it is not
            compared and not written. Defaults to none.
        dialect: whose headers it was read from, "none" when there were none; not compared and not written.
        unsigned: no secret of ours has signed what it says: its id is made of what it carries, and the store counts its
            attempts; not compared and not written.
    """

    id: str | None = None
    attempt: int = 0
    max_attempts: int | None = None
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    policy: str | None = None
    delay_ms: int | None = None
    verdict: Literal["retry", "dead"] | None = None
    retry_after_ms: int | None = None
    original_topic: str | None = None
    original_partition: int | None = None
    original_offset: str | None = None
    original_timestamp_ms: int | None = None
    consumer_group: str | None = None
    error_class: str | None = None
    error_mro: tuple[str, ...] = ()
    error_message: str | None = None
    error_fingerprint: str | None = None
    error_status: int | None = None
    replays: int = 0
    ordering: str | None = None
    published_ms: int | None = None
    signature: str | None = None
    oddities: tuple[str, ...] = field(default=(), compare=False)
    dialect: Dialect = field(default="none", compare=False)
    unsigned: bool = field(default=False, compare=False)

    @property
    def known_as(self) -> str:
        """What the store knows the message by.

        That is its id, of which the group is a part. An id that was given when the message was published is every
        group's that reads the topic, and may be given again later: it gets a part that is this group's and this
        message's alone.
        """
        if self.published_ms is None:
            return f"{self.id}"
        return f"{f'{self.id}'[:64]}~{retry_id(self.consumer_group or '', f'{self.id}', 0, f'{self.published_ms}')[:8]}"

    @property
    def stem(self) -> str:
        """What the ids of all its attempts in the delay store begin with; another one after each replay."""
        return f"{self.known_as}r{self.replays}" if self.replays else self.known_as

    @property
    def passed_the_store(self) -> bool:
        """Whether it was released by a dispatcher: a second copy of it may be on its way."""
        return self.id is not None and bool(self.attempt or self.replays or self.published_ms is not None)

    @property
    def gate(self) -> str | None:
        """`ordering`, when it can be a gate: headers are not trusted."""
        return self.ordering if self.ordering is not None and _GATE.fullmatch(self.ordering) else None
