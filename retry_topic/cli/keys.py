"""`wheel-sched keys list | release`: lists ordering keys that wait for a failed message, and releases them by hand."""

from __future__ import annotations

import click

from retry_topic.cli.settings import settings_of
from retry_topic.management.opening import opened_connection
from retry_topic.management.ordering_keys import locked_keys, release_keys
from wheel_sched.cli.options import Session, confirm, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.wording import amount, one_line, relative

_SHOWN = 100


@click.group(name="keys", help="List and release ordering keys that wait for a failed message.")
def keys() -> None:
    """Group of the commands about ordering keys."""


@keys.command(name="list")
@click.option("--limit", type=click.IntRange(min=1), default=_SHOWN, show_default=True, help="Show at most N keys.")
@json_option
@pass_session
def list_keys(session: Session, limit: int, as_json: bool) -> None:
    """List the ordering keys that wait for a failed message. The key that waits longest comes first.

    If "head is" shows "out", the failed message was delivered again, and its consumer has not settled it yet.

    \b
    Examples:
      wheel-sched keys list
      wheel-sched keys list --json | jq -r .lock
    """
    with opened_connection(settings_of(session)) as connection:
        rows, total = locked_keys(connection, limit)
        now_ms = connection.store.now_ms()
    if as_json:
        for row in rows:
            emit(row)
        return
    if not rows:
        note("no key is locked")
        return
    lines = [
        (
            relative(row["since_ms"], now_ms),
            one_line(row["key"], 50),
            f"{row['parked']:,}",
            row["head"],
            row["head_state"],
            row["lock"],
        )
        for row in rows
    ]
    table(("locked", "key", "parked", "head", "head is", "lock"), lines, right=(2,))
    if total > limit:
        note(f"the first {limit} of {total:,} are shown; --limit N shows more")


@keys.command()
@click.argument("locks", nargs=-1, metavar="LOCK...", required=True)
@yes_option
@json_option
@pass_session
def release(session: Session, locks: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Let the next message of a key be delivered although its failed message never succeeded. `keys list` shows LOCK.

    Release a key only when its failed message is lost, for example because its topic was deleted.

    \b
    Examples:
      wheel-sched keys release 0hZkP3xYaQ1_.7fK2mWq9sT4vB8nC --yes
    """
    with opened_connection(settings_of(session)) as connection:
        confirm(f"Release {amount(len(locks), 'key')}, although the heads were not handled?", yes)
        released = release_keys(connection, locks)
    emit({"done": released}) if as_json else say(f"{amount(released, 'key')} released")
    return 0 if released == len(locks) else 1
