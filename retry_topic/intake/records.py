"""The records of the intake: values, no I/O.

A record is read (`IntakeRecord`), decided (`Decided`) and reported (`Taken`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from retry_topic.brokers.protocol import Delivery
from retry_topic.history import Attempt, releasing_shard
from retry_topic.message import Message
from retry_topic.message.body_codec import decode_body
from retry_topic.message.headers import HEADER_NAMES, MAX_COUNT, SPRING_NAMES, RetryState, content_print, retry_id
from retry_topic.policy import Decision, explain
from wheel_sched.errors import Rejected
from wheel_sched.store import ENDED, BatchCount, Found, Item

TAKEN_FOR_MS = 3_600_000  # how long the store remembers a queue's record: many times `idle_ms`


@dataclass(slots=True)
class Taken:
    """The result of the intake for one failed message, for logs, metrics and tests.

    Args:
        id: the id of this attempt in the delay store.
        topic: the topic on which the message first failed.
        attempt: the number of the delivery that failed.
        due_ms: when it is delivered again; None: never.
        dead: why it is a dead letter; None: it is none.
        decision: the policy's decision; None: there was nothing to decide.
        duplicate: whether the failure was already known, so that nothing was stored.
    """

    id: str
    topic: str
    attempt: int
    due_ms: int | None
    dead: str | None
    decision: Decision | None = None
    duplicate: bool = False

    @property
    def why(self) -> str:
        """The reasons in words."""
        return "it was taken in before" if self.decision is None else explain(self.decision)


@dataclass(slots=True)
class IntakeRecord:
    """A failed message as it was read. Nobody changes it. It is not frozen, because one is made for each message and a
    frozen dataclass takes three times as long to make.

    Args:
        delivery: the record of the retry topic.
        given: the state in its headers.
        state: the verified part of `given`, with an id.
        topic: the topic on which the message first failed.
        group: the owner of the retry topic.
        repeated: whether the record was handed out before.
    """

    delivery: Delivery
    given: RetryState
    state: RetryState
    topic: str
    group: str
    repeated: bool

    duplicate: ClassVar[bool] = False

    @property
    def own_id(self) -> str:
        """An id made of the record's place in the retry topic, for a record that can have no other id."""
        message, source = self.delivery.message, self.delivery.message.source
        place = (source.partition, source.offset) if source else (0, "")
        return retry_id(self.group, message.topic, *place)

    @property
    def gate(self) -> str | None:
        """The gate of its ordering key."""
        return self.state.gate

    @property
    def record_key(self) -> str:
        """The key under which the store remembers that this record of a queue was taken in."""
        return f"{self.own_id}#"


