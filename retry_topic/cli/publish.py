"""`wheel-sched publish`: publishes messages now or later, from an argument, stdin or the lines of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import BinaryIO

import click

from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.management.opening import opened_connection
from retry_topic.message import Headers
from wheel_sched.cli.failing import drop_output
from wheel_sched.cli.instants import DURATION, INSTANT
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.errors import BrokerUnavailable, NotDone
from wheel_sched.management.opening import embedded_folder
from wheel_sched.management.wording import amount

_MAKE = "--create creates it"


def _headers(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Headers:
    pairs = []
    for value in values:
        name, sign, text = value.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"expected NAME=VALUE, got: {value!r}")
        pairs.append((name, text.encode("utf-8", "surrogateescape")))
    return tuple(pairs)


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--lines", type=click.File("rb"), metavar="FILE", help="One message for each line of FILE (- is stdin).")
@click.option("--key", metavar="KEY", help="Partitioning key.")
@click.option(
    "--header", "headers", multiple=True, callback=_headers, metavar="NAME=VALUE", help="Add a header; repeatable."
)
@click.option("--delay", "delay_ms", type=DURATION, metavar="DURATION", help="Publish this long from now.")
@click.option("--at", "at_ms", type=INSTANT, metavar="INSTANT", help="Publish at this time: RFC 3339, or +5m.")
@click.option(
    "--expires",
    "expires_ms",
    type=DURATION,
    metavar="DURATION",
    help="A consumer that gets the message after this time makes it a dead letter.",
)
@click.option(
    "--id",
    "message_id",
    metavar="ID",
    help="Id of the message; a repeated id is published once, until 10 min after it is due.",
)
@click.option(
    "--fair-key",
    metavar="KEY",
    help="Fair key of a message for later; without it, the one that the topic's policy names.",
)
@click.option("--create", is_flag=True, help="Create the topic when it is absent.")
@json_option
@pass_session
def publish(
    session: Session,
    topic: str,
    value: str | None,
    lines: BinaryIO | None,
    key: str | None,
    headers: Headers,
    delay_ms: int | None,
    at_ms: int | None,
    expires_ms: int | None,
    message_id: str | None,
    fair_key: str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Publish VALUE to TOPIC, now or later; print the id. With - as VALUE, read it from stdin.

    \b
    Examples:
      wheel-sched publish orders '{"id": 1}' --create
      wheel-sched publish orders '{"id": 1}' --delay 90s --key customer-7
      wheel-sched publish mails --at 2030-01-01T06:00:00Z - < mail.json
      wheel-sched publish orders --lines orders.jsonl --delay 5m
    """
    if (value is None) == (lines is None):
        raise click.UsageError("What? Give VALUE, or - for stdin, or --lines FILE.")
    if delay_ms is not None and at_ms is not None:
        raise click.UsageError("Give --delay or --at, not both.")
    if fair_key is not None and delay_ms is None and at_ms is None:
        raise click.UsageError("--fair-key is for messages for later: give --delay or --at.")
    if lines is not None and message_id is not None:
        raise click.UsageError("--id names one message: remove it, or --lines.")
    folder = embedded_folder(settings_of(session))
    if folder is not None and not create and not folder.is_dir():
        raise NotDone(f"there is no topic {topic!r}, nor a data folder {folder}; nothing was published; {_MAKE}")
    with opened_connection(settings_of(session), create=True) as connection:
        _ensure_topic(connection, topic, create)
        later = bool(delay_ms) or (at_ms is not None and at_ms > connection.store.now_ms())
        count = 0
        with Progress("published") as progress:
            for payload in _payloads(value, lines):
                name = connection.publish(
                    topic,
                    payload,
                    key=None if key is None else key.encode("utf-8", "surrogateescape"),
                    headers=headers,
                    delay=None if delay_ms is None else delay_ms / 1000,
                    at=None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC),
                    expires=None if expires_ms is None else expires_ms / 1000,
                    id=message_id,
                    fair_key=None if fair_key is None else fair_key.encode("utf-8", "surrogateescape"),
                )
                count += 1
                progress(count)
                try:
                    emit({"id": name, "topic": topic}) if as_json else say(name)
                except BrokenPipeError:  # nobody reads the ids any more; the other lines are published all the same
                    drop_output()
    note(f"{amount(count, 'message')} {'stored, to be published when due' if later else 'published'}")


def _ensure_topic(connection: Connection, topic: str, create: bool) -> None:
    if create:
        try:
            connection.broker.create_topic(topic)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"creating the topic {topic!r}: {error}; no message was published") from error
        return
    known = connection.broker.topics()
    if topic not in known:
        close = get_close_matches(topic, known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise NotDone(f"there is no topic {topic!r}: nothing was published; {hint}{_MAKE}")


def _payloads(value: str | None, lines: BinaryIO | None) -> Iterator[bytes]:
    if lines is not None:
        for line in lines:
            if line.rstrip(b"\r\n"):
                yield line.rstrip(b"\r\n")
    elif value == "-":
        yield sys.stdin.buffer.read()
    else:
        yield (value or "").encode("utf-8", "surrogateescape")
