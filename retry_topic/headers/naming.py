"""The id of a message as a header of it, from its first publish on: copies of one message are known by it."""

from __future__ import annotations

from dataclasses import replace

from retry_topic.headers.names import FIELDS, HEADER_NAMES
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import encode
from retry_topic.message import Message
from wheel_sched.errors import Rejected

ID = FIELDS["id"].header


def with_id(message: Message, message_id: str) -> Message:
    """`message` with its id as a header; retry headers that come with it, of an earlier life, stay as they are.

    Raises:
        Rejected: the id cannot be a header.
    """
    content = encode(FIELDS["id"], message_id)
    if content is None:
        raise Rejected(
            f"expected an id of at most {FIELDS['id'].max_bytes} printable bytes, got: {message_id!r:.100}; nothing "
            "was sent"
        )
    if any(name in HEADER_NAMES and name != ID for name, _ in message.headers):
        return message
    others = tuple(pair for pair in message.headers if pair[0] != ID)
    return message.to(message.topic, (*others, (ID, content)))


def is_only_named(state: RetryState) -> bool:
    """Whether headers say under which id a message was published, and nothing more: no attempt of it has failed."""
    return state.id is not None and replace(state, id=None) == RetryState()
