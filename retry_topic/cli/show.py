"""`wheel-sched show ID`: shows everything about one message, and the reason for its due time."""

from __future__ import annotations

import sys

import click

from retry_topic.cli.changing import note_stored_as
from retry_topic.cli.failures import failure_lines
from retry_topic.cli.settings import settings_of
from retry_topic.management.explaining import explain, payload_bytes
from retry_topic.management.filters import ListedMessage
from retry_topic.management.opening import opened_connection
from retry_topic.message.headers import HEADER_NAMES
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, paint, say
from wheel_sched.management.wording import one_line, state_word, when

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
        found = explain(connection, message_id)
    note_stored_as(found.stored_as)
    if raw:
        payload = payload_bytes(found.entry)
        if sys.stdout.isatty():  # files and pipes get the raw bytes; a terminal would obey control characters
            for line in payload.decode("utf-8", "backslashreplace").split("\n"):
                say(line)
        else:
            sys.stdout.buffer.write(payload)
        return
    if as_json:
        emit(found.as_dict())
    else:
        _show(found.entry, found.why, found.now_ms)


def _show(entry: ListedMessage, why: str, now_ms: int) -> None:
    state, message, found = entry.letter.state, entry.letter.message, entry.found
    word = {"due": "due", "leased": "was due", "held": "due", "dead": "died"}[found.state]
    place = filter(None, (f"partition {state.original_partition}" * (state.original_partition is not None),))
    origin = ", ".join((state.original_topic or "", *place, f"offset {state.original_offset}"))
    lines: list[tuple[str, str | None]] = [
        ("id", entry.id),
        ("state", state_word(found.state)),
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
