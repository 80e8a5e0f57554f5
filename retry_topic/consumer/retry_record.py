"""Turns a failure into the record for the group's retry topic. Pure functions, but `failed_message` reads the clock,
the host name and the process id.

The retry headers of a message may be about another group or another message: several groups can read one topic, and a
handler can copy headers onto another message. Headers that are not about this group and this message are ignored.
Otherwise two messages would share one id, and one of them would count as a repeat of the other. Only the attempt count
and the first failure of another group's retry are kept.

Consumers in other languages write the same headers; the intake checks them all.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from retry_topic.message import Message
from retry_topic.message.fingerprint import fingerprint
from retry_topic.message.headers import MAX_COUNT, RetryState, read, retry_id, sign, unsigned, verify, write
from retry_topic.message.last_step import last_step_of
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.policy import Failure


def retry_state(
    group: str, message: Message, secrets: Sequence[bytes] = (), topics: GroupTopics = NAMED_AFTER_GROUP
) -> RetryState:
    """The retry state of `message` in `group`; an empty state if no header is about this message and this group.

    A retry of another group on a common topic is new for this group, but keeps its attempt count and first failure.

    Args:
        group: the consumer group.
        message: as delivered.
        secrets: to verify signatures. Defaults to none: headers are not verified.
        topics: the group's own topics. Defaults to those named after it.
    """
    state = read(message.headers)
    to_group = message.topic == topics.redelivery_of(group)
    if state.dialect == "own" and not to_group:
        if message.topic != (state.original_topic or message.topic):
            return RetryState()  # copied from a message of another topic
        if state.consumer_group not in (None, group):
            # Another group's retry came back on the common topic. For this group it is a new record, but it keeps its
            # count. Otherwise two groups that both fail would cause each other's retries for ever.
            counted = verify(state, message, secrets, group) if secrets else state
            if counted.unsigned:
                return counted
            return RetryState(attempt=counted.attempt, first_failed_ms=counted.first_failed_ms)
    if not secrets:
        return state
    if to_group and state.dialect == "none":
        return unsigned(state, message, group, "is missing")  # our dispatcher sends only signed records
    if state.signature is None and not to_group and _claims_nothing(state):
        # Every client that may write to the topic may give its messages ids without a signature. Such an id cannot
        # choose another message's attempt count: the name under which the store counts the attempts also contains the
        # group and the publishing time (see `_rooted`).
        return state if state.published_ms is not None else RetryState(id=state.id, dialect=state.dialect)
    return verify(state, message, secrets, group)


def _claims_nothing(state: RetryState) -> bool:
    """Whether the headers say no more than the id under which the message was published."""
    counts = state.attempt, state.replays, state.first_failed_ms, state.key_lock, state.item_id
    return state.dialect in ("own", "none") and counts == (0, 0, None, None, None)


def failed_message(
    group: str,
    message: Message,
    state: RetryState,
    failure: Failure,
    print_: str | None = None,
    secrets: Sequence[bytes] = (),
    started_ms: int | None = None,
    topics: GroupTopics = NAMED_AFTER_GROUP,
    topic_id: str | None = None,
    traceback: str | None = None,
    now_ms: int | None = None,
) -> Message:
    """The record for the group's retry topic: the payload unchanged, the failure in its headers.

    Args:
        group: the consumer group.
        message: as delivered.
        state: the message's state before this failure, see `retry_state`.
        failure: the failure of this attempt.
        print_: the error's fingerprint. Defaults to one made of the error's class and message.
        secrets: the first one signs. Defaults to none.
        started_ms: epoch ms at which the handler was called. Defaults to None: no header.
        topics: the group's own topics. Defaults to those named after it.
        topic_id: the permanent id of the message's topic. With it, the records of a recreated topic do not get the ids
            and counts of the deleted topic's records. Defaults to the topic's name.
        traceback: the traceback of this failure. Defaults to None: no header.
        now_ms: epoch ms. Defaults to None: this machine's clock.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    state = replace(
        _rooted(group, message, state, topic_id),
        attempt=min(state.attempt + 1, MAX_COUNT),
        first_failed_ms=now_ms if state.first_failed_ms is None else min(state.first_failed_ms, now_ms),
        last_failed_ms=now_ms,
        started_ms=started_ms,
        verdict=failure.verdict,
        retry_after_ms=failure.retry_after_ms,
        consumer_group=group,
        error_class=failure.error_class or None,
        error_mro=failure.error_mro,
        error_message=failure.message or None,
        error_fingerprint=print_ or fingerprint(failure.error_class, failure.message),
        error_status=failure.status,
        signature=None,
        process=f"{_host()}:{os.getpid()}",
        traceback=traceback,
        trace_step=last_step_of(message) or state.trace_step,
        item_id=None,
        oddities=(),
    )
    if secrets and state.id is not None and not state.unsigned:
        state = sign(state, message, secrets[0])
    return message.to(topics.retry_of(group), write(message.headers, state))