@dataclass(slots=True)
class Decided:
    """A record and the decision about it.

    Args:
        record: the record as it was read.
        state: the record's state, with the valid counts and id.
        head: the name of the message as the head of its ordering key.
        duplicate: the failure is already known: nothing is stored.
        ended: the record is a second copy of a message that has succeeded or was given up.
        due_ms: when the message is delivered again.
        dead: why it is a dead letter.
        decision: the policy's decision.
        now_ms: when it was decided.
        keep_until_ms: until when the store keeps its attempt count.
        item: the item to store.
        message: the message for the dead topic.
    """

    record: IntakeRecord
    state: RetryState
    head: str = ""
    duplicate: bool = False
    ended: bool = False
    due_ms: int | None = None
    dead: str | None = None
    decision: Decision | None = None
    now_ms: int = 0
    keep_until_ms: int = 0
    item: Item | None = None
    message: Message | None = None

    @property
    def member(self) -> str:
        """The id of this attempt in the delay store."""
        return f"{self.state.stem}.{self.state.attempt}"

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def delivery(self) -> Delivery:
        return self.record.delivery

    @property
    def gate(self) -> str | None:
        """The gate of its ordering key."""
        return self.state.gate

    @property
    def offset(self) -> int:
        """The offset of its record in the log."""
        source = self.delivery.message.source
        return -1 if source is None else int(source.offset)

    def is_known(self) -> None:
        """Mark it as known: nothing of it is stored."""
        self.duplicate, self.decision, self.due_ms, self.dead = True, None, None, None

    def is_in(self, found: Found | None) -> bool:
        """Whether the store's item with this id is the same message."""
        if found is None:
            return False
        try:
            return is_same(decode_body(found.body), self.delivery.message)
        except Rejected:
            return False

    @property
    def attempts_key(self) -> str:
        return attempts_key(self.state, self.delivery.message)

    def counts(self) -> tuple[BatchCount, BatchCount]:
        """The counts to store with a log batch: the store raises the attempts, and the replays must be equal."""
        state = self.state
        return (self.attempts_key, state.attempt, self.keep_until_ms), (replays_key(state), state.replays, None)

    def notes(self) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """The notes to store about a queue's record: its attempt count, and that the record was taken in."""
        counted = min(self.state.attempt, ENDED - 1)  # a count knows no greater number
        taken = self.record.record_key, 1, self.now_ms + TAKEN_FOR_MS
        return (self.attempts_key, counted, self.keep_until_ms), taken

    def taken(self) -> Taken:
        return Taken(self.member, self.topic, self.state.attempt, self.due_ms, self.dead, self.decision, self.duplicate)

    def attempt(self, shards: int | None, now_ms: int) -> Attempt:
        """The history row of the failed delivery. Without its start, the row does not say how late the delivery was."""
        state, started_ms, number = self.state, self.state.started_ms, self.state.attempt
        return Attempt(
            state.stem,
            self.topic,
            number,
            state.due_ms if started_ms is not None and number > 1 else None,
            next((ms for ms in (started_ms, state.last_failed_ms) if ms is not None), now_ms),
            "failed" if self.dead is None else "dead",
            state.error_class,
            releasing_shard(state, number, shards),
        )


@dataclass(slots=True)
class Known:
    """The store's answers about the records of one batch.

    Args:
        ask: True: read every count from the store. False: use the counts of the headers, because the store compares
            them when it stores the batch. Defaults to False.
        counts: by key: attempts, replays, and records that were taken in.
        items: by id, for records that are not the first of their attempt.
        origins: topics about which the broker has answered.
    """

    ask: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    items: dict[str, Found | None] = field(default_factory=dict)
    origins: set[str] = field(default_factory=set)


def attempts_key(state: RetryState, message: Message) -> str:
    """The key of a message's attempt count. Another payload under the same id is another message."""
    return f"{state.known_as}:{state.replays}:{content_print(message.value, message.key)}"


def replays_key(state: RetryState) -> str:
    """The key of the count of a message's replays."""
    return f"{state.known_as}!"


def with_replays(state: RetryState, replays: int) -> RetryState:
    """The state of a failed message with this replay count."""
    attempt = max(1, state.attempt)
    if (state.attempt, state.replays) == (attempt, replays):
        return state
    return replace(state, attempt=attempt, replays=replays)


def next_number(state: RetryState, key: str, count: int, shared: dict[str, int]) -> RetryState:
    """The state with the next attempt number of an id that several records may share. It follows the store's count and
    the earlier records."""
    shared[key] = max(count, shared.get(key, 0)) + 1
    return replace(state, attempt=min(shared[key], MAX_COUNT))


def is_copy(state: RetryState, replays: int, count: int) -> bool:
    """Whether a failure is that of a second copy: the store has counted its attempt, or the message has ended.

    Some consumers forward a failed message without raising its attempt number. So only the number of a consumer that
    counts is used: such a consumer says when the attempt started, or that the message is dead.

    Args:
        state: the state in the headers.
        replays: the message's replay count in the store.
        count: the message's attempt count in the store.
    """
    if count == ENDED:
        return True
    if state.unsigned:
        return False
    counting = (state.started_ms is not None or state.verdict == "dead") and state.attempt > 0
    return counting and (state.replays < replays or (state.replays == replays and count >= state.attempt))


def is_same(one: Message, other: Message) -> bool:
    """Whether two messages are of the same failure: payload, key and all headers except ours are equal."""
    same = one.value == other.value if one.reference is None else one.reference.fits(other.value)
    return same and (one.key, _others(one)) == (other.key, _others(other))


def _others(message: Message) -> tuple[tuple[str, bytes], ...]:
    return tuple(pair for pair in message.headers if pair[0] not in HEADER_NAMES | SPRING_NAMES)
