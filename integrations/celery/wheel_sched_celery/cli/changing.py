"""`celery wheel cancel`, `reschedule`, `run-now`, `purge` and `drain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from wheel_sched.cli.failing import as_usage
from wheel_sched.cli.instants import DURATION, INSTANT
from wheel_sched.cli.options import confirm, dry_run_option, json_option, yes_option
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.management.moments import check_moment, moment_ms
from wheel_sched.management.wording import amount, relative
from wheel_sched_celery.cli.choosing import held_tasks, selecting
from wheel_sched_celery.management import Changed, HeldTasks, TaskFilter, WaitingTask
from wheel_sched_celery.management.choosing import check_choice, choose, is_named
from wheel_sched_celery.management.draining import drain as drain_store

_SAMPLES = 5


def _changing(command: Callable[..., int]) -> Callable[..., int]:
    """Add the parameters of all commands that change tasks: ids, the filter, --all, --dry-run, --yes and --json."""
    everything = click.option("--all", "everything", is_flag=True, help="All of them; instead of ids or a filter.")
    for add in (click.pass_context, json_option, yes_option, dry_run_option, everything, selecting):
        command = add(command)
    return command


@dataclass(frozen=True, slots=True)
class _Action:
    """One way to change tasks.

    Args:
        verb: names the change in the output of a dry run.
        question: asked before the change; `{}` becomes the number of tasks.
        done: names the change in the output after the change.
        change: the function that changes the tasks.
        removes: whether the change removes tasks. If so, ask also about a single task that the user has not named by
            its id.
    """

    verb: str
    question: str
    done: str
    change: Callable[[HeldTasks, Sequence[WaitingTask]], Changed]
    removes: bool = False


def _perform(
    action: _Action,
    ctx: click.Context,
    *,
    selection: TaskFilter,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Choose the tasks, ask, change them, and print the results. Returns 0 when all were changed."""
    tasks = held_tasks(ctx)
    with as_usage():
        check_choice(selection, everything)
    meant = choose(tasks, selection, everything)
    if dry_run:
        _show_dry_run(action.verb, tasks, meant, as_json)
        return 0
    if len(meant) > 1 or (meant and action.removes and not is_named(selection, meant)):
        confirm(action.question.format(amount(len(meant), "task")), yes)
    changed = action.change(tasks, meant)
    if as_json:
        emit(changed.as_dict())
    else:
        say(f"{amount(len(changed.done), 'task')} {action.done}")
        for waiting, why in changed.left[: 2 * _SAMPLES]:
            say(f"not changed: {waiting.id} {why}")
        if len(changed.left) > 2 * _SAMPLES:
            say(f"and {amount(len(changed.left) - 2 * _SAMPLES, 'more task')}; --json names all of them")
    return 1 if changed.left else 0


def _show_dry_run(verb: str, tasks: HeldTasks, meant: Sequence[WaitingTask], as_json: bool) -> None:
    if as_json:
        emit({"dry_run": True, "count": len(meant), "samples": [each.as_dict() for each in meant[:_SAMPLES]]})
        return
    now_ms = tasks.now_ms()
    say(f"would {verb} {amount(len(meant), 'task')}")
    for each in meant[:_SAMPLES]:
        due = "" if each.eta_ms is None else f"  {relative(each.eta_ms, now_ms)}"
        say(f"  {each.id}  {each.name}{due}  {each.queue}".rstrip())
    note("nothing was changed")


@click.command()
@_changing
def cancel(ctx: click.Context, **options: Any) -> int:
    """Remove held tasks and announce that they are revoked: mark their results, fail their chords, send events.

    A single task that you name by its id is removed without a question. A task on its way to its queue is not removed:
    use `celery control revoke`.

    \b
    Examples:
      celery -A proj wheel cancel 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f
      celery -A proj wheel cancel --task 'proj.remind*' --since +1d --dry-run
    """

    def remove(tasks: HeldTasks, meant: Sequence[WaitingTask]) -> Changed:
        if problem := tasks.import_tasks():
            note(problem)
        return tasks.cancel(meant)

    return _perform(_Action("cancel", "Cancel {}?", "cancelled", remove, removes=True), ctx, **options)


@click.command()
@click.option("--at", "at_ms", type=INSTANT, metavar="INSTANT", help="The new ETA.")
@click.option("--in", "in_ms", type=DURATION, metavar="DURATION", help="The new ETA, counted from now.")
@_changing
def reschedule(ctx: click.Context, at_ms: int | None, in_ms: int | None, **options: Any) -> int:
    """Give held tasks another ETA; `request.eta` changes with it.

    \b
    Examples:
      celery -A proj wheel reschedule 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f --in 2h
      celery -A proj wheel reschedule --queue mail --until +1h --at 2026-12-24T18:00:00+01:00
    """
    with as_usage():
        check_moment(in_ms, at_ms, dashes="--")

    def move(tasks: HeldTasks, meant: Sequence[WaitingTask]) -> Changed:
        return tasks.reschedule(meant, moment_ms(in_ms, at_ms, tasks.now_ms()))

    return _perform(_Action("reschedule", "Reschedule {}?", "rescheduled", move), ctx, **options)


@click.command("run-now")
@_changing
def run_now(ctx: click.Context, **options: Any) -> int:
    """Let held tasks run now; a live worker sends them to their queues.

    \b
    Examples:
      celery -A proj wheel run-now 7f3c2a9e-6d0e-4f0a-8a55-0a1b2c3d4e5f
      celery -A proj wheel run-now --state dead --all --yes       send again what could not be published
    """
    return _perform(_Action("run", "Run {} now?", "to run now", HeldTasks.run_now), ctx, **options)


@click.command()
@_changing
def purge(ctx: click.Context, **options: Any) -> int:
    """Remove held tasks for good; their results stay as they are, as with `celery purge`.

    \b
    Examples:
      celery -A proj wheel purge --queue mail --dry-run
      celery -A proj wheel purge --all --yes
    """
    return _perform(_Action("purge", "Remove {} for good?", "removed", HeldTasks.purge, removes=True), ctx, **options)


@click.command()
@dry_run_option
@yes_option
@json_option
@click.pass_context
def drain(ctx: click.Context, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Send all waiting tasks to their queues, with their ETA. The tasks then wait in the memory of workers.

    To uninstall: set `wheel_horizon = None` in producers and workers, restart them, drain, uninstall. Workers may be
    up. If tasks could not be sent, or producers held more tasks during the drain, the exit code is 1.

    \b
    Examples:
      celery -A proj wheel drain --dry-run
      celery -A proj wheel drain --yes --json
    """
    tasks = held_tasks(ctx)
    if dry_run:
        _show_dry_run("send", tasks, list(tasks.select(TaskFilter(states=("due",)))), as_json)
        return 0
    if tasks.wheel.settings.holds:
        note("producers still hold tasks: set wheel_horizon = None first")
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
            say(f"{amount(drained.back, 'task')} in the store again: a producer held them; stop it, then drain again")
    return 1 if drained.kept or drained.back else 0
