"""`HeldTasks`: lists, cancels and reschedules the tasks in an app's store.

    tasks = HeldTasks(app)
    for waiting in tasks.select(TaskFilter(queue="mail")):
        print(waiting.id, waiting.name, waiting.eta_ms)
    tasks.cancel(tasks.get(task_id))

It needs the store only: workers and broker may be down. It does not change a task in flight; `Changed.left` names such
tasks. It also does not change a task that somebody else has changed since the task was read, so that two administrators
do not undo each other's work.

Threads: any thread may call any method, and threads may share one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, MAX_DUE_MS, Found, Item, Outcome
from wheel_sched.store.core.plans import shard_of
from wheel_sched_celery.beat.apart import is_task, tasks_alone
from wheel_sched_celery.management.waiting_task import TaskFilter, WaitingTask, read
from wheel_sched_celery.message.held_task import REVOKED, bounded, ref_of, route_of, stamp_ref
from wheel_sched_celery.remote_control.revoking import Announcer
from wheel_sched_celery.wheel import managed_wheel

logger = logger_of("wheel_sched.celery")

MAX_STAMPED: Final = 100_000  # tasks that one stamp revokes

_WHY: Final = {
    Outcome.IN_FLIGHT: "is on its way to its queue",
    Outcome.CANCELLED: "is on its way to its queue; `celery control revoke` stops it there",
    Outcome.ABSENT: "is gone: it ran, was cancelled or never waited here",
    Outcome.OTHER_VERSION: "was changed by another process meanwhile",
    Outcome.WRONG_STATE: "is in another state meanwhile",
}


@dataclass(slots=True)
class Changed:
    """The result of a call that changes tasks.

    Args:
        done: tasks that were changed.
        left: tasks that were not changed, each with the reason.
    """

    done: list[WaitingTask] = field(default_factory=list)
    left: list[tuple[WaitingTask, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The result as data for JSON: how many tasks were changed, and which were not."""
        left = [{"id": waiting.id, "item": waiting.found.id, "why": why} for waiting, why in self.left]
        return {"done": len(self.done), "left": left}


