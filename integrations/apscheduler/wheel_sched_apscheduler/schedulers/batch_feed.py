"""A job store of ours as the loop sees it: one round trip settles what has ended and claims the next batch.

Claiming needs no lock of the scheduler, so nobody waits for the server but the loop. What is claimed is handed over at
once; a pause or the end that comes in between puts it back, at its old due. Claiming stops while too much is in flight,
so that a backlog stays in the store, where other processes can take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_REMOVED,
    JobEvent,
)

from wheel_sched_apscheduler.bracket import RETRY_REFUSED_MS
from wheel_sched_apscheduler.fire import Finish, Fire
from wheel_sched_apscheduler.missed import missed_run_times
from wheel_sched_apscheduler.schedulers.feeds import Batch
from wheel_sched_apscheduler.schedulers.handover import Handover, in_grace, missed, without_grace

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.events import SchedulerEvent

_WORTHWHILE = 32  # this part of what may be in flight is claimed at a time, at least


class BatchFeed:
    """One job store that is claimed from.

    Args:
        store: a started `passes.BatchStore`.
        alias: its name in the scheduler.
        has_executor: whether there is an executor of that name.
        ring: wakes the loop.
        retry_s: pause after an error nobody foresaw; a store that is away says itself when to come again.
        max_in_flight: hand-overs that have not ended, at which claiming stops.
        logger: where errors are told.

    Thread rules: `take` and `put_back` by the loop's thread; the ends of hand-overs come from any.
    """

    locked = False

    def __init__(
        self,
        store: Any,
        alias: str,
        has_executor: Callable[[str], bool],
        ring: Callable[[], None],
        retry_s: float,
        max_in_flight: int,
        logger: Logger,
    ) -> None:
        self.store = store
        self.alias = alias
        self._has_executor = has_executor
        self._ring = ring
        self._retry_s = retry_s
        self._max_in_flight = max_in_flight
        self._logger = logger
        self._flying: set[Fire] = set()
        self._full = False

    def forget(self, job_id: str | None = None) -> None:
        """Nothing is remembered here: the store tells a changed job from the one it gave out."""

    def take(self, now: datetime, limit: int) -> Batch:
        """Claim at most `limit` jobs and plan their next runs."""
        batch = Batch()
        if self._room() <= 0:
            self._full = True
            if self._room() <= 0:  # asked again: an end that came in between did not see that we wait
                return batch
        room = self._max_in_flight - len(self._flying)
        try:
            claimed = self.store.claim_batch(now, min(limit, room))
        except Exception:
            self._logger.exception("Job store %r failed; next try in %g s", self.alias, self._retry_s)
            batch.head_s = now.timestamp() + self._retry_s
            return batch
        planned = [fire for fire in claimed.fires if self._plan(fire, now)]
        self._flying.update(planned)
        self.store.hand_over(planned)
        for fire in planned:
            self._add(fire, now, batch)
        heads = [fire.next_run_time for fire in planned if fire.next_run_time is not None]
        if claimed.wake_at is not None:
            heads.append(claimed.wake_at)
        batch.head_s = min(heads).timestamp() if heads else None
        return batch

    def put_back(self, handovers: list[Handover]) -> list[Handover]:
        """The scheduler was paused or is being shut down: these come again. The answer: what cannot be put back."""
        for handover in handovers:
            handover.end(())
        return []

    def _room(self) -> int:
        """How many may be claimed; 0 also when it is too few to be worth a round trip."""
        room = self._max_in_flight - len(self._flying)
        return room if room >= max(1, self._max_in_flight // _WORTHWHILE) else 0

    def _plan(self, fire: Fire, now: datetime) -> bool:
        """Decide its run times and what comes after them; False: it does not run now."""
        job = fire.job
        if not self._has_executor(job.executor):
            self.store._unknown_executor(fire)
            return False
        try:
            run_times = fire.run_times or fire.run_at(missed_run_times(job, now))
            if fire.planned:
                return True
            if run_times:
                fire.plan(job.trigger.get_next_fire_time(run_times[-1], now))
                return True
        except Exception:
            self._logger.exception('The trigger of job "%s" failed; next try in %g s', job, self._retry_s)
            self.store.release([fire], int(self._retry_s * 1000))
        else:
            self.store.release([fire])
        return False

    def _add(self, fire: Fire, now: datetime, batch: Batch) -> None:
        job = fire.job
        run_times, late = in_grace(job, fire.run_times, now)
        last = fire.next_run_time is None and not fire.redelivered
        if late:
            self._logger.warning('%d run times of job "%s" came too late and are dropped', len(late), job)
            batch.events += missed(job, self.alias, late)
            if not run_times:
                if last:
                    batch.events.append(JobEvent(EVENT_JOB_REMOVED, job.id, self.alias))
                self._finish(fire, Finish.MISSED, "")
                return
        batch.handovers.append(Handover(without_grace(job), self.alias, run_times, self, fire, last, bool(late)))

    def ended(self, handover: Handover, events: Sequence[SchedulerEvent]) -> None:
        """From any thread: what became of a hand-over."""
        fire = handover.fire
        if fire is None:
            return
        if not events:
            self._release(fire)
            return
        worst, error = Finish.MISSED if handover.late else Finish.EXECUTED, ""
        for event in events:
            code = event.code
            if code == EVENT_JOB_EXECUTED:
                continue
            if code == EVENT_JOB_MAX_INSTANCES:
                self._refused(fire)
                return
            if code == EVENT_JOB_ERROR:
                worst, error = Finish.ERROR, repr(event.exception)
        self._finish(fire, worst, error)

    def _refused(self, fire: Fire) -> None:
        if fire.next_run_time is None and fire.overriding is None:  # the last of its runs must not be lost
            self._release(fire, RETRY_REFUSED_MS)
        else:
            self._finish(fire, Finish.REFUSED, "max_instances of it are running")

    def _finish(self, fire: Fire, finish: Finish, error: str) -> None:
        self.store.finish(fire, finish, error)
        self._landed(fire)

    def _release(self, fire: Fire, delay_ms: int = 0) -> None:
        self.store.release([fire], delay_ms)
        self._landed(fire)

    def _landed(self, fire: Fire) -> None:
        self._flying.discard(fire)
        if self._full and self._room():
            self._full = False
            self._ring()
