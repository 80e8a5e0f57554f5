"""`wheel-sched keys`: ordering keys that wait for a failed message, and how to open one whose head was lost."""

from __future__ import annotations

from typing import Any

import click

from retry_topic.cli.opening import opened_home
from retry_topic.cli.settings import settings_of
from retry_topic.home import Home
from wheel_sched.cli.failing import CommandFailed
from wheel_sched.cli.options import Session, confirm, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, emit, note, one_line, relative, say, table
from wheel_sched.store import Outcome
from wheel_sched.store.key_gates import KeyGates, ref_of
from wheel_sched.store.operations.ordering import ClosedKey

_SHOWN = 100


@click.command()
@click.option("--open", "gates", multiple=True, metavar="GATE", help="Let the next message of this key follow now.")
@click.option("--limit", type=click.IntRange(min=1), default=_SHOWN, show_default=True, help="At most so many.")
@yes_option
@json_option
@pass_session
def keys(session: Session, gates: tuple[str, ...], limit: int, yes: bool, as_json: bool) -> int:
    """Ordering keys that wait for a failed message, the longest first.

    \b
    Examples:
      wheel-sched keys
      wheel-sched keys --open 0hZkP3xYaQ1_.7fK2mWq9sT4vB8nC --yes

    A key whose head is "out" waits for a consumer to answer for it. Open a key by hand only when its head was lost
    outside the store, with a topic that was deleted: what follows is handled although the head never was.
    """
    with opened_home(settings_of(session)) as home:
        if gates:
            return _open(home, gates, yes, as_json)
        found = sorted(KeyGates(home.store).closed(), key=lambda key: (key.since_ms, key.gate))
        rows = [_told(home, key) for key in found[:limit]]
        now_ms = home.store.now_ms()
    if as_json:
        for row in rows:
            emit(row)
        return 0
    if not rows:
        note("no key is closed")
        return 0
    lines = [
        (
            relative(row["since_ms"], now_ms),
            one_line(row["key"], 50),
            f"{row['parked']:,}",
            row["head"],
            row["head_state"],
            row["gate"],
        )
        for row in rows
    ]
    table(("closed", "key", "parked", "head", "head is", "gate"), lines, right=(2,))
    if len(found) > limit:
        note(f"the first {limit} of {len(found):,} are shown; --limit N shows more")
    return 0


def _told(home: Home, key: ClosedKey) -> dict[str, Any]:
    """A closed key as plain data, with where its head is."""
    ids = [item_id for item_id in home.store.find(ref_of(key.gate)) if item_id.startswith(f"{key.head}.")]
    items = [item for item in home.store.get(ids, anywhere=True) if item is not None and item.state != "dead"]
    return {
        "gate": key.gate,
        "key": key.label,
        "since_ms": key.since_ms,
        "head": items[0].id if items else key.head,
        "head_state": {"due": "waiting", "fly": "in flight"}.get(items[0].state, "held") if items else "out",
        "parked": key.parked,
    }


def _open(home: Home, gates: tuple[str, ...], yes: bool, as_json: bool) -> int:
    confirm(f"Let the next messages of {amount(len(gates), 'key')} follow although their heads are not through?", yes)
    outcomes = KeyGates(home.store).pass_by_hand(gates)
    opened = outcomes.count(Outcome.DONE)
    if not opened:
        raise CommandFailed("no such key is closed: nothing was changed; see `wheel-sched keys`")
    emit({"done": opened}) if as_json else say(f"{amount(opened, 'key')} went on")
    return 0 if opened == len(gates) else 1
