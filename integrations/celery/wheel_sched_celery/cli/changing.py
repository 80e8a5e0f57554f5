"""`celery wheel cancel`, `reschedule`, `run-now`, `purge` and `drain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from wheel_sched.cli.instants import DURATION, INSTANT
from wheel_sched.cli.options import confirm, dry_run_option, json_option, yes_option
from wheel_sched.cli.output import Progress, amount, emit, note, relative, say
from wheel_sched_celery.cli.choosing import chosen, held_tasks, selecting
from wheel_sched_celery.management import Changed, HeldTasks, TaskFilter, WaitingTask
from wheel_sched_celery.management.draining import drain as drain_store

_SAMPLES = 5
all_option = click.option("--all", "everything", is_flag=True, help="All of them; instead of ids or a filter.")


@click.command()
@selecting
@all_option
@dry_run_option
@yes_option
@json_option
@click.pass_context
def cancel(ctx: click.Context, selection: TaskFilter, everything: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove held tasks and announce that they are revoked: results, chords, events.

    One task named by its id is not asked about. What is on its way to its queue is left to `revoke`.

    \b
    Examples:
      celery -A proj wheel cancel 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f
      celery -A proj wheel cancel --task 'proj.remind*' --since +1d --dry-run
    """
    tasks = held_tasks(ctx)
    meant = chosen(tasks, selection, everything)
    if dry_run:
        _tell_dry_run("cancel", tasks, meant, as_json)
        return 0
    if meant and not _one_by_id(selection, meant):
        confirm(f"Cancel {amount(len(meant), 'task')}?", yes)
    _import_tasks(ctx.obj.app)
    return _tell("cancelled", tasks.cancel(meant), as_json)