class HeldTasks:
    """The held tasks of an app.

    Args:
        app: a Celery app with the integration installed, or its `Wheel`.
        store: an open store to use instead of the app's own. Defaults to None.

    Raises:
        ConfigError: the integration is not installed, or the app has no store.
    """

    def __init__(self, app: Any, store: DelayStore | None = None) -> None:
        self.wheel = managed_wheel(app, store)
        self._store = store

    @property
    def store(self) -> DelayStore:
        return self.wheel.store if self._store is None else self._store

    def now_ms(self) -> int:
        """The store's time, in ms since 1970."""
        return self.store.now_ms()

    def counts(self) -> Counts:
        """How many tasks are in each state, by queue. `due_head_ms` may be the due time of an entry of the schedule."""
        return tasks_alone(self.store.counts())

    def get(self, task_id: str) -> list[WaitingTask]:
        """The held messages of a task: several if it was sent more than once with one id, none if it is not held.

        Args:
            task_id: a task's id, or the id of one item (`WaitingTask.found.id`).
        """
        ids = self.store.find(ref_of(task_id))
        found = self.store.get(ids, route=bounded(task_id)) if ids else self._item(task_id)
        return self._read(found)

    @staticmethod
    def _read(found: Iterable[Found | None]) -> list[WaitingTask]:
        return sorted(
            (read(item) for item in found if item is not None), key=lambda each: (each.eta_ms or 0, each.found.id)
        )

    def _item(self, item_id: str) -> list[Found | None]:
        found = self.store.get([bounded(item_id)], route=route_of(item_id) or None)
        return [item for item in found if item is None or is_task(item)]

    def stamped(self, stamps: Mapping[str, Sequence[Any]]) -> Iterator[WaitingTask]:
        """Held tasks with one of these stamps, at most `MAX_STAMPED` for each. A task with two of them comes twice.

        `stamps`: lists of values by name, as in `revoke_by_stamped_headers`.
        """
        for stamp in ((name, value) for name, values in stamps.items() for value in values):
            for item_id in self.store.find(stamp_ref(stamp), limit=MAX_STAMPED):
                for waiting in self._read(self._item(item_id)):
                    if waiting.task is not None and stamp in waiting.task.stamps:
                        yield waiting

    def select(self, selection: TaskFilter | None = None, limit: int | None = None) -> Iterator[WaitingTask]:
        """The selected tasks, at most `limit`. Reads pages while you iterate.

        With ids: in their order. Else state by state, in order of due time, lease end or time of death.
        """
        selection = TaskFilter() if selection is None else selection
        left = MAX_DUE_MS if limit is None else limit
        for waiting in self._candidates(selection):
            if left <= 0:
                return
            if selection.matches(waiting):
                yield waiting
                left -= 1

    def _candidates(self, selection: TaskFilter) -> Iterator[WaitingTask]:
        if selection.ids:
            for task_id in dict.fromkeys(selection.ids):
                yield from self.get(task_id)
            return
        for state in selection.states:
            least_ms, greatest_ms = selection.bounds(state)
            cursor: str | None = None
            while True:
                page = self.store.list_items(
                    state, cursor=cursor, limit=MAX_BATCH, least_ms=least_ms, greatest_ms=greatest_ms, matches=is_task
                )
                yield from map(read, page.found)
                cursor = page.cursor
                if cursor is None:
                    break

    def import_tasks(self) -> str | None:
        """Import the app's tasks as a worker does, so that `cancel` finds errbacks and handlers of `task_revoked`.

        Returns why that failed, in words; None when it did not.
        """
        try:
            self.wheel.app.loader.import_default_modules()
        except Exception as error:  # the app's own code
            return f"tasks could not be imported ({error!r}): handlers of task_revoked and errbacks may be missing here"
        return None

    def cancel(self, tasks: Iterable[WaitingTask]) -> Changed:
        """Remove tasks for good, mark their results as revoked, fail their chords, and send events and signals."""
        with Announcer(self.wheel.app) as announcer:
            return self.revoke(tasks, announcer)

    def revoke(self, tasks: Iterable[WaitingTask], announcer: Announcer) -> Changed:
        """Do what `cancel` does, with the announcer of the caller.

        The method first moves a waiting task to the state "held", so that only one caller announces the revoke. It
        removes the task last. If anything fails in between, the task does not run and is still listed. A second
        `cancel` then announces the revoke. Tasks in other states are removed first: their revoke is tried only once.
        """
        changed = Changed()
        remaining = iter(tasks)
        while batch := list(islice(remaining, MAX_BATCH)):
            waiting = [each for each in batch if each.found.state == "due" and each.task is not None]
            parked = self._change(waiting, lambda each: Alteration(each.found.id, "h", REVOKED, each.found.version))
            again = [each for each in batch if each.revoked]
            removed = self._remove(
                [each for each in (*parked.done, *again) if self._announced(each, announcer, changed)]
            )
            on_its_way = [each for each, why in parked.left if why == _WHY[Outcome.IN_FLIGHT]]  # since it was read
            rest = [each for each in batch if not each.revoked and (each.found.state != "due" or each.task is None)]
            others = self._remove([*rest, *on_its_way])
            changed.left += [left for left in parked.left if left[0] not in on_its_way]
            changed.left += removed.left + others.left
            changed.done += removed.done
            changed.done += [each for each in others.done if self._announced(each, announcer, changed)]
        return changed

    def _announced(self, waiting: WaitingTask, announcer: Announcer, changed: Changed) -> bool:
        if waiting.task is None:
            return True
        try:
            announcer.announce(waiting.task)
        except Exception as error:  # a result backend may raise anything
            logger.warning("celery.not_announced: task %s is revoked, but its result is not: %r", waiting.id, error)
            changed.left.append((waiting, f"does not run, but its result could not be marked REVOKED: {error}"))
            return False
        return True

    def purge(self, tasks: Iterable[WaitingTask]) -> Changed:
        """Remove tasks for good. Their results stay as they are, mostly PENDING, as with `celery purge`."""
        return self._remove(tasks)

    def _remove(self, tasks: Iterable[WaitingTask]) -> Changed:
        def removal(each: WaitingTask) -> Alteration:
            return Alteration(each.found.id, "x" if each.found.state == "dead" else "c", "", each.found.version)

        return self._change(tasks, removal)

    def reschedule(self, tasks: Iterable[WaitingTask], eta_ms: int) -> Changed:
        """Give tasks another ETA. This also changes the message, so that a task reads the new ETA as `request.eta`.

        Held and dead tasks wait again then, unless their queue is paused; also a revoked one that is not announced.

        Raises:
            Rejected: the ETA lies outside 1970 to 9999; nothing was changed.
        """
        if not 0 <= eta_ms <= MAX_DUE_MS:
            raise Rejected(f"expected an ETA between 1970 and the year 9999, got: {eta_ms} ms; nothing was changed")
        return self._change(tasks, lambda each: self._moved(each, eta_ms))

    def run_now(self, tasks: Iterable[WaitingTask]) -> Changed:
        """Make tasks due now, as `reschedule` does; their ETA becomes the present time."""
        return self.reschedule(tasks, self.now_ms())

    def why_not_moved(self, waiting: WaitingTask) -> str:
        """Why a task cannot be given another ETA, in words; "" when it can."""
        if waiting.found.state == "leased":
            return _WHY[Outcome.IN_FLIGHT]
        try:
            self._moved(waiting, self.now_ms())
        except Rejected as error:
            return str(error)
        return ""

    @staticmethod
    def why_not_purged(waiting: WaitingTask) -> str:
        """Why a task cannot be removed, in words; "" when it can."""
        return _WHY[Outcome.IN_FLIGHT] if waiting.found.state == "leased" else ""

    @staticmethod
    def why_not_cancelled(waiting: WaitingTask) -> str:
        """Why a task cannot be cancelled, in words; "" when it can."""
        return _WHY[Outcome.CANCELLED] if waiting.found.state == "leased" else ""

    def _moved(self, waiting: WaitingTask, eta_ms: int) -> Alteration:
        if waiting.task is None:
            raise Rejected("cannot be read")
        if waiting.revoked:
            raise Rejected("is revoked")
        found = waiting.found
        item = self.wheel.item_of(waiting.task.with_eta(eta_ms))
        if item is None:
            raise Rejected("is too large for the store with its new ETA")
        same = Item(found.id, item.due_ms, item.body, found.topic, found.refs, found.route)
        if found.state == "dead":
            return Alteration(found.id, "q", item.due_ms or 0, found.version, same)
        return Alteration(found.id, "p", item.due_ms or 0, found.version, same)

    def _change(self, tasks: Iterable[WaitingTask], alteration: Callable[[WaitingTask], Alteration]) -> Changed:
        """Apply `alteration` to each task, with one call for each shard and batch."""
        changed = Changed()
        shards: dict[int, list[tuple[WaitingTask, Alteration]]] = {}
        for waiting in tasks:
            try:
                change = alteration(waiting)
            except Rejected as error:
                changed.left.append((waiting, str(error)))
                continue
            shard = shard_of(waiting.route, self.store.shards)
            batch = shards.setdefault(shard, [])
            batch.append((waiting, change))
            if len(batch) == MAX_BATCH:
                self._apply(shards.pop(shard), changed)
        for batch in shards.values():
            self._apply(batch, changed)
        return changed

    def _apply(self, batch: Sequence[tuple[WaitingTask, Alteration]], changed: Changed) -> None:
        outcomes = self.store.change([change for _, change in batch], route=batch[0][0].route)
        for (waiting, _), outcome in zip(batch, outcomes, strict=True):
            if outcome in (Outcome.DONE, Outcome.HELD, Outcome.STORED):
                changed.done.append(waiting)
            else:
                changed.left.append((waiting, _WHY.get(outcome, outcome.name.lower())))
