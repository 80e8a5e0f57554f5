"""The records of the intake: how they are read, which policy decides about them, and how they are written. No I/O.

A record is read (`IntakeRecord`), decided (`Decided`) and reported (`Taken`). `Rules` reads records and writes the
items of decided ones. The id of an attempt in the store is `<retry id>[r<replay>].<attempt>`.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from retry_topic.brokers.protocol import Delivery
from retry_topic.history import Attempt, releasing_shard
from retry_topic.intake.taken import Taken
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.fingerprint import fingerprint
from retry_topic.message.headers import (
    HEADER_NAMES,
    SPRING_NAMES,
    HeaderRewriter,
    RetryState,
    attempts_key,
    content_id,
    lighter,
    read,
    replays_key,
    retry_id,
    sign,
    verify,
    with_spring,
    write,
)
from retry_topic.message.headers.failed_attempts import FailedAttempt, with_failed_attempt
from retry_topic.message.headers.state import FIELDS
from retry_topic.policy import Decision, PolicySet, RetryDecision, RetryPolicy, chosen_by
from retry_topic.policy.once_per_key import Collapse, Debounce, ref_and_key
from wheel_sched.errors import Rejected
from wheel_sched.store import ENDED, BatchCount, Found, Item
from wheel_sched.store.once_per_key import route_of as route_of_key
from wheel_sched.store.ordering import ref_of, route_of

DAY_MS = 86_400_000
MAX_BODY_BYTES = 8 * 1024 * 1024  # a larger body becomes a dead letter: it would block the server on every step
TAKEN_FOR_MS = 3_600_000  # how long the store remembers a queue's record: many times `idle_ms`
_MAX_NAME = 249  # most characters of a topic or ref in the store; in a header one more is allowed
_fingerprint = lru_cache(maxsize=1024)(fingerprint)  # many messages fail with one error

# the fields that the intake itself writes, whatever the record's headers say
_SHARED = ("policy", "max_attempts", "error_fingerprint", "original_topic", "consumer_group")
_OWN = ("started_ms", "due_ms", "delay_ms", "signature", "process", "failed_attempts")
_rewrite = HeaderRewriter(_SHARED, _OWN)
REWRITTEN = frozenset(FIELDS[name].header for name in (*_SHARED, *_OWN))


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
        """An id made of the record's partition and offset in the retry topic, for a record without a usable id."""
        message, source = self.delivery.message, self.delivery.message.source
        place = (source.partition, source.offset) if source else (0, "")
        return retry_id(self.group, message.topic, *place)

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
        head: the id base that the record came with: its name as the head of an ordering key.
        duplicate: the failure is already known: nothing is stored.
        ended: the record is a second copy of a message that has succeeded.
        due_ms: when the message is delivered again.
        dead: why it is a dead letter.
        decision: the policy's decision.
        now_ms: when it was decided.
        keep_until_ms: epoch ms until which the store keeps the message's attempt count.
        item: the item to store.
        message: the message for the dead topic.
        superseded_by: the id of the retry that goes out in place of this one. The store did not store this one.
        replaced: the id of the waiting retry whose place this one has taken.
    """

    record: IntakeRecord
    state: RetryState
    head: str = field(init=False)
    duplicate: bool = False
    ended: bool = False
    due_ms: int | None = None
    dead: str | None = None
    decision: Decision | None = None
    now_ms: int = 0
    keep_until_ms: int = 0
    item: Item | None = None
    message: Message | None = None
    superseded_by: str | None = None
    replaced: str | None = None

    def __post_init__(self) -> None:
        self.head = self.state.id_base

    @property
    def member(self) -> str:
        """The id of this attempt in the delay store."""
        return f"{self.state.id_base}.{self.state.attempt}"

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def delivery(self) -> Delivery:
        return self.record.delivery

    @property
    def key_lock(self) -> str | None:
        """The lock of the message's ordering key; None without such a key."""
        return self.state.key_lock

    @property
    def offset(self) -> int:
        """The offset of the record in the log."""
        source = self.delivery.message.source
        return -1 if source is None else int(source.offset)

    def mark_known(self) -> None:
        """Mark the failure as known: nothing of it is stored."""
        self.duplicate, self.decision, self.due_ms, self.dead = True, None, None, None

    def is_in(self, found: Found | None) -> bool:
        """Whether the store's item `found` holds the same message."""
        if found is None:
            return False
        try:
            return is_same(decode_body(found.body), self.delivery.message)
        except Rejected:
            return False

    def counts(self) -> tuple[BatchCount, BatchCount]:
        """The message's attempt count and replay count, to store with a log batch.

        The store refuses the batch if it has already counted this attempt, or has another replay count.
        """
        state, key = self.state, attempts_key(self.state, self.delivery.message)
        return (key, state.attempt, self.keep_until_ms), (replays_key(state.known_as), state.replays, None)

    def notes(self) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """The notes to store about a queue's record: its attempt count, and that the record was taken in."""
        key = attempts_key(self.state, self.delivery.message)
        counted = min(self.state.attempt, ENDED - 1)  # a count knows no greater number
        return (key, counted, self.keep_until_ms), (self.record.record_key, 1, self.now_ms + TAKEN_FOR_MS)

    def taken(self) -> Taken:
        due_ms = self.due_ms if self.superseded_by is None else None
        number, decision, duplicate = self.state.attempt, self.decision, self.duplicate
        return Taken(self.member, self.topic, number, due_ms, self.dead, decision, duplicate, self.superseded_by)

    def attempt(self, shards: int | None, now_ms: int) -> Attempt:
        """The history row of the failed delivery. It has no due time if the start of the handler is not known."""
        state, started_ms, number = self.state, self.state.started_ms, self.state.attempt
        return Attempt(
            state.id_base,
            self.topic,
            number,
            state.due_ms if started_ms is not None and number > 1 else None,
            next((ms for ms in (started_ms, state.last_failed_ms) if ms is not None), now_ms),
            "superseded" if self.superseded_by else "failed" if self.dead is None else "dead",
            state.error_class,
            releasing_shard(state, number, shards),
        )


