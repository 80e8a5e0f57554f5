"""`wheel-sched show ID`: shows everything about one message, and the reason for its due time."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

import click

from retry_topic.cli.failures import failure_lines
from retry_topic.cli.filters import ListedMessage
from retry_topic.cli.opening import opened_connection
from retry_topic.cli.selecting import find_messages
from retry_topic.cli.settings import settings_of
from retry_topic.message.headers import HEADER_NAMES
from retry_topic.policy import format_duration
from retry_topic.release.flow import flow_of
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, paint, say
from wheel_sched.management.wording import instant, one_line, when
from wheel_sched.store.rate_limits import Flow, RateLimits

_PREVIEW = 300  # characters of the payload


@click.command()
@click.argument("message_id", metavar="ID")
@click.option("--value", "raw", is_flag=True, help="Write the payload alone, byte for byte.")
@json_option
@pass_session
def show(session: Session, message_id: str, raw: bool, as_json: bool) -> None:
    """Show everything about one message: state, due time and its reason, error, payload, why each attempt failed.

    The last failed attempt has a traceback, unless the consumer keeps none.

    ID is what `list` shows. Without its last part, the attempt, ID means the latest attempt. The id in a consumer's log
    works too.

    \b
    Examples:
      wheel-sched show 3f2a9c.2
      wheel-sched show 3f2a9c --json | jq .headers
      wheel-sched show 3f2a9c.2 --value > payload.json
    """
    with opened_connection(settings_of(session)) as connection:
        (entry,) = find_messages(connection, [message_id])
        counts = connection.store.counts()
        flows = RateLimits(connection.store).flows()
    message = entry.letter.message
    if raw:
        payload = entry.found.body if message is None else message.value
        if sys.stdout.isatty():  # files and pipes get the raw bytes; a terminal would obey control characters
            for line in payload.decode("utf-8", "backslashreplace").split("\n"):
                say(line)
        else:
            sys.stdout.buffer.write(payload)
        return
    why = why_due(entry, entry.found.topic in counts.paused, flows)
    if as_json:
        emit({**entry.as_dict(), "why": why, **_details(entry)})
    else:
        _show(entry, why, counts.now_us // 1000)


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


def _details(entry: ListedMessage) -> dict[str, Any]:
    """The fields that `show --json` adds to those of `list --json`."""
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
        "value_base64": base64.b64encode(found.body if message is None else message.value).decode(),
    }


def _show(entry: ListedMessage, why: str, now_ms: int) -> None:
    state, message, found = entry.letter.state, entry.letter.message, entry.found
    word = {"due": "due", "leased": "was due", "held": "due", "dead": "died"}[found.state]
    place = filter(None, (f"partition {state.original_partition}" * (state.original_partition is not None),))
    origin = ", ".join((state.original_topic or "", *place, f"offset {state.original_offset}"))
    lines: list[tuple[str, str | None]] = [
        ("id", entry.id),
        ("state", {"leased": "in flight", "due": "waiting"}.get(found.state, found.state)),
        (word, "never (parked)" if entry.at_ms is None else when(entry.at_ms, now_ms)),
        ("why", why),
        ("topic", entry.letter.topic or None),
        ("goes to", message.topic if message is not None and message.topic != entry.letter.topic else None),
        ("attempts", f"{state.attempt} of {state.max_attempts or 'unlimited'} failed" if state.attempt else None),
        ("replays", str(state.replays) if state.replays else None),
        ("error", one_line(entry.error) or None),
        ("fingerprint", state.error_fingerprint),
        ("first failed", None if state.first_failed_ms is None else when(state.first_failed_ms, now_ms)),
        ("last failed", None if state.last_failed_ms is None else when(state.last_failed_ms, now_ms)),
        ("policy", state.policy),
        ("group", state.consumer_group),
        ("origin", origin if state.original_offset is not None else None),
        ("key", None if message is None or message.key is None else message.key.decode("utf-8", "backslashreplace")),
    ]
    for name, text in lines:
        if text is not None:
            say(f"{paint(name.ljust(13), 'bold')} {text}")
    for line in failure_lines(entry.letter, now_ms):
        say(line)
    if message is None:
        say(f"{'payload'.ljust(13)} unreadable: {len(found.body):,} bytes that are no message")
        return
    for name, value in message.headers:
        if name not in HEADER_NAMES:
            say(f"{'header'.ljust(13)} {name}: {one_line(value.decode('utf-8', 'backslashreplace'), 200)}")
    if message.reference is not None:
        say(
            f"{paint('payload'.ljust(13), 'bold')} {message.reference.length:,} bytes in the record {message.reference}"
        )
        return
    preview = one_line(message.value[: 4 * _PREVIEW].decode("utf-8", "backslashreplace"), _PREVIEW)
    say(f"{paint('payload'.ljust(13), 'bold')} {len(message.value):,} bytes: {preview}")
