"""The changes of tasks that a visitor can ask for. A visitor sees a preview first.

A task that has changed since the preview stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import NamedTuple

from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.named_things import ChosenThings, NamedKind
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.management.moments import check_moment, instant_ms, moment_ms
from wheel_sched.management.wording import amount, instant, relative
from wheel_sched_celery.dashboard.opening import OpenedTasks, opened_of
from wheel_sched_celery.management import Changed, HeldTasks, WaitingTask
from wheel_sched_celery.management.choosing import NOT_HERE
from wheel_sched_celery.management.message_contents import may_execute

TASKS = NamedKind("task", "tasks", "the id of a task, or of one item", lambda count: amount(count, "task"))
MOMENT = (
    ActionField("in", "the new ETA, counted from now, such as 2h"),
    ActionField("at", "the new ETA, such as 2026-12-24T18:00:00Z; without a zone it is UTC"),
)
Change = Callable[[OpenedTasks, Sequence[WaitingTask], Arguments], Changed]


class TaskChange(NamedTuple):
    """A change of tasks.

    Args:
        name: the name of the action.
        right: the right that it needs.
        summary: one line for the OpenAPI document.
        words: what it would do, called with the arguments and the store's time; `{}` becomes the number of tasks.
        done: what it did; `{}` becomes the number of tasks.
        why_not: why a task cannot be changed so, in words; "" when it can.
        change: changes the tasks that have not changed since they were read.
        fields: its arguments.
        warning: what the user should know before. Defaults to "".
        check: raises a `WheelSchedError` when the dashboard cannot do it at all.
    """

    name: str
    right: Right
    summary: str
    words: Callable[[Arguments, int], str]
    done: str
    why_not: Callable[[HeldTasks, WaitingTask], str]
    change: Change
    fields: tuple[ActionField, ...] = TASKS.fields
    warning: str = ""
    check: Callable[[OpenedTasks], None] = lambda _: None


def eta_of(arguments: Arguments, now_ms: int) -> int:
    """The new ETA of a request, in epoch ms.

    Raises:
        Rejected: the request has no ETA, two, or one that cannot be read.
    """
    after, at = (str(arguments.get(name, "")).strip() or None for name in ("in", "at"))
    check_moment(after, at)
    try:
        after_ms = None if after is None else parse_duration(after)
        at_ms = None if at is None else instant_ms(at, zone=UTC)
    except ConfigError as error:
        raise Rejected(f"{error}; nothing was changed") from error
    return moment_ms(after_ms, at_ms, now_ms)


def _not_revoked(tasks: HeldTasks, waiting: WaitingTask) -> str:
    """Why a task cannot be revoked, in words; "" when it can.

    The command line has the same reasons. The dashboard has one more: it does not read a body that could run code, so
    it cannot announce that such a task is revoked.
    """
    if why := tasks.why_not_cancelled(waiting):
        return why
    if waiting.task is None:
        return "cannot be read; purge it"
    if may_execute(waiting.task):
        return "has a body that is not read here, such as a pickled one; `celery wheel cancel` revokes it"
    return ""


def _revoke(opened: OpenedTasks, meant: Sequence[WaitingTask], _: Arguments) -> Changed:
    opened.tasks.import_tasks()  # for the handlers of the running application; it has usually imported them
    return opened.tasks.cancel(meant)


def _check_app(opened: OpenedTasks) -> None:
    if opened.why_no_revoke:
        raise Rejected(f"{opened.why_no_revoke}; nothing was changed")


CHANGES = (
    TaskChange(
        "run-task-now",
        "operate",
        "Let waiting Celery tasks run now",
        lambda _, __: "let {} run now",
        "{} to run now",
        HeldTasks.why_not_moved,
        lambda opened, meant, _: opened.tasks.run_now(meant),
        warning="a live worker sends them to their queues",
    ),
    TaskChange(
        "reschedule-task",
        "operate",
        "Give waiting Celery tasks another ETA",
        lambda arguments, now_ms: "give {} the ETA " + instant(eta_of(arguments, now_ms)),
        "{} rescheduled",
        HeldTasks.why_not_moved,
        lambda opened, meant, arguments: opened.tasks.reschedule(meant, eta_of(arguments, opened.tasks.now_ms())),
        (*TASKS.fields, *MOMENT),
    ),
    TaskChange(
        "revoke-task",
        "delete",
        "Revoke waiting Celery tasks",
        lambda _, __: "revoke {} for good",
        "{} revoked",
        _not_revoked,
        _revoke,
        warning="results are marked REVOKED, chords fail, events and signals are sent",
        check=_check_app,
    ),
    TaskChange(
        "purge-task",
        "delete",
        "Remove waiting Celery tasks for good",
        lambda _, __: "remove {} for good",
        "{} removed",
        lambda tasks, waiting: tasks.why_not_purged(waiting),
        lambda opened, meant, _: opened.tasks.purge(meant),
        warning="their results stay PENDING, and no revoke is announced",
    ),
)


def _preview(change: TaskChange, dashboard: Dashboard, arguments: Arguments) -> Preview:
    opened = opened_of(dashboard)
    tasks = opened.tasks
    change.check(opened)
    now_ms, chosen = tasks.now_ms(), ChosenThings(TASKS)
    for task_id in TASKS.names_of(arguments):
        found = tasks.get(task_id)
        if not found:
            chosen.leave(f"it is not here: {NOT_HERE}")
        for waiting in found:
            why = change.why_not(tasks, waiting)
            if why:
                chosen.leave(f"it {why}")
            else:
                item = waiting.found
                chosen.choose(item.id, waiting, [item.state, item.version], _sample(waiting, now_ms))
    return chosen.preview(change.words(arguments, now_ms), change.warning)


def _sample(waiting: WaitingTask, now_ms: int) -> str:
    due = "" if waiting.eta_ms is None else f", due {relative(waiting.eta_ms, now_ms)}"
    return f"{waiting.id}: {waiting.name or '(cannot be read)'}, queue {waiting.queue}{due}"


def _execute(change: TaskChange, dashboard: Dashboard, arguments: Arguments, found: Preview) -> ActionResult:
    meant: dict[str, WaitingTask] = found.selected
    changed = change.change(opened_of(dashboard), list(meant.values()), arguments)
    left = Counter(why for _, why in changed.left)
    return ActionResult(len(changed.done), change.done.format(amount(len(changed.done), "task")), dict(left), "/tasks")


def _action(change: TaskChange) -> Action:
    return Action(
        change.name,
        change.right,
        change.summary,
        change.fields,
        lambda dashboard, arguments: _preview(change, dashboard, arguments),
        lambda dashboard, arguments, found, _who: _execute(change, dashboard, arguments, found),
    )


ACTIONS = tuple(map(_action, CHANGES))