@dataclass(slots=True)
class Known:
    """The store's answers about the records of one batch.

    Args:
        ask: whether to read every count from the store. Otherwise the plan uses the counts of the headers, and the
            store compares them when it stores the batch. Defaults to False.
        counts: by key: counts of attempts, counts of replays, and 1 for each record that was taken in.
        items: by id: the store's items of attempts that were already counted; None for an item that is gone.
        origins: topics about which the broker has answered.
    """

    ask: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    items: dict[str, Found | None] = field(default_factory=dict)
    origins: set[str] = field(default_factory=set)


def is_same(one: Message, other: Message) -> bool:
    """Whether two messages are of the same failure: payload, key and all headers except ours are equal."""

    def others(message: Message) -> list[tuple[str, bytes]]:
        return [pair for pair in message.headers if pair[0] not in HEADER_NAMES | SPRING_NAMES]

    same = one.value == other.value if one.reference is None else one.reference.fits(other.value)
    return same and one.key == other.key and others(one) == others(other)


@dataclass(slots=True)
class Rules:
    """The settings of one intake that decide about its records.

    Args:
        group: the group that owns the retry topic.
        policies: the retry policies.
        redelivery_topic: the topic for due messages.
        from_log: whether the records come from a log. Then the store takes in batches with positions, and compares
            attempt counts.
        origins: the topics to which due messages may return. None: all go to `redelivery_topic`.
        spring: whether Spring Kafka's headers are written as well.
        secrets: any of them verifies signatures; the first one signs. Without secrets, headers are not signed.
        reference_above: a payload of more bytes than this stays in the retry topic. 0: the store holds all payloads.
        rng: the source of randomness for delays.
        route_fair: whether all messages of a limited fair key must lie in one shard. Defaults to False.
    """

    group: str
    policies: PolicySet
    redelivery_topic: str
    from_log: bool
    origins: Container[str] | None
    spring: bool
    secrets: Sequence[bytes]
    reference_above: int
    rng: random.Random
    route_fair: bool = False

    def read(self, delivery: Delivery, *, again: bool = False) -> IntakeRecord:
        """Read a record of the retry topic, with the verified part of its headers.

        Args:
            delivery: the record.
            again: whether it may have been stored before. Defaults to False.
        """
        message, group = delivery.message, self.group
        state = given = read(message.headers)
        if self.secrets:
            state = verify(state, message, self.secrets, group)
            if not state.unsigned and state.id == content_id(group, message.value, message.key):
                state = replace(state, unsigned=True)  # an intake made the id of the payload: equal records share it
        record = IntakeRecord(delivery, given, state, "", group, again or delivery.deliveries > 1)
        if state.id is None:
            record.state = replace(state, id=record.own_id, published_ms=None)
        elif state.published_ms is not None and state.consumer_group != group:
            record.state = replace(state, consumer_group=group)
        record.topic = record.state.original_topic or message.topic
        return record

    def policy_of(self, one: Decided) -> RetryPolicy:
        """The policy of the record's topic. For an unsigned record, the lowest `max_attempts` of all policies holds."""
        policy = self.policies.for_topic(one.record.topic)
        if one.state.unsigned and one.state.attempt >= (least := self.policies.least_attempts):
            return replace(policy, max_attempts=least, rules=())
        return policy

    def once_per_key(self, one: Decided) -> Collapse | Debounce | None:
        """The setting `collapse` or `debounce` of the record's topic."""
        return self.policies.for_topic(one.record.topic).once_per_key

    def returns_to_origin(self, one: Decided) -> bool:
        """Whether the message may return to the topic on which it first failed, if that topic is one of `origins`.

        Messages with an ordering key and unsigned messages may not.
        """
        record, state = one.record, one.state
        elsewhere = record.topic != record.delivery.message.topic
        return self.origins is not None and elsewhere and state.key_lock is None and not state.unsigned

    def write(self, one: Decided) -> None:
        """Make the item that the store holds until the message is due.

        A message that the store refuses, or whose body is larger than `MAX_BODY_BYTES`, becomes a dead letter.
        """
        record, state, decision = one.record, one.state, one.decision
        topic, message, secrets = record.topic, record.delivery.message, self.secrets
        policy = (None, None) if decision is None else (decision.why.policy, decision.why.max_attempts)
        delay_ms = decision.delay_ms if isinstance(decision, RetryDecision) else state.delay_ms
        signature = None
        if secrets:
            named = replace(state, original_topic=topic, consumer_group=self.group)
            signature = sign(named, message, secrets[0]).signature
        shared = (*policy, fingerprint_of(one), topic, self.group)
        own = (None, one.due_ms, delay_ms, signature, None, _failed_attempts(one))
        if state is record.given and not self.spring:
            headers = _rewrite(message.headers, state, shared, own)
        else:
            written = replace(state, **dict(zip((*_SHARED, *_OWN), shared + own, strict=True)))
            headers = write(message.headers, written)
            if self.spring:
                headers = with_spring(headers, written, dead=one.dead is not None)
        to_origin = self.origins is not None and self.returns_to_origin(one) and topic in self.origins
        sent = message.to(topic if to_origin else self.redelivery_topic, headers)
        stored = sent
        if self.reference_above and len(sent.value) > self.reference_above and message.source is not None:
            stored = sent.by_reference(message.source)
        refs, route = self.policies.for_topic(topic).place_of(message, by_key=self.route_fair)
        if state.key_lock is None and one.dead is None and (once := ref_and_key(self.once_per_key(one), message)):
            refs, route = (*refs, once[0]), route or route_of_key(topic[:_MAX_NAME], once[1])
        one.item, problem = _item(one, stored, refs, route)
        while problem and (smaller := lighter(stored)) is not None:
            stored = smaller
            one.item, problem = _item(one, stored, refs, route)
        if one.dead is None and problem:
            one.due_ms, one.dead = None, problem
        one.message = None if one.dead is None else sent


