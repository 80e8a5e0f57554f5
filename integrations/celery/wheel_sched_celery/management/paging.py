"""Pages of the tasks in a state. A page reads a bounded number of tasks, however many wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wheel_sched.store.core.items import Found
from wheel_sched_celery.beat.apart import is_task
from wheel_sched_celery.management.held_tasks import HeldTasks
from wheel_sched_celery.management.waiting_task import TaskFilter, WaitingTask, read


class TaskPage(NamedTuple):
    """A page of tasks. `cursor` leads to the next page; None: this page is the last. A page may be short or empty."""

    tasks: Sequence[WaitingTask]
    cursor: str | None


def task_page(tasks: HeldTasks, selection: TaskFilter, cursor: str | None, limit: int) -> TaskPage:
    """One page of tasks: those with the selection's ids, or those in its first state, in the order of `list_items`.

    A page for a task name reads at most 40 times `limit` tasks.

    Raises:
        Rejected: the cursor is not from an earlier page.
    """
    if selection.ids:
        found = [one for task_id in dict.fromkeys(selection.ids) for one in tasks.get(task_id)]
        return TaskPage([one for one in found if selection.matches(one)][:limit], None)
    state = selection.states[0]
    least_ms, greatest_ms = selection.bounds(state)
    kept: dict[str, WaitingTask] = {}

    def matches(found: Found) -> bool:
        if not is_task(found):
            return False
        waiting = read(found)
        if selection.matches(waiting):
            kept[found.id] = waiting
            return True
        return False

    page = tasks.store.list_items(
        state,
        topic=selection.queue,
        least_ms=least_ms,
        greatest_ms=greatest_ms,
        cursor=cursor,
        limit=limit,
        matches=matches,
    )
    return TaskPage([kept[found.id] for found in page.found], page.cursor)
