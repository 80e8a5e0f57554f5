"""The bracket: the five calls of a stock scheduler's pass as claim, plan and hand over.

A pass of APScheduler 3 runs under one lock: `get_due_jobs`, then for each job `update_job` or `remove_job`, then
`get_next_run_time`. So the first call claims, the middle ones only plan, and the last one hands over. No call of the
middle or the end does I/O that may fail, because an exception there ends a stock scheduler's loop without a word.

What a job's own code does to its job while the pass holds it (an executor may run it inside the pass) is told apart by
identity: the scheduler plans with the very object it was given.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.jobstores.base import BaseJobStore

from wheel_sched.escaping import logger_of
from wheel_sched_apscheduler.instants import earliest, to_us
from wheel_sched_apscheduler.occurrence import Finish, Fire
from wheel_sched_apscheduler.stores.contract import Batch

_ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
_SEVERITY = {Finish.EXECUTED: 0, Finish.MISSED: 1, Finish.ERROR: 2}
RETRY_REFUSED_MS = 1_000  # how soon a last occurrence comes again that found `max_instances` running


class BracketStore(BaseJobStore):
    """The part that both stores share: the bracket, and events matched with fires."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = False  # by a scheduler of ours, see `passes`: fires then hold the plain job
        self._bracket: dict[str, Fire] = {}
        self._bracket_thread = 0
        self._wake_at: datetime | None = None
        self._claimed_once = False
        self._running: dict[str, list[Fire]] = {}  # handed over and not ended, by job id
        self._running_lock = threading.Lock()

    # What a store of ours adds.

    def claim_batch(self, now: datetime, limit: int | None = None) -> Batch:
        """See `passes`."""
        raise NotImplementedError

    def hand_over(self, fires: Sequence[Fire]) -> None:
        """See `passes`."""
        raise NotImplementedError

    def finish(self, fire: Fire, finish: Finish, error: str = "") -> None:
        """See `passes`."""
        raise NotImplementedError

    def release(self, fires: Iterable[Fire], delay_ms: int = 0) -> None:
        """See `passes`."""
        raise NotImplementedError

    def _unknown_executor(self, fire: Fire) -> None:
        """The scheduler has no executor of the job's name, and would delete the job."""
        raise NotImplementedError

    def _trigger_failed(self, fire: Fire, error: Exception) -> None:
        """Its trigger could not say when the job runs, or runs next."""
        raise NotImplementedError

    def _update(self, job: Any) -> None:
        """`update_job` by anybody but a pass."""
        raise NotImplementedError

    def _remove(self, job_id: str) -> None:
        """`remove_job` of a job that no fire of this process holds."""
        raise NotImplementedError

    def _head(self) -> datetime | None:
        """The earliest next run time, asked for outside of a pass."""
        raise NotImplementedError

    # The five calls.

    def start(self, scheduler: Any, alias: str) -> None:
        """Called by a scheduler; without one (None) nobody tells how fires end."""
        super().start(scheduler, alias)
        self._logger = logger_of(f"apscheduler.jobstores.{alias}")  # its lines quote what lies in the store
        self.driven = bool(getattr(scheduler, "drives_batches", False))
        if scheduler is not None and not self.driven:
            scheduler.add_listener(self._on_event, _ENDS | EVENT_JOB_SUBMITTED)

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Claim what is due. The answer holds at most a batch; the pass is then called again at once."""
        if self._bracket:
            self._close_bracket()
        batch = self.claim_batch(now)
        self._wake_at = batch.wake_at
        self._claimed_once = True
        self._bracket_thread = threading.get_ident()
        self._bracket = {}
        twice = []
        executors = getattr(self._scheduler, "_executors", None)
        for fire in batch.fires:
            if executors and fire.job.executor not in executors:  # none: the scheduler has not begun
                self._unknown_executor(fire)  # it would say that it removes the job
            elif fire.job_id in self._bracket:  # the same job again within one pass: it would end up in one entry
                twice.append(fire)
            else:
                self._bracket[fire.job_id] = fire
        if twice:
            self.release(twice)
            self._wake_at = now
        self._watch(self._bracket.values())
        return [fire.job for fire in self._bracket.values()]

    def update_job(self, job: Any) -> None:
        """Plan the next run of a claimed job; what its own code or anybody else changes is changed in the store.

        Raises:
            JobLookupError: there is no such job; never for a claimed one.
        """
        fire = self._held_here(job.id)
        if fire is None or job is not fire.job:
            self._update(job)
        elif not fire.planned:
            fire.plan(job.next_run_time)

    def remove_job(self, job_id: str) -> None:
        """End a claimed job after this fire; any other job is removed from the store.

        Raises:
            JobLookupError: there is no such job; never for a claimed one.
        """
        fire = self._held_here(job_id)
        if fire is None:
            self._remove(job_id)
        elif not fire.run_times and not fire.planned:
            del self._bracket[job_id]
            self._forget(fire)
            self._unknown_executor(fire)
        else:
            fire.plan(None)

    def get_next_run_time(self) -> datetime | None:
        """Hand over what was claimed and say when to come again. Never raises for a store that is away."""
        if self._claimed_once and threading.get_ident() == self._bracket_thread:
            self._close_bracket()
            wake_at, self._wake_at, self._claimed_once = self._wake_at, None, False
            return wake_at
        return self._head()

    def _close_bracket(self) -> None:
        fires, self._bracket = list(self._bracket.values()), {}
        planned = [fire for fire in fires if fire.planned]
        if len(planned) < len(fires):  # the pass ended before it came to them
            left = [fire for fire in fires if not fire.planned]
            for fire in left:
                self._forget(fire)
                if fire.trigger_error is not None:
                    self._trigger_failed(fire, fire.trigger_error)
            self.release([fire for fire in left if fire.trigger_error is None])
        if planned:
            self.hand_over(planned)
            self._wake_at = earliest([self._wake_at, *(fire.next_run_time for fire in planned)])

    def _plan_rest(self) -> None:
        """At a shutdown: a stock pass that finds its scheduler stopped breaks off, some jobs being with executors."""
        for fire in self._bracket.values():
            if fire.run_times and not fire.planned:
                following = fire.job.trigger.get_next_fire_time(fire.run_times[-1], datetime.now(UTC))
                fire.plan(following)
        self._close_bracket()

    def _held_here(self, job_id: str) -> Fire | None:
        fire = self._bracket.get(job_id)
        return fire if fire is not None and threading.get_ident() == self._bracket_thread else None

    # Ends.

    def _watch(self, fires: Iterable[Fire]) -> None:
        with self._running_lock:
            for fire in fires:
                self._running.setdefault(fire.job_id, []).append(fire)

    def _forget(self, fire: Fire) -> bool:
        """Stop waiting for a fire's end; whether it was waited for."""
        with self._running_lock:
            fires = self._running.get(fire.job_id)
            if fires is None or fire not in fires:
                return False
            fires.remove(fire)
            if not fires:
                del self._running[fire.job_id]
        return True

    def _fire_of(self, job_id: str, run_time: datetime) -> Fire | None:
        with self._running_lock:
            fires = self._running.get(job_id, ())
            if len(fires) == 1:
                return fires[0]
            run_us = to_us(run_time)  # of one zone, the two runs of a doubled hour are equal to Python
            return next((fire for fire in fires if any(to_us(each) == run_us for each in fire.run_times)), None)

    def _on_event(self, event: Any) -> None:
        """Of a stock scheduler: SUBMITTED may come after the end, and the end while the pass still goes on."""
        if event.jobstore != self._alias:
            return
        code = event.code
        if code in (EVENT_JOB_SUBMITTED, EVENT_JOB_MAX_INSTANCES):
            fire = self._fire_of(event.job_id, event.scheduled_run_times[0])
            if fire is None:
                return
            if code == EVENT_JOB_SUBMITTED:
                fire.handed_over = True
            elif fire.next_run_time is None:
                self._forget(fire)
                self.release([fire], RETRY_REFUSED_MS)
            else:
                self._end(fire, Finish.REFUSED, "max_instances of it are running")
            return
        fire = self._fire_of(event.job_id, event.scheduled_run_time)
        if fire is None:
            return
        if code == EVENT_JOB_EXECUTED:
            finish = Finish.EXECUTED
        else:
            finish = Finish.ERROR if code == EVENT_JOB_ERROR else Finish.MISSED
        if finish is Finish.ERROR:
            fire.error = repr(event.exception)
        worst = fire.finish
        if worst is None or _SEVERITY[finish] > _SEVERITY[worst]:
            fire.finish = finish
        fire.left -= 1
        if fire.left <= 0:
            self._end(fire, fire.finish or finish, fire.error)

    def _end(self, fire: Fire, finish: Finish, error: str) -> None:
        if self._forget(fire):
            self.finish(fire, finish, error)
