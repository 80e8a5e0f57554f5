"""`wheel-sched topics | pause | resume`: lists topics; holds and releases the messages that wait for a topic."""

from __future__ import annotations

from difflib import get_close_matches

import click

from retry_topic.cli.opening import opened_connection
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.errors import NotDone
from wheel_sched.management.wording import amount, relative
from wheel_sched.store.core.items import STATES

_NAMED = 10  # topics in an error


@click.command()
@json_option
@pass_session
def topics(session: Session, as_json: bool) -> None:
    """List topics: their records at the broker, and their messages in the store by state.

    \b
    Examples:
      wheel-sched topics
      wheel-sched topics --json | jq 'select(.dead > 0)'
    """
    with opened_connection(settings_of(session)) as connection:
        records = connection.broker.topics()
        counts = connection.store.counts()
    now_ms = counts.now_us // 1000
    rows = []
    for topic in sorted({*records, *counts.topics}):
        here = {state: counts.now.get((state, topic), 0) for state in STATES}
        since_ms = counts.paused.get(topic)
        if as_json:
            emit({"topic": topic, "records": records.get(topic), **here, "paused_since_ms": since_ms})
            continue
        number = f"{records[topic]:,}" if topic in records else "-"
        paused = f"paused {relative(since_ms, now_ms)}" if since_ms is not None else ""
        rows.append((topic or "(none)", number, *(f"{here[state]:,}" for state in STATES), paused))
    if rows:
        table(("topic", "records", *STATES, ""), rows, right=(1, 2, 3, 4, 5))
    elif not as_json:
        note("no topics yet; `wheel-sched publish TOPIC VALUE --create` makes one")


force_option = click.option("--force", is_flag=True, help="Also accept a topic that does not exist.")


def unknown_topic(connection: Connection, topic: str) -> str | None:
    """A sentence about a topic that neither the broker nor the store knows; None for a known topic.

    An unknown topic is mostly a typing mistake, so the sentence names similar and known topics.
    """
    counts = connection.store.counts()
    known = {*counts.topics, *counts.paused} - {""}
    if topic in known:
        return None
    known |= {*connection.broker.topics()}
    if topic in known:
        return None
    close = get_close_matches(topic, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = sorted(known)
    some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
    return f"there is no topic {topic!r}: nothing was done; {hint}known: {some or 'none'}"


def known_topic(connection: Connection, topic: str) -> None:
    """Raise an error for an unknown topic.

    Raises:
        NotDone: the topic is unknown; nothing was changed.
    """
    if (words := unknown_topic(connection, topic)) is not None:
        raise NotDone(f"{words}; --force accepts it")


@click.command()
@click.argument("topic")
@force_option
@json_option
@pass_session
def pause(session: Session, topic: str, force: bool, as_json: bool) -> None:
    """Hold all messages of TOPIC until `resume`, including later ones. Messages in flight finish their attempt.

    \b
    Examples:
      wheel-sched pause orders
    """
    with opened_connection(settings_of(session)) as connection:
        if not force:
            known_topic(connection, topic)
        moved = connection.store.pause(topic)
    if as_json:
        emit({"topic": topic, "held": moved})
    else:
        say(f"{topic} is paused; {amount(moved, 'message')} held")


@click.command()
@click.argument("topic")
@click.option(
    "--spread",
    "spread_ms",
    type=DURATION,
    default=0,
    metavar="DURATION",
    help="Spread overdue messages over this time.",
)
@force_option
@json_option
@pass_session
def resume(session: Session, topic: str, spread_ms: int, force: bool, as_json: bool) -> int:
    """Deliver the messages of a paused TOPIC again. Overdue ones come at once, or spread over a time.

    \b
    Examples:
      wheel-sched resume orders --spread 5m
    """
    with opened_connection(settings_of(session)) as connection:
        if not force:
            known_topic(connection, topic)
        was_paused = topic in connection.store.counts().paused
        moved = connection.store.resume(topic, spread_ms=spread_ms)
    if as_json:
        emit({"topic": topic, "was_paused": was_paused, "released": moved})
    elif was_paused or moved:
        say(f"{topic} is resumed; {amount(moved, 'message')} wait again")
    else:
        note(f"{topic} was not paused; nothing was changed")
    return 0 if was_paused or moved else 1
