"""`celery wheel beat import`: takes over entries of other schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.options import confirm, json_option, yes_option
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched_celery.beat.importing.django_tables import read_django
from wheel_sched_celery.beat.importing.foreign_entry import ForeignEntry
from wheel_sched_celery.beat.importing.plan import CHANGING, FAIL, ImportStep, carry_out, plan_import
from wheel_sched_celery.beat.importing.redbeat import PREFIX, read_redbeat
from wheel_sched_celery.beat.schedules import zone_of
from wheel_sched_celery.beat.shown_entry import entries_of
from wheel_sched_celery.cli.beat.choosing import beat_entries

_WORDS = {
    "add": "add",
    "change": "change",
    "rhythm": "set the last run",
    "task": "send with an ETA",
    "skip": "skip",
    "fail": "cannot",
}


@click.group(name="import")
def import_entries() -> None:
    """Take over entries of redbeat or django-celery-beat. Without --apply it only shows what it would do.

    Stop the old beat first. Each entry goes on from its last run there, so nothing fires twice, and the catch-up policy
    decides about runs that have passed. The source is not changed. A repeated command skips what is here already.
    """


def _taking(command: Callable[..., int]) -> Callable[..., int]:
    """Add what both commands accept: --apply, --change, --yes and --json."""
    apply = click.option("--apply", is_flag=True, help="Do it. Without this option nothing is changed.")
    change = click.option("--change", is_flag=True, help="Replace entries that have another definition here.")
    for add in (click.pass_context, json_option, yes_option, change, apply):
        command = add(command)
    return command


@import_entries.command()
@click.argument("url", metavar="URL")
@click.option("--prefix", default=PREFIX, show_default=True, help="The redbeat_key_prefix of the app.")
@_taking
def redbeat(ctx: click.Context, url: str, prefix: str, **options: Any) -> int:
    """Take over the entries of celery-redbeat from the Redis server at URL, the app's redbeat_redis_url.

    \b
    Examples:
      celery -A proj wheel beat import redbeat redis://old:6379/0
      celery -A proj wheel beat import redbeat redis://old:6379/0 --apply
    """
    return _import(ctx, read_redbeat(url, prefix), **options)


@import_entries.command()
@click.argument("source", metavar="FILE")
@click.option("--tz", default="UTC", show_default=True, help="Zone of times without one (USE_TZ = False).")
@_taking
def django(ctx: click.Context, source: str, tz: str, **options: Any) -> int:
    """Take over the entries of django-celery-beat from FILE, an SQLite database or a dump; `-` is a dump from stdin.

    Every other database: `manage.py dumpdata django_celery_beat > beat.json`.

    \b
    Examples:
      celery -A proj wheel beat import django db.sqlite3
      manage.py dumpdata django_celery_beat | celery -A proj wheel beat import django - --apply --yes
    """
    return _import(ctx, read_django(source, zone_of(tz)), **options)


def _import(
    ctx: click.Context, found: list[ForeignEntry], *, apply: bool, change: bool, yes: bool, as_json: bool
) -> int:
    """Show what becomes of each entry, or do it. Returns 1 when one cannot be imported."""
    entries = beat_entries(ctx)
    steps = plan_import(entries, found, change=change)
    failed = sum(step.action == FAIL for step in steps)
    if not apply:
        _show(steps, as_json)
        return FAILED if failed else OK
    count = sum(step.action in CHANGING for step in steps)
    if count:
        confirm(f"Import {entries_of(count)}?", yes)
    done: Counter[str] = Counter()
    for step, why in carry_out(entries, steps):
        if why:
            failed += 1
            note(f"{step.name}: {why}")
        else:
            done[step.action] += 1
    _report(steps, done, as_json)
    return FAILED if failed else OK


def _show(steps: list[ImportStep], as_json: bool) -> None:
    if as_json:
        for step in steps:
            emit(step.as_dict())
        return
    table(("name", "would", "why"), [(step.name, _WORDS[step.action], step.words) for step in steps])
    note("nothing was changed; --apply does it")


def _report(steps: list[ImportStep], done: Counter[str], as_json: bool) -> None:
    rest = [step for step in steps if step.action not in CHANGING]
    if as_json:
        emit({"done": dict(done), "left": [{"name": step.name, "why": step.words} for step in rest]})
        return
    say(f"{entries_of(done.total())} imported")
    for step in rest:
        say(f"{'cannot be imported' if step.action == FAIL else 'skipped'}: {step.name}: {step.words}")
