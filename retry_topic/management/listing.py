"""What lists of messages show: payloads, errors, and groups of dead letters with the same error."""

from __future__ import annotations

import base64
from typing import Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterInfo, DeadLetters
from retry_topic.dead_letters.groups import Group
from retry_topic.management.filters import Filter, ListedMessage
from wheel_sched.management.wording import one_line


def payload_as_dict(entry: ListedMessage) -> dict[str, Any]:
    """The payload as data for JSON: in the field `payload` when it is text, else in the field `payload_base64`.

    The other field is None. If the store has only a reference to the payload, both fields are None, and the field
    `reference` names the record that holds the payload.
    """
    message = entry.letter.message
    value = entry.found.body if message is None else message.value
    if message is not None and message.reference is not None:
        return {"payload": None, "payload_base64": None, "reference": str(message.reference)}
    try:
        return {"payload": value.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {"payload": None, "payload_base64": base64.b64encode(value).decode()}


def preview(entry: ListedMessage, limit: int) -> str:
    """The beginning of the payload as a line of at most `limit` characters, for people."""
    message = entry.letter.message
    value = entry.found.body if message is None else message.value
    if message is not None and message.reference is not None:
        return f"in the record {message.reference}"
    return one_line(value[: 4 * limit].decode("utf-8", "backslashreplace"), limit)


def dead_groups(connection: Connection, chosen: Filter) -> list[Group]:
    """The groups of the dead letters that a filter chooses, by topic and error. The largest group is first.

    `chosen.limit` is the greatest number of groups.
    """
    groups = DeadLetters(connection).groups(chosen.selection())
    return [group for group in groups if group.fingerprint.startswith(chosen.fingerprint or "")][: chosen.limit]


def group_as_dict(group: Group) -> dict[str, Any]:
    """A group of dead letters as data for JSON."""
    return {
        "topic": group.topic,
        "fingerprint": group.fingerprint,
        "count": group.count,
        "first_ms": group.first_ms,
        "last_ms": group.last_ms,
        "error_class": group.sample.state.error_class,
        "error_message": group.sample.state.error_message,
        "sample": group.sample.id,
    }


def error_of(letter: DeadLetterInfo) -> str:
    """Class and message of a dead letter's error. Without an error, the reason why the message died."""
    return ": ".join(filter(None, (letter.state.error_class, letter.state.error_message))) or letter.reason
