"""Selects the tasks of a command: by ids, by a filter, or with --all."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from wheel_sched.cli.instants import INSTANT
from wheel_sched.store.core.items import STATES, State
from wheel_sched_celery.management import HeldTasks, TaskFilter

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--task", "name", metavar="GLOB", help="Only tasks with this name; * and ? match."),
    click.option("--queue", "-Q", metavar="QUEUE", help="Only tasks of this queue."),
    click.option(
        "--since", "since_ms", type=INSTANT, metavar="INSTANT", help="Only tasks that are due at INSTANT or later."
    ),
    click.option(
        "--until", "until_ms", type=INSTANT, metavar="INSTANT", help="Only tasks that are due before INSTANT."
    ),
    click.option(
        "--state",
        "states",
        type=click.Choice(STATES),
        multiple=True,
        help="Only tasks in this state (default: due and held).",
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
