"""Which tasks a request for a change means: by ids, by a filter, or all."""

from __future__ import annotations

from wheel_sched.errors import NotDone, Rejected
from wheel_sched_celery.management.held_tasks import HeldTasks
from wheel_sched_celery.management.waiting_task import TaskFilter, WaitingTask

NOT_HERE = "it ran, was cancelled or never waited"
"""Why no task with a given id waits in the store."""


def check_choice(selection: TaskFilter, everything: bool) -> None:
    """Check that a request names tasks: by ids, by a filter, or all.

    Raises:
        Rejected: the request has no ids, no filter and is not for all tasks; or it has ids and is for all.
    """
    if everything and selection.ids:
        raise Rejected("Give ids, or --all, not both.")
    if not selection.narrow and not everything:
        raise Rejected("Which tasks? Give ids, a filter (--task, --queue, --since, --until) or --all.")


def choose(tasks: HeldTasks, selection: TaskFilter, everything: bool) -> list[WaitingTask]:
    """The tasks that a request is for.

    Args:
        tasks: the tasks of the app.
        selection: ids, or a filter.
        everything: whether the request is for all tasks.

    Raises:
        Rejected: see `check_choice`.
        NotDone: for one of the ids no task waits; nothing was changed.
    """
    check_choice(selection, everything)
    found = list(tasks.select(selection))
    known = {each.id for each in found} | {each.found.id for each in found}
    missing = [task_id for task_id in selection.ids if task_id not in known]
    if missing:
        raise NotDone(
            f"no task {', '.join(missing[:5])} waits here: {NOT_HERE}; nothing was changed; see `celery wheel list`"
        )
    return found


def is_named(selection: TaskFilter, meant: list[WaitingTask]) -> bool:
    """Whether the request is for one task, which it names by its id."""
    return len(selection.ids) == len(meant) == 1
