"""`celery wheel beat list`, `show` and `next`."""

from __future__ import annotations

import heapq

import click

from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import emit, note, paint, say, table
from wheel_sched.errors import NotDone, WheelSchedError
from wheel_sched.management.wording import instant, one_line, relative
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import STATES, StoredEntry
from wheel_sched_celery.beat.shown_entry import HEAD, as_dict, lines_of, row_of
from wheel_sched_celery.cli.beat.choosing import beat_entries, choose

_LONGEST = 400


def gone_names(entries: BeatEntries) -> frozenset[str]:
    """Names of entries that come from code, and that the code of this process does not have."""
    return frozenset(stored.name for stored in entries.gone())


@click.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only entries in this state.")
@json_option
@click.pass_context
def list_entries(ctx: click.Context, names: tuple[str, ...], states: tuple[str, ...], as_json: bool) -> None:
    """List the entries of the schedule: what each sends, when it is due next, and where it comes from.

    \b
    Examples:
      celery -A proj wheel beat list
      celery -A proj wheel beat list 'mail-*' --state paused
      celery -A proj wheel beat list --json | jq 'select(.problem != "") | .name'
    """
    entries = beat_entries(ctx)
    found = choose(entries.all(), names, not names)
    found = [one for one in found if not states or one.state in states]
    gone = gone_names(entries)
    if as_json:
        for one in found:
            emit(as_dict(one, gone=one.name in gone))
        return
    if not found:
        note("no entry matches" if names or states else "there are no entries; see `celery wheel beat add`")
        return
    now_ms = entries.store.now_ms()
    table(HEAD, [row_of(one, now_ms, gone=one.name in gone) for one in found])


@click.command()
@click.argument("name", metavar="NAME")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one entry: schedule, arguments, options, its next and last run.

    \b
    Examples:
      celery -A proj wheel beat show report
      celery -A proj wheel beat show report --json | jq .options
    """
    entries = beat_entries(ctx)
    stored = entries.get(name)
    if stored is None:
        raise NotDone(f"there is no entry {name!r}; see `celery wheel beat list`")
    gone = name in gone_names(entries)
    if as_json:
        emit(as_dict(stored, gone=gone))
        return
    for label, text in lines_of(stored, entries.store.now_ms(), gone=gone):
        say(f"{paint(label.ljust(10), 'bold')} {one_line(text, _LONGEST)}")


@click.command("next")
@click.argument("count", type=click.IntRange(1, 1000), default=10, metavar="[N]")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@click.pass_context
def next_runs(ctx: click.Context, count: int, names: tuple[str, ...], as_json: bool) -> None:
    """Show the next N runs (default: 10) of all entries in order of time, or of the named ones.

    A schedule whose class belongs to the app shows only when it is next asked whether it is due.

    \b
    Examples:
      celery -A proj wheel beat next
      celery -A proj wheel beat next 20 report 'mail-*' --json
    """
    entries = beat_entries(ctx)
    chosen = choose(entries.all(), names, not names)
    runs = heapq.nsmallest(count, _runs(entries, chosen, count))
    now_ms = entries.store.now_ms()
    if as_json:
        for due_ms, name, task in runs:
            emit({"due_ms": due_ms, "name": name, "task": task})
        return
    if not runs:
        note("nothing is due: there are no entries, or all of them are paused")
        return
    table(
        ("due", "time", "name", "task"),
        [(relative(due_ms, now_ms), instant(due_ms), name, task) for due_ms, name, task in runs],
    )


def _runs(entries: BeatEntries, chosen: list[StoredEntry], count: int) -> list[tuple[int, str, str]]:
    """The next runs of each of these entries. One that cannot be computed is named on stderr."""
    found: list[tuple[int, str, str]] = []
    for one in chosen:
        if one.entry is None or one.entry.due_ms is None:
            continue
        try:
            found += [(due_ms, one.name, one.entry.task) for due_ms in entries.next_runs(one.name, count)]
        except WheelSchedError as error:
            note(f"{one.name}: {error}")
    return found
