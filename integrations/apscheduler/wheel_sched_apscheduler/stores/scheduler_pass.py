"""SchedulerPassStore: the five calls of a stock scheduler's pass, as claim, plan and submit.

A pass of APScheduler 3 runs under one lock: `get_due_jobs`, then for each job `update_job` or `remove_job`, then
`get_next_run_time`. So the first call claims, the middle ones only plan, and the last one marks as submitted. The
middle and last calls do no I/O that can fail: an exception there ends a stock scheduler's loop without a word.

An executor may run a job inside the pass, and the job may change itself. The scheduler plans with the very object that
it was given, so identity tells the two apart.
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
from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.stores.contract import OccurrenceBatch

_ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
_SEVERITY = {Finish.EXECUTED: 0, Finish.MISSED: 1, Finish.ERROR: 2}
RETRY_REFUSED_MS = 1_000  # until a last run is tried again that found `max_instances` running


class SchedulerPassStore(BaseJobStore):
    """What both jobstores share: the pass of a stock scheduler, and which occurrence an event is about."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = False  # whether one of our schedulers drives it, see `contract`: occurrences then hold plain jobs
        self._pass: dict[str, Occurrence] = {}
        self._pass_thread = 0
        self._wake_at: datetime | None = None
        self._claimed_once = False
        self._running: dict[str, list[Occurrence]] = {}  # with executors and not ended, by job id
        self._running_lock = threading.Lock()

    # What each jobstore adds.

    def claim_batch(self, now: datetime, limit: int | None = None) -> OccurrenceBatch:
        """See `contract`."""
        raise NotImplementedError

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """See `contract`."""
        raise NotImplementedError

    def finish(self, occurrence: Occurrence, finish: Finish, error: str = "") -> None:
        """See `contract`."""
        raise NotImplementedError

    def release(self, occurrences: Iterable[Occurrence], delay_ms: int = 0) -> None:
        """See `contract`."""
        raise NotImplementedError

    def report_unknown_executor(self, occurrence: Occurrence) -> None:
        """See `contract`. A stock scheduler would delete the job."""
        raise NotImplementedError

    def report_trigger_failure(self, occurrence: Occurrence, error: Exception) -> None:
        """See `contract`. A stock scheduler's loop would end."""
        raise NotImplementedError

    def _update(self, job: Any) -> None:
        """`update_job`, outside of a pass."""
        raise NotImplementedError

    def _remove(self, job_id: str) -> None:
        """`remove_job`, outside of a pass."""
        raise NotImplementedError

    def _head(self) -> datetime | None:
        """`get_next_run_time`, outside of a pass."""
        raise NotImplementedError

    # The five calls.

    def start(self, scheduler: Any, alias: str) -> None:
        """Called by a scheduler. Without one (None) nobody reports how occurrences end."""
        super().start(scheduler, alias)
        self._logger = logger_of(f"apscheduler.jobstores.{alias}")  # its lines quote stored data
        self.driven = bool(getattr(scheduler, "drives_batches", False))
        if scheduler is not None and not self.driven:
            scheduler.add_listener(self._on_event, _ENDS | EVENT_JOB_SUBMITTED)

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Claim what is due, at most a batch. If more is due, the scheduler comes again at once."""
        if self._pass:
            self._close_pass()
        batch = self.claim_batch(now)
        self._wake_at = batch.wake_at
        self._claimed_once = True
        self._pass_thread = threading.get_ident()
        self._pass = {}
        twice = []
        executors = getattr(self._scheduler, "_executors", None)
        for occurrence in batch.occurrences:
            if executors and occurrence.job.executor not in executors:  # empty: the scheduler has not started
                self.report_unknown_executor(occurrence)  # the scheduler would delete the job
            elif (
                occurrence.job_id in self._pass
            ):  # two occurrences of one job in a pass: the scheduler would mix them up
                twice.append(occurrence)
            else:
                self._pass[occurrence.job_id] = occurrence
        if twice:
            self.release(twice)
            self._wake_at = now
        self._watch(self._pass.values())
        return [occurrence.job for occurrence in self._pass.values()]

    def update_job(self, job: Any) -> None:
        """Plan the next run of a claimed job. A change by anybody else, also by the job's own code, goes to the store.

        Raises:
            JobLookupError: there is no such job; never for a claimed one.
        """
        occurrence = self._held_here(job.id)
        if occurrence is None or job is not occurrence.job:
            self._update(job)
        elif not occurrence.planned:
            occurrence.plan(job.next_run_time)

    def remove_job(self, job_id: str) -> None:
        """End a claimed job after this occurrence. Any other job is removed from the store.

        Raises:
            JobLookupError: there is no such job; never for a claimed one.
        """
        occurrence = self._held_here(job_id)
        if occurrence is None:
            self._remove(job_id)
        elif not occurrence.run_times and not occurrence.planned:
            del self._pass[job_id]
            self._forget(occurrence)
            self.report_unknown_executor(occurrence)
        else:
            occurrence.plan(None)

    def get_next_run_time(self) -> datetime | None:
        """Mark what was claimed as submitted, and say when to come again. Never raises when the store is away."""
        if self._claimed_once and threading.get_ident() == self._pass_thread:
            self._close_pass()
            wake_at, self._wake_at, self._claimed_once = self._wake_at, None, False
            return wake_at
        return self._head()

    def _close_pass(self) -> None:
        occurrences, self._pass = list(self._pass.values()), {}
        planned = [occurrence for occurrence in occurrences if occurrence.planned]
        if len(planned) < len(occurrences):  # the pass ended before it planned them
            left = [occurrence for occurrence in occurrences if not occurrence.planned]
            for occurrence in left:
                self._forget(occurrence)
                if occurrence.trigger_error is not None:
                    self.report_trigger_failure(occurrence, occurrence.trigger_error)
            self.release([occurrence for occurrence in left if occurrence.trigger_error is None])
        if planned:
            self.mark_submitted(planned)
            self._wake_at = earliest([self._wake_at, *(occurrence.next_run_time for occurrence in planned)])

    def _plan_rest(self) -> None:
        """At a shutdown: a stock pass breaks off when its scheduler stops, with some jobs already with executors."""
        for occurrence in self._pass.values():
            if occurrence.run_times and not occurrence.planned:
                following = occurrence.job.trigger.get_next_fire_time(occurrence.run_times[-1], datetime.now(UTC))
                occurrence.plan(following)
        self._close_pass()

    def _held_here(self, job_id: str) -> Occurrence | None:
        occurrence = self._pass.get(job_id)
        return occurrence if occurrence is not None and threading.get_ident() == self._pass_thread else None

    # Ends.

    def _watch(self, occurrences: Iterable[Occurrence]) -> None:
        with self._running_lock:
            for occurrence in occurrences:
                self._running.setdefault(occurrence.job_id, []).append(occurrence)

    def _forget(self, occurrence: Occurrence) -> bool:
        """Stop waiting for the end of an occurrence; whether anybody waited for it."""
        with self._running_lock:
            occurrences = self._running.get(occurrence.job_id)
            if occurrences is None or occurrence not in occurrences:
                return False
            occurrences.remove(occurrence)
            if not occurrences:
                del self._running[occurrence.job_id]
        return True

    def _occurrence_of(self, job_id: str, run_time: datetime) -> Occurrence | None:
        with self._running_lock:
            occurrences = self._running.get(job_id, ())
            if len(occurrences) == 1:
                return occurrences[0]
            run_us = to_us(run_time)  # Python takes the two runs of a doubled hour for equal when they have one zone
            return next(
                (
                    occurrence
                    for occurrence in occurrences
                    if any(to_us(each) == run_us for each in occurrence.run_times)
                ),
                None,
            )

    def _on_event(self, event: Any) -> None:
        """An event of a stock scheduler. SUBMITTED may come after the end, and the end during the pass."""
        if event.jobstore != self._alias:
            return
        code = event.code
        if code in (EVENT_JOB_SUBMITTED, EVENT_JOB_MAX_INSTANCES):
            occurrence = self._occurrence_of(event.job_id, event.scheduled_run_times[0])
            if occurrence is None:
                return
            if code == EVENT_JOB_SUBMITTED:
                occurrence.submitted = True
            elif occurrence.next_run_time is None:
                self._forget(occurrence)
                self.release([occurrence], RETRY_REFUSED_MS)
            else:
                self._end(occurrence, Finish.REFUSED, "max_instances of it are running")
            return
        occurrence = self._occurrence_of(event.job_id, event.scheduled_run_time)
        if occurrence is None:
            return
        if code == EVENT_JOB_EXECUTED:
            finish = Finish.EXECUTED
        else:
            finish = Finish.ERROR if code == EVENT_JOB_ERROR else Finish.MISSED
        if finish is Finish.ERROR:
            occurrence.error = repr(event.exception)
        worst = occurrence.finish
        if worst is None or _SEVERITY[finish] > _SEVERITY[worst]:
            occurrence.finish = finish
        occurrence.left -= 1
        if occurrence.left <= 0:
            self._end(occurrence, occurrence.finish or finish, occurrence.error)

    def _end(self, occurrence: Occurrence, finish: Finish, error: str) -> None:
        if self._forget(occurrence):
            self.finish(occurrence, finish, error)