def _failed_attempts(one: Decided) -> str | None:
    """The lines about the message's failed attempts, with a line for the attempt of `one`."""
    state, decision = one.state, one.decision
    if decision is None:
        return state.failed_attempts
    return with_failed_attempt(
        state.failed_attempts,
        FailedAttempt(
            state.attempt,
            one.now_ms if state.last_failed_ms is None else state.last_failed_ms,
            state.process,
            state.error_class,
            state.error_message,
            decision.delay_ms if isinstance(decision, RetryDecision) else None,
            "unknown-origin" if one.dead == "unknown-origin" else chosen_by(decision),
        ),
    )


def fingerprint_of(one: Decided) -> str:
    """The fingerprint of the record's error: the one in its headers, or else one made of the error's class and text."""
    state = one.state
    return state.error_fingerprint or _fingerprint(state.error_class or "", state.error_message or "")


def _item(one: Decided, message: Message, refs: tuple[str, ...], route: str | None) -> tuple[Item, str | None]:
    """The item, and why the store must not hold it until it is due; None if the store may.

    If the store would refuse the item, the returned item has no body: only the dead topic keeps the message.
    """
    topic, key_lock = one.record.topic[:_MAX_NAME], one.state.key_lock
    refs, route = (refs, route) if key_lock is None else ((*refs, ref_of(key_lock)), route_of(key_lock))
    try:
        item = Item(one.member, one.due_ms, encode_body(message), topic, refs, route)
        item.check()
    except Rejected as error:
        return Item(one.member, None, b"", topic, refs, route), f"unstorable: {error}"
    return item, "oversized" if len(item.body) > MAX_BODY_BYTES else None


def dead_letter(one: Decided, now_ms: int) -> tuple[Item, str]:
    """The dead letter that the store keeps, and why the message died."""
    state = one.state
    refs = (f"fp:{fingerprint_of(one)}"[:_MAX_NAME], *(one.item.refs if one.item is not None else ()))
    error = f"{state.error_class or 'no error'}: {state.error_message or ''}".strip(": ")
    item = one.item or Item(one.member, now_ms, b"", one.record.topic[:_MAX_NAME])
    return replace(item, due_ms=now_ms, refs=refs), f"{one.dead}: {error}"
