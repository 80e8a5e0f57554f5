"""`wheel-sched keys list | release`: lists ordering keys that wait for a failed message, and releases them by hand."""

from __future__ import annotations

from typing import Any

import click

from retry_topic.cli.opening import opened_connection
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from wheel_sched.cli.options import Session, confirm, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.errors import NotDone
from wheel_sched.management.wording import amount, one_line, relative
from wheel_sched.store import Outcome
from wheel_sched.store.ordering import ClosedKey, OrderedKeys, ref_of

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
        found = sorted(OrderedKeys(connection.store).closed(), key=lambda key: (key.since_ms, key.lock))
        rows = [_as_dict(connection, key) for key in found[:limit]]
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
    if len(found) > limit:
        note(f"the first {limit} of {len(found):,} are shown; --limit N shows more")


def _as_dict(connection: Connection, key: ClosedKey) -> dict[str, Any]:
    """A locked key as plain data, with the state of its head: the failed message for which the key waits."""
    ids = [item_id for item_id in connection.store.find(ref_of(key.lock)) if item_id.startswith(f"{key.head}.")]
    items = [item for item in connection.store.get(ids, anywhere=True) if item is not None and item.state != "dead"]
    return {
        "lock": key.lock,
        "key": key.label,
        "since_ms": key.since_ms,
        "head": items[0].id if items else key.head,
        "head_state": {"due": "waiting", "leased": "in flight"}.get(items[0].state, "held") if items else "out",
        "parked": key.parked,
    }


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
        outcomes = OrderedKeys(connection.store).pass_by_hand(locks)
    released = outcomes.count(Outcome.DONE)
    if not released:
        raise NotDone("no such key is locked: nothing was changed; see `wheel-sched keys list`")
    emit({"done": released}) if as_json else say(f"{amount(released, 'key')} released")
    return 0 if released == len(locks) else 1
