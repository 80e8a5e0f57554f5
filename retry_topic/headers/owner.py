"""Whose retry a message is, where several groups read one topic and redeliveries come back on it."""

from __future__ import annotations

from retry_topic.headers.codec import read
from retry_topic.message import Message


def of_another_group(message: Message, group: str) -> bool:
    """Whether `message` is the retry of another group, brought back on a topic that `group` reads as well.

    The group has had its original there, and may let it pass. A message that merely carries copied headers (published
    to another topic by a handler, say) is none. As much to be believed as headers are: whoever can write to the topic
    can say so of a message.

    Args:
        message: as delivered.
        group: who asks.
    """
    state = read(message.headers)
    return (
        state.dialect == "own"
        and state.attempt > 0
        and state.original_topic == message.topic
        and state.consumer_group not in (None, group)
    )
