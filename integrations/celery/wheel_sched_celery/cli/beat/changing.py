"""`celery wheel beat pause`, `resume`, `run-now` and `remove`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from wheel_sched.cli.failing import FAILED, OK, as_usage
from wheel_sched.cli.options import confirm, dry_run_option, json_option, yes_option
from wheel_sched.cli.output import emit, note, say
from wheel_sched.errors import NotDone, Rejected
from wheel_sched_celery.beat.entries import BeatEntries, remove_present
from wheel_sched_celery.beat.entry import StoredEntry
from wheel_sched_celery.beat.shown_entry import entries_of
from wheel_sched_celery.cli.beat.choosing import beat_entries, choose

_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class _Change:
    """One way to change entries.

    Args:
        verb: names the change in the output of a dry run and in the question.
        done: names the change in the output; `{}` becomes the number of entries.
        change: changes one entry. It raises NotDone or Rejected if the entry stays as it is, and may return text that
            belongs to the entry, such as the id of a task.
        removes: whether the entries are gone after it. If so, ask also about a single entry that is not named exactly.
    """

    verb: str
    done: str
    change: Callable[[BeatEntries, StoredEntry], Any]
    removes: bool = False


def _changing(command: Callable[..., int]) -> Callable[..., int]:
    """Add what all commands that change entries accept: names, --all, --dry-run, --yes and --json."""
    everything = click.option("--all", "everything", is_flag=True, help="All of them; instead of names.")
    names = click.argument("names", nargs=-1, metavar="[NAME]...")
    for add in (click.pass_context, json_option, yes_option, dry_run_option, everything, names):
        command = add(command)
    return command


def _perform(
    what: _Change,
    ctx: click.Context,
    *,
    names: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Choose the entries, ask, change them one after the other, and print the results. Returns 0 when all changed."""
    entries = beat_entries(ctx)
    with as_usage():
        meant = choose(entries.all(), names, everything)
    if dry_run:
        _show_dry_run(what, meant, as_json)
        return OK
    named = len(meant) == 1 and meant[0].name in names
    if len(meant) > 1 or (meant and what.removes and not named):
        confirm(f"{what.verb.capitalize()} {entries_of(len(meant))}?", yes)
    done: list[dict[str, Any]] = []
    left: list[tuple[str, str]] = []
    for one in meant:
        try:
            answer = what.change(entries, one)
        except (NotDone, Rejected) as error:
            left.append((one.name, str(error)))
        else:
            done.append({"name": one.name} | ({"task_id": answer} if isinstance(answer, str) else {}))
    _report(what, done, left, as_json)
    return FAILED if left else OK


def _show_dry_run(what: _Change, meant: list[StoredEntry], as_json: bool) -> None:
    if as_json:
        emit({"dry_run": True, "count": len(meant), "samples": [one.name for one in meant[:_SAMPLES]]})
        return
    say(f"would {what.verb} {entries_of(len(meant))}")
    for one in meant[:_SAMPLES]:
        say(f"  {one.name}  {one.state}")
    note("nothing was changed")


def _report(what: _Change, done: list[dict[str, Any]], left: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        emit({"done": done, "left": [{"name": name, "why": why} for name, why in left]})
        return
    say(what.done.format(entries_of(len(done))))
    for row in done[:_SAMPLES]:
        if "task_id" in row:
            say(f"  {row['name']}  {row['task_id']}")
    for name, why in left:
        say(f"not changed: {name}: {why}")


@click.command()
@_changing
def pause(ctx: click.Context, **options: Any) -> int:
    """Let entries wait until `resume`. Runs of the time between do not count as missed.

    \b
    Examples:
      celery -A proj wheel beat pause report
      celery -A proj wheel beat pause 'mail-*' --dry-run
    """
    return _perform(_Change("pause", "{} paused", lambda entries, one: entries.pause(one.name)), ctx, **options)


@click.command()
@_changing
def resume(ctx: click.Context, **options: Any) -> int:
    """Let paused, removed or failed entries run again, from their next due time; an interval that is over is due now.

    \b
    Examples:
      celery -A proj wheel beat resume report
      celery -A proj wheel beat resume --all --yes
    """
    return _perform(_Change("resume", "{} resumed", lambda entries, one: entries.resume(one.name)), ctx, **options)


@click.command("run-now")
@_changing
def run_now(ctx: click.Context, **options: Any) -> int:
    """Send the tasks of entries once more, now. Their rhythm does not change. A live worker sends them.

    \b
    Examples:
      celery -A proj wheel beat run-now report
      celery -A proj wheel beat run-now report --json | jq -r '.done[].task_id'
    """
    return _perform(_Change("run", "{} to run now", lambda entries, one: entries.run_now(one.name)), ctx, **options)


@click.command()
@_changing
def remove(ctx: click.Context, **options: Any) -> int:
    """Remove entries: they never run again. A single entry that you name exactly is removed without a question.

    An entry that the code still has is remembered as removed; `resume` brings it back.

    \b
    Examples:
      celery -A proj wheel beat remove report
      celery -A proj wheel beat remove 'old-*' --dry-run
    """
    change = _Change("remove", "{} removed", lambda entries, one: remove_present(entries, one.name), removes=True)
    return _perform(change, ctx, **options)