@click.command()
@selecting
@all_option
@click.option("--at", "at_ms", type=INSTANT, metavar="INSTANT", help="The new ETA.")
@click.option("--in", "in_ms", type=DURATION, metavar="DURATION", help="The new ETA, counted from now.")
@dry_run_option
@yes_option
@json_option
@click.pass_context
def reschedule(
    ctx: click.Context,
    selection: TaskFilter,
    everything: bool,
    at_ms: int | None,
    in_ms: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Give held tasks another ETA; `request.eta` changes with it.

    \b
    Examples:
      celery -A proj wheel reschedule 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f --in 2h
      celery -A proj wheel reschedule --queue mail --until +1h --at 2026-12-24T18:00:00+01:00
    """
    if at_ms is None and in_ms is None:
        raise click.UsageError("When? Give --in or --at.")
    if at_ms is not None and in_ms is not None:
        raise click.UsageError("Give --in or --at, not both.")
    tasks = held_tasks(ctx)
    meant = chosen(tasks, selection, everything)
    if dry_run:
        _tell_dry_run("reschedule", tasks, meant, as_json)
        return 0
    if len(meant) > 1:
        confirm(f"Reschedule {amount(len(meant), 'task')}?", yes)
    eta_ms = at_ms if at_ms is not None else tasks.now_ms() + (in_ms or 0)
    return _tell("rescheduled", tasks.reschedule(meant, eta_ms), as_json)


@click.command("run-now")
@selecting
@all_option
@dry_run_option
@yes_option
@json_option
@click.pass_context
def run_now(
    ctx: click.Context, selection: TaskFilter, everything: bool, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Let held tasks run now; a live worker sends them to their queues.

    \b
    Examples:
      celery -A proj wheel run-now 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f
      celery -A proj wheel run-now --state dead --all --yes       what could not be published, again
    """
    tasks = held_tasks(ctx)
    meant = chosen(tasks, selection, everything)
    if dry_run:
        _tell_dry_run("run", tasks, meant, as_json)
        return 0
    if len(meant) > 1:
        confirm(f"Run {amount(len(meant), 'task')} now?", yes)
    return _tell("to run now", tasks.run_now(meant), as_json)


@click.command()
@selecting
@all_option
@dry_run_option
@yes_option
@json_option
@click.pass_context
def purge(ctx: click.Context, selection: TaskFilter, everything: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove held tasks for good; their results stay PENDING, as with `celery purge`.

    \b
    Examples:
      celery -A proj wheel purge --queue mail --dry-run
      celery -A proj wheel purge --all --yes
    """
    tasks = held_tasks(ctx)
    meant = chosen(tasks, selection, everything)
    if dry_run:
        _tell_dry_run("purge", tasks, meant, as_json)
        return 0
    if meant and not _one_by_id(selection, meant):
        confirm(f"Remove {amount(len(meant), 'task')} for good?", yes)
    return _tell("removed", tasks.purge(meant), as_json)


@click.command()
@dry_run_option
@yes_option
@json_option
@click.pass_context
def drain(ctx: click.Context, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Send all held tasks to their queues, ETA intact; workers then hold them in memory.

    The way out: set `wheel_horizon = None` in producers and workers, restart them, drain, uninstall. Workers may be
    up; where one answers and does not say that it leaves the tasks alone, nothing is sent. What came back at the end is
    counted, and the exit code is 1.

    \b
    Examples:
      celery -A proj wheel drain --dry-run
      celery -A proj wheel drain --yes --json
    """
    tasks = held_tasks(ctx)
    if dry_run:
        _tell_dry_run("send", tasks, list(tasks.select(TaskFilter(states=("due",)))), as_json)
        return 0
    if tasks.wheel.settings.holds:
        note("producers still put tasks on hold: set wheel_horizon = None first")
    waiting = tasks.counts().total("due")
    if waiting:
        confirm(f"Send {amount(waiting, 'task')} to the broker now?", yes)
    with Progress("sent") as progress:
        drained = drain_store(ctx.obj.app, progress=progress)
    if as_json:
        emit({"done": drained.published, "left": drained.kept, "back": drained.back})
    else:
        say(f"{amount(drained.published, 'task')} sent to the broker")
        for reason, count in drained.kept.items():
            say(f"{amount(count, 'task')} still here: {reason}")
        if drained.back:
            say(
                f"{amount(drained.back, 'task')} in the store again: a producer put them on hold; stop it, then "
                "drain again"
            )
    return 1 if drained.kept or drained.back else 0


def _import_tasks(app: Any) -> None:
    """Import what a worker imports: errbacks of chords and handlers of `task_revoked` lie there."""
    try:
        app.loader.import_default_modules()
    except Exception as error:  # the app's own code
        note(f"tasks could not be imported ({error!r}): handlers of task_revoked and errbacks may be missing here")


def _one_by_id(selection: TaskFilter, meant: Sequence[WaitingTask]) -> bool:
    """Whether it is certain that this one task is meant, so that nobody has to be asked."""
    return len(selection.ids) == len(meant) == 1


def _tell_dry_run(action: str, tasks: HeldTasks, meant: Sequence[WaitingTask], as_json: bool) -> None:
    if as_json:
        emit({"dry_run": True, "count": len(meant), "samples": [each.as_dict() for each in meant[:_SAMPLES]]})
        return
    now_ms = tasks.now_ms()
    say(f"would {action} {amount(len(meant), 'task')}")
    for each in meant[:_SAMPLES]:
        due = "" if each.eta_ms is None else f"  {relative(each.eta_ms, now_ms)}"
        say(f"  {each.id}  {each.name}{due}  {each.queue}".rstrip())
    note("nothing was changed")


def _tell(done: str, changed: Changed, as_json: bool) -> int:
    """Say what became of them; 0 when all were changed."""
    if as_json:
        left = [{"id": waiting.id, "item": waiting.found.id, "why": why} for waiting, why in changed.left]
        emit({"done": len(changed.done), "left": left})
    else:
        say(f"{amount(len(changed.done), 'task')} {done}")
        for waiting, why in changed.left[: 2 * _SAMPLES]:
            say(f"left as it was: {waiting.id} {why}")
        if len(changed.left) > 2 * _SAMPLES:
            say(f"and {amount(len(changed.left) - 2 * _SAMPLES, 'more task')}; --json names all of them")
    return 1 if changed.left else 0
