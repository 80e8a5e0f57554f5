"""`wheel-sched topics | pause | resume`: lists topics; holds and releases the messages that wait for a topic."""

from __future__ import annotations

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import opened_connection
from retry_topic.management.topics import listed_topics, pause_topic, resume_topic
from wheel_sched.cli.instants import DURATION
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.wording import amount, relative
from wheel_sched.store.core.items import STATES

force_option = click.option("--force", is_flag=True, help="Also accept a topic that does not exist.")


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
        found, now_ms = listed_topics(connection)
    if as_json:
        for one in found:
            emit(one.as_dict())
        return
    rows = []
    for one in found:
        number = "-" if one.records is None else f"{one.records:,}"
        paused = "" if one.paused_since_ms is None else f"paused {relative(one.paused_since_ms, now_ms)}"
        rows.append((one.topic or "(none)", number, *(f"{one.messages[state]:,}" for state in STATES), paused))
    if rows:
        table(("topic", "records", *STATES, ""), rows, right=(1, 2, 3, 4, 5))
    else:
        note("no topics yet; `wheel-sched publish TOPIC VALUE --create` makes one")


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
        moved = pause_topic(connection, topic, force=force)
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
        done = resume_topic(connection, topic, spread_ms=spread_ms, force=force)
    if as_json:
        emit({"topic": topic, "was_paused": done.was_paused, "released": done.released})
    elif done.changed:
        say(f"{topic} is resumed; {amount(done.released, 'message')} wait again")
    else:
        note(f"{topic} was not paused; nothing was changed")
    return 0 if done.changed else 1
