"""Everything about one message: its details as data, and the reason for its state and its due time in words."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.connection import Connection
from retry_topic.management.filters import ListedMessage
from retry_topic.management.selecting import find_messages
from retry_topic.policy import format_duration
from retry_topic.release.flow import flow_of
from wheel_sched.management.wording import instant
from wheel_sched.store.rate_limits import Flow, RateLimits


@dataclass(frozen=True, slots=True)
class ExplainedMessage:
    """A message, and the reason for its state.

    Args:
        entry: the message.
        why: the reason for its state and its due time.
        now_ms: the store's time when the message was read, epoch ms.
        stored_as: from the requested id to the message's id in the store, where these differ.
    """

    entry: ListedMessage
    why: str
    now_ms: int
    stored_as: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The message as data for JSON."""
        return {**self.entry.as_dict(), "why": self.why, **details(self.entry)}


def explain(connection: Connection, message_id: str, look_through: int | None = None) -> ExplainedMessage:
    """Find a message, and say why it waits, is held or is dead.

    Args:
        connection: where the messages are stored.
        message_id: the id, in one of the three forms that `selecting` describes.
        look_through: see `find_messages`. Defaults to None: 100,000.

    Raises:
        NotDone: no message has the id, or several have it.
    """
    found = find_messages(connection, [message_id], look_through=look_through)
    (entry,) = found.messages
    counts = connection.store.counts()
    flows = RateLimits(connection.store).flows()
    why = why_due(entry, entry.found.topic in counts.paused, flows)
    return ExplainedMessage(entry, why, counts.now_us // 1000, found.stored_as)


def payload_bytes(entry: ListedMessage) -> bytes:
    """The payload of a message, or the body of an unreadable item. Empty if the store has only a reference to it."""
    message = entry.letter.message
    return entry.found.body if message is None else message.value


def why_due(entry: ListedMessage, paused: bool = False, flows: Sequence[Flow] = ()) -> str:
    """The reason for the state and the due time of a message, in words."""
    found, state = entry.found, entry.letter.state
    if entry.parked:
        return f"parked at {instant(found.score_ms)} behind a failed message of its key; see `wheel-sched keys list`"
    if found.state == "dead":
        return f"given up: {found.reason or 'no reason is on record'}"
    if found.state == "held":
        due = f"; its due time stays {instant(found.score_ms)}" if found.score_ms else ""
        reason = "its topic is paused" if found.reason == "paused" else found.reason
        return f"held: {reason}{due}"
    at_ms = entry.at_ms or 0
    if state.attempt == 0 or state.due_ms is None:
        text = "published for then; it has not failed" if not state.replays else "replayed from the dead"
    elif at_ms > state.due_ms and (held_back := _held_back(entry, flows)):
        planned = f"policy {state.policy or 'unknown'} had said {instant(state.due_ms)}"
        text = f"{planned}; flow control holds it back: {held_back}"
    elif at_ms != state.due_ms:
        text = f"rescheduled by hand; policy {state.policy or 'unknown'} had said {instant(state.due_ms)}"
    else:
        delay = format_duration(state.delay_ms or 0)
        decided = instant(state.due_ms - (state.delay_ms or 0))
        error = state.error_class or "a failure"
        text = f"attempt {state.attempt} failed with {error}; at {decided} policy {state.policy} said: wait {delay}"
        if state.retry_after_ms is not None:
            text += f" (the handler asked for a wait of {format_duration(state.retry_after_ms)})"
    if found.state == "leased":
        return f"{text}; it was claimed and is being delivered, under a lease until {instant(found.score_ms)}"
    return text + ("; its topic is paused" if paused else "")


def _held_back(entry: ListedMessage, flows: Sequence[Flow]) -> str:
    """Why flow control holds the message's topic back; "" when it does not."""
    name = flow_of(entry.letter.state.consumer_group or "", entry.found.topic)
    clauses = []
    for flow in flows:
        numbers = flow.numbers
        if flow.topic != name:
            continue
        if flow.destination is None:
            reasons = [reason for reason in ("rate", "budget") if numbers.get(reason)]
            if reasons:
                every = format_duration(-(-numbers.get("interval", 0) // 1000))
                clauses.append(f"{' and '.join(reasons)} of {name}: one every {every}")
        elif flow.state in ("o", "h"):
            who = f"destination {flow.destination}" if flow.destination else name
            until = (
                f"open until {instant(numbers.get('until', 0))}" if flow.state == "o" else "half open, one probe is out"
            )
            clauses.append(f"the circuit of {who} is {until}")
    return "; ".join(clauses)


def details(entry: ListedMessage) -> dict[str, Any]:
    """The fields that the JSON of one message has, and that lists of messages do not have."""
    state, message, found = entry.letter.state, entry.letter.message, entry.found
    known = entry.letter.failed_attempts
    return {
        "version": found.version,
        "refs": list(found.refs),
        "first_failed_ms": state.first_failed_ms,
        "last_failed_ms": state.last_failed_ms,
        "delay_ms": state.delay_ms,
        "target": None if message is None else message.topic,
        "origin": {
            "topic": state.original_topic,
            "partition": state.original_partition,
            "offset": state.original_offset,
            "timestamp_ms": state.original_timestamp_ms,
        },
        "headers": []
        if message is None
        else [[name, value.decode("utf-8", "backslashreplace")] for name, value in message.headers],
        "failed_attempts": [one.as_dict() | {"at": instant(one.at_ms)} for one in known.attempts],
        "failed_attempts_dropped": known.dropped,
        "traceback": entry.letter.traceback,
        "reference": None if message is None or message.reference is None else str(message.reference),
        "value_base64": base64.b64encode(payload_bytes(entry)).decode(),
    }
