"""The rules of one intake: how a record is read, which policy decides about it, and how it is written. No I/O.

Attempt ids are `<retry id>[r<replay>].<attempt>`.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from retry_topic.brokers.protocol import Delivery
from retry_topic.intake.records import Decided, IntakeRecord
from retry_topic.message import Message
from retry_topic.message.body_codec import encode_body
from retry_topic.message.fingerprint import fingerprint
from retry_topic.message.headers import HeaderRewriter, content_id, read, sign, verify, with_spring, write
from retry_topic.message.headers.fields import FIELDS
from retry_topic.policy import PolicySet, RetryDecision, RetryPolicy
from wheel_sched.errors import Rejected
from wheel_sched.store import Item
from wheel_sched.store.ordering import ref_of, route_of

DAY_MS = 86_400_000
MAX_BODY_BYTES = 8 * 1024 * 1024  # a larger body becomes a dead letter: it would block the server on every step
_MAX_NAME = 249  # characters of a topic or ref in the store; a header may carry one more

# the fields that the intake writes, independently of the headers
_SHARED = ("policy", "max_attempts", "error_fingerprint", "original_topic", "consumer_group")
_OWN = ("started_ms", "due_ms", "delay_ms", "signature")
_rewrite = HeaderRewriter(_SHARED, _OWN)
REWRITTEN = frozenset(FIELDS[name].header for name in (*_SHARED, *_OWN))

_fingerprint = lru_cache(maxsize=1024)(fingerprint)  # the same error comes many times


@dataclass(slots=True)
class Rules:
    """The settings of one intake that decide about its records.

    Args:
        group: the group whose failed messages these are.
        policies: the retry policies.
        redelivery_topic: the topic for due messages.
        from_log: whether the records come from a log. Then the store takes in each batch with its position, and
            compares the counts of the headers.
        origins: the topics to which due messages may return. Defaults to None: all go to `redelivery_topic`.
        spring: whether Spring Kafka's headers are written as well. Defaults to False.
        secrets: any of them verifies signatures; the first one signs. Defaults to none: headers are not signed.
        reference_above: a payload of more bytes stays in the retry topic. Defaults to 0: none does.
        rng: the source of randomness for delays.
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

    def read(self, delivery: Delivery, *, again: bool = False) -> IntakeRecord:
        """The record with the verified part of its headers.

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
        """The policy of the topic. An unsigned record gets at most the least cap of all policies."""
        policy = self.policies.for_topic(one.record.topic)
        if one.state.unsigned and one.state.attempt >= (least := self.policies.least_attempts):
            return replace(policy, max_attempts=least, rules=())
        return policy

    def returns_to_origin(self, one: Decided) -> bool:
        """Whether the message returns to the topic on which it first failed: that topic is one of `origins`."""
        record, state = one.record, one.state
        elsewhere = record.topic != record.delivery.message.topic
        return self.origins is not None and elsewhere and state.gate is None and not state.unsigned

    def write(self, one: Decided) -> None:
        """Make the item that the store holds. A message that cannot wait becomes a dead letter."""
        record, state, decision = one.record, one.state, one.decision
        topic, message, secrets = record.topic, record.delivery.message, self.secrets
        policy = (None, None) if decision is None else (decision.why.policy, decision.why.max_attempts)
        delay_ms = decision.delay_ms if isinstance(decision, RetryDecision) else state.delay_ms
        signature = None
        if secrets:
            signature = sign(
                replace(state, original_topic=topic, consumer_group=self.group), message, secrets[0]
            ).signature
        shared = (*policy, fingerprint_of(one), topic, self.group)
        own = (None, one.due_ms, delay_ms, signature)
        if state is record.given and not self.spring:
            headers = _rewrite(message.headers, state, shared, own)
        else:
            written = replace(state, **dict(zip((*_SHARED, *_OWN), shared + own, strict=True)))
            headers = write(message.headers, written)
            if self.spring:
                headers = with_spring(headers, written, dead=one.dead is not None)
        to_origin = self.origins is not None and self.returns_to_origin(one) and topic in self.origins
        sent = message.to(topic if to_origin else self.redelivery_topic, headers)
        stored, source = sent, message.source
        if self.reference_above and len(stored.value) > self.reference_above and source is not None:
            stored = stored.by_reference(source)
        one.item, problem = _item(one, stored)
        if one.dead is None and problem:
            one.due_ms, one.dead = None, problem
        one.message = None if one.dead is None else sent


def fingerprint_of(one: Decided) -> str:
    """The fingerprint of the error."""
    state = one.state
    return state.error_fingerprint or _fingerprint(state.error_class or "", state.error_message or "")


def _item(one: Decided, message: Message) -> tuple[Item, str | None]:
    """The item, and the reason if the store cannot let it wait. The dead topic keeps a message that the store cannot
    hold."""
    topic, gate = one.record.topic[:_MAX_NAME], one.state.gate
    refs, route = ((), None) if gate is None else ((ref_of(gate),), route_of(gate))
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