@cache
def _host() -> str:
    return socket.gethostname()[:60]


def ordered_state(
    group: str, message: Message, state: RetryState, key_lock: str, topic_id: str | None = None
) -> RetryState:
    """The state of a message of an ordered topic, with its id and its key's lock (`key_lock`).

    `topic_id` is the permanent id of the topic. With it, a recreated topic does not repeat ids of the deleted topic.
    """
    return replace(_rooted(group, message, state, topic_id), key_lock=key_lock, consumer_group=group)


def is_position_derived(group: str, message: Message, state: RetryState, topic_id: str | None = None) -> bool:
    """Whether no other message can have this message's id, whatever the headers say.

    This holds for an id that is made of the message's position. It also holds for an id from a publisher, because the
    name of such a message in the store contains the publishing time.
    """
    if state.published_ms is not None:
        return True
    source = message.source
    return source is not None and state.id == retry_id(group, topic_id or source.topic, source.partition, source.offset)


def parked_message(
    group: str,
    message: Message,
    state: RetryState,
    secrets: Sequence[bytes] = (),
    topics: GroupTopics = NAMED_AFTER_GROUP,
) -> Message:
    """The record of a message that is parked behind its key's head. It comes back on the group's redelivery topic."""
    if secrets and state.id is not None and not state.unsigned:
        state = sign(state, message, secrets[0])
    return message.to(topics.redelivery_of(group), write(message.headers, state))


def _rooted(group: str, message: Message, state: RetryState, topic_id: str | None = None) -> RetryState:
    """The state with an id and an original (the record that first failed): this record if the headers name no other."""
    source = message.source
    named = state.id is not None
    if source is None or (named and (state.attempt or state.replays)):
        return state
    nowhere = state.original_topic is None
    if named and nowhere and not state.unsigned and state.published_ms is None:
        # a publisher gave this id: other groups read the message under the same id
        state = replace(state, published_ms=source.timestamp_ms or 0)
    if nowhere or (named and state.published_ms is not None and state.original_topic == source.topic):
        state = replace(
            state,
            original_topic=source.topic,
            original_partition=source.partition,
            original_offset=source.offset,
            original_timestamp_ms=source.timestamp_ms,
        )
    if named:
        return state
    if state.original_topic is not None and state.original_offset is not None:
        place = state.original_topic, state.original_partition or 0, state.original_offset
    else:  # another library's headers name no original: only the place of this record is known
        place = source.topic, source.partition, source.offset
    if place == (source.topic, source.partition, source.offset) and topic_id is not None:
        place = topic_id, source.partition, source.offset
    return replace(state, id=retry_id(group, *place))


def delivered_message(
    group: str, message: Message, state: RetryState, topics: GroupTopics = NAMED_AFTER_GROUP
) -> Message:
    """The message as the handler sees it. On a redelivery, `topic` is the topic on which it first failed."""
    if message.topic == topics.redelivery_of(group) and state.original_topic:
        return replace(message, topic=state.original_topic)
    return message
