"""From a failure to the record in the group's retry topic. Pure but for the time of day.

Whose failures the headers of a message tell of is not taken for granted: a topic that several groups read carries the
headers of each of them, and a handler may copy its message's headers onto another message. What is not about this
group and this message is not read, or two messages would share one id, and one of them would be taken for a repeat.

Consumers in other languages write the same headers; the intake believes none of them blindly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.message import Message
from retry_topic.message.fingerprint import fingerprint, fingerprint_of
from retry_topic.message.headers import MAX_COUNT, RetryState, read, retry_id, sign, unsigned, verify, write
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.policy import Failure, class_name, failure_of


def retry_state(
    group: str, message: Message, secrets: Sequence[bytes] = (), topics: GroupTopics = NAMED_AFTER_GROUP
) -> RetryState:
    """What is known of earlier failures of `message` in `group`; an empty state when there were none.

    Args:
        group: the consumer group.
        message: as delivered.
        secrets: to verify signatures with. Defaults to none: headers are believed.
        topics: of the group. Defaults to those named after it.
    """
    state = read(message.headers)
    to_group = message.topic == topics.redelivery_of(group)
    if state.dialect == "own" and not to_group:
        if message.topic != (state.original_topic or message.topic):
            return RetryState()  # copied from a message of another topic
        if state.consumer_group not in (None, group):
            # Another group's retry, brought back on the common topic. For us it is a record of its own, but its count
            # goes on: two groups that both fail would else make each other's retries for ever.
            counted = verify(state, message, secrets, group) if secrets else state
            if counted.unsigned:
                return counted
            return RetryState(attempt=counted.attempt, first_failed_ms=counted.first_failed_ms)
    if not secrets:
        return state
    if to_group and state.dialect == "none":
        return unsigned(state, message, group, "is missing")  # what a dispatcher of ours brings is signed
    if state.signature is None and not to_group and _claims_nothing(state):
        # Who may write to the topic may name its messages; that wants no signature. A name chooses no count, and the
        # group and the time of the record become a part of what the store knows the message by (see `_rooted`).
        return state if state.published_ms is not None else RetryState(id=state.id, dialect=state.dialect)
    return verify(state, message, secrets, group)


def _claims_nothing(state: RetryState) -> bool:
    """Whether headers tell of no failure: at most under which id the message was published."""
    counts = state.attempt, state.replays, state.first_failed_ms, state.ordering
    return state.dialect in ("own", "none") and counts == (0, 0, None, None)


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
) -> Message:
    """The message as it goes to the group's retry topic: payload untouched, headers tell of the failure.

    Args:
        group: the consumer group.
        message: as delivered.
        state: what was known before, see `retry_state`.
        failure: what happened now.
        print_: the error's fingerprint. Defaults to one without a traceback.
        secrets: the first one signs. Defaults to none.
        started_ms: when the handler was called. Defaults to not told.
        topics: of the group. Defaults to those named after it.
        topic_id: a name for ever of the topic it was read from, or records of one made anew would have the ids, and the
            counts, of those at their places before. Defaults to its name.
    """
    now_ms = time.time_ns() // 1_000_000
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
        oddities=(),
    )
    if secrets and state.id is not None and not state.unsigned:
        state = sign(state, message, secrets[0])
    return message.to(topics.retry_of(group), write(message.headers, state))


def ordered_state(
    group: str, message: Message, state: RetryState, gate: str, topic_id: str | None = None
) -> RetryState:
    """The state of a message of an ordered topic, with the id and the gate that its order is kept by.

    `topic_id` names the topic for ever, so that a topic made anew does not repeat the ids of heads that have succeeded.
    """
    return replace(_rooted(group, message, state, topic_id), ordering=gate, consumer_group=group)


def is_of_its_place(group: str, message: Message, state: RetryState, topic_id: str | None = None) -> bool:
    """Whether an id was made of the place its message was read at: no other message has it, whatever headers say.

    So is one that was given when it was published, of which the time is a part.
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
    """The message as it waits behind its key's head, untried: it comes back on the group's redelivery topic."""
    if secrets and state.id is not None and not state.unsigned:
        state = sign(state, message, secrets[0])
    return message.to(topics.redelivery_of(group), write(message.headers, state))


def _rooted(group: str, message: Message, state: RetryState, topic_id: str | None = None) -> RetryState:
    """The state with an id and an origin. What the headers know of the origin stays; the rest is where it was read."""
    source = message.source
    named = state.id is not None
    if source is None or (named and (state.attempt or state.replays)):
        return state
    nowhere = state.original_topic is None
    if named and nowhere and not state.unsigned and state.published_ms is None:
        # an id that somebody gave when publishing: other groups read the message under it as well
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
    else:  # foreign headers that do not say where: this record is the only place there is
        place = source.topic, source.partition, source.offset
    if place == (source.topic, source.partition, source.offset) and topic_id is not None:
        place = topic_id, source.partition, source.offset
    return replace(state, id=retry_id(group, *place))


def failure_in(error: BaseException) -> tuple[Failure, str | None]:
    """The failure an exception stands for, and its fingerprint. Never raises, whatever the error's class does."""
    try:
        return failure_of(error, now_ms=time.time_ns() // 1_000_000), fingerprint_of(error)
    except BaseException:  # properties and __str__ of the handler's error are not ours to trust, whatever they raise
        return Failure(error_class=_class_name_of(error), message="(the error cannot be described)"), None


def _class_name_of(error: BaseException) -> str:
    try:
        return class_name(type(error))
    except BaseException:  # a metaclass may raise as well
        return "unknown"


def expired(expires: bytes | None) -> bool:
    """Whether the moment in an `expires-at` header has passed; what is no number never does."""
    if expires is None or not expires.isdigit() or len(expires) > 16:  # the year 9999 has 15 digits
        return False
    return int(expires) < time.time_ns() // 1_000_000


def delivered_message(
    group: str, message: Message, state: RetryState, topics: GroupTopics = NAMED_AFTER_GROUP
) -> Message:
    """The message as the handler sees it: on a redelivery, `topic` is where it first failed."""
    if message.topic == topics.redelivery_of(group) and state.original_topic:
        return replace(message, topic=state.original_topic)
    return message


def outlived(deliveries: int) -> Failure:
    """The failure of a message that no consumer survived."""
    text = f"handed out {deliveries} times, and every consumer died or hung over it"
    return Failure(error_class="poison", message=text, verdict="dead")


def too_late() -> Failure:
    """The failure of a message that came after its own `expires-at`."""
    return Failure(error_class="expired", message="it came too late", verdict="dead")
