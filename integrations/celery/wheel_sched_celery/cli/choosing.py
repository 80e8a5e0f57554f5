"""Selects the tasks of a command: by ids, by a filter, or with --all."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from wheel_sched.cli.instants import INSTANT
from wheel_sched.errors import NotDone
from wheel_sched.store.core.items import STATES, State
from wheel_sched_celery.management import HeldTasks, TaskFilter, WaitingTask

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--task", "name", metavar="GLOB", help="Name of the task; * and ? match."),
    click.option("--queue", "-Q", metavar="QUEUE", help="Their queue."),
    click.option("--since", "since_ms", type=INSTANT, metavar="INSTANT", help="Due then or later."),
    click.option("--until", "until_ms", type=INSTANT, metavar="INSTANT", help="Due before that."),
    click.option(
        "--state", "states", type=click.Choice(STATES), multiple=True, help="Their state (default: due and held)."
    ),
)


def selecting(command: F) -> F:
    """Add the argument ID and the filter's options; the command gets them as one `selection`."""

    @wraps(command)
    def with_selection(
        *args: Any,
        ids: tuple[str, ...],
        name: str | None,
        queue: str | None,
        since_ms: int | None,
        until_ms: int | None,
        states: tuple[State, ...],
        **kwargs: Any,
    ) -> Any:
        selection = TaskFilter(ids, name, queue, since_ms, until_ms, states or ("due", "held"))
        return command(*args, selection=selection, **kwargs)

    decorated: Any = with_selection
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(decorated)  # type: ignore[no-any-return]


def held_tasks(ctx: click.Context) -> HeldTasks:
    """The held tasks of the app that `celery -A` has named."""
    return HeldTasks(ctx.obj.app)


def chosen(tasks: HeldTasks, selection: TaskFilter, everything: bool) -> list[WaitingTask]:
    """The tasks that a command must change. The user must give ids, a filter or --all.

    Raises:
        UsageError: the user gave no ids, no filter and no --all; or both ids and --all.
        NotDone: for one of the ids no task waits; nothing was changed.
    """
    if everything and selection.ids:
        raise click.UsageError("Give ids, or --all, not both.")
    if not selection.narrow and not everything:
        raise click.UsageError("Which tasks? Give ids, a filter (--task, --queue, --since, --until) or --all.")
    found = list(tasks.select(selection))
    known = {each.id for each in found} | {each.found.id for each in found}
    missing = [task_id for task_id in selection.ids if task_id not in known]
    if missing:
        raise NotDone(
            f"no task {', '.join(missing[:5])} waits here: it ran, was cancelled or is on its way; nothing was "
            "changed; see `celery wheel list`"
        )
    return found
