"""How a scheduler drives a jobstore: by the contract of claiming, or by the pass of a stock scheduler.

This is the contract. The *driver* is the code that calls these methods, in the thread of a scheduler.

    batch = store.claim_batch(now, limit)       mostly one round trip; also settles what has ended since the last one
    for occurrence in batch.occurrences:
        if not occurrence.run_times:
            run_times, following = missed_runs(occurrence.job, now)
            occurrence.run_at(run_times)
        occurrence.plan(following)              the next run time of the job; None = there is none
    store.mark_submitted(batch.occurrences)     after planning, before or while executors take them; no I/O
    store.finish(occurrence, Finish.EXECUTED)   when all run times of the occurrence have ended; no I/O
    store.release([occurrence], delay_ms)       put back an occurrence that must not run now; no I/O
    sleep until batch.wake_at, or until the store calls scheduler.wakeup()

Rules of the contract:
- Only one thread at a time calls `claim_batch` and `mark_submitted`. Any thread may call `finish` and `release`, also
  before `mark_submitted` has returned. These two calls never wait for I/O.
- Each claimed occurrence ends in one call of `finish`, `release`, `report_unknown_executor` or
  `report_trigger_failure`. If it has several run times, the driver counts them (`occurrence.left`). When the last run
  time has ended, the driver calls `finish` with the worst outcome.
- A submitted occurrence keeps its lease while this process lives and its executor knows the job. The store extends the
  lease in its own thread. After a crash a shared jobstore with at-least-once delivery hands the occurrence out again.
- `claim_batch` never raises when the store does not answer. It returns an empty batch whose `wake_at` is a moment
  later, and logs once. The jobstore keeps finished occurrences, and settles them when the store answers again.
- A job that cannot be loaded is in no batch: the jobstore gives it back for other processes, or quarantines it.
- An occurrence that was put back (`release`) is handed out again. With `coalesce` it may then be merged with later run
  times.

*Our schedulers* call these methods; their class has `drives_batches = True`. A jobstore that such a scheduler starts
listens to no events, because the scheduler itself calls `finish`. The occurrences hold plain `Job` objects. If the run
times of an occurrence are already decided, `occurrence.run_times` has them. The driver sets the current occurrence for
the job's code, and calls `mark_started`.

*A stock scheduler* of APScheduler 3 makes a pass under one lock. It calls `get_due_jobs`, then `update_job` or
`remove_job` for each job, then `get_next_run_time`. So `get_due_jobs` claims, `update_job` and `remove_job` only note
the plan, and `get_next_run_time` marks the jobs as submitted. Events report how the runs end. For the claimed jobs only
`get_due_jobs` does I/O: an exception of the other calls would end a stock scheduler's loop without a log line.

An executor may run a job inside the pass, and the job's code may change that job. Then `update_job` must know whether
the scheduler plans the next run or the job's code changes the job. The scheduler passes the same object that
`get_due_jobs` has returned, and the job's code passes another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.jobstores.base import BaseJobStore

from wheel_sched.escaping import logger_of
from wheel_sched_apscheduler.occurrence import Answered, Finish, Occurrence
from wheel_sched_apscheduler.run_times import earliest, to_us

_ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
_SEVERITY = {Finish.EXECUTED: 0, Finish.MISSED: 1, Finish.ERROR: 2}
RETRY_REFUSED_MS = 1_000  # a last run that found `max_instances` running is tried again after this time


@dataclass(slots=True)
class OccurrenceBatch:
    """The result of one claim.

    Args:
        occurrences: by next run time, then by job id.
        wake_at: when to claim again; None = when the store calls `wakeup`. If `more` is True, it is not after now.
        more: whether more jobs may be due than the limit allowed.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    wake_at: datetime | None = None
    more: bool = False


@runtime_checkable
class ClaimingStore(Protocol):
    """The methods that a driver calls on a jobstore, see the top of this module. Both of our jobstores have them."""

    def claim_batch(self, now: datetime, limit: int | None = None) -> OccurrenceBatch:
        """Claim occurrences that are due at `now`, at most `limit` of each shard. None: the jobstore's `batch`.

        Never raises when the store does not answer.
        """
        ...

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """Report that the driver has planned these occurrences and submits them to their executors."""
        ...

    def finish(self, occurrence: Occurrence, finish: Finish, error: str = "") -> None:
        """Report that all run times of an occurrence have ended."""
        ...

    def release(self, occurrences: Iterable[Occurrence], delay_ms: int = 0) -> None:
        """Put occurrences back. They may be claimed again after `delay_ms`."""
        ...

    def report_unknown_executor(self, occurrence: Occurrence) -> None:
        """Report that the driver lacks the executor that the job names. The store keeps the job."""
        ...

    def report_trigger_failure(self, occurrence: Occurrence, error: Exception) -> None:
        """Report that the job's trigger could not give a run time. The store keeps the job."""
        ...


class SchedulerPassStore(ClaimingStore, BaseJobStore):
    """The common part of both jobstores: the pass of a stock scheduler, and the events by which it reports runs."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = False  # whether one of our schedulers drives this jobstore; then occurrences hold plain jobs
        self._pass: dict[str, Occurrence] = {}
        self._pass_thread = 0
        self._wake_at: datetime | None = None
        self._claimed_once = False
        self._running: dict[str, list[Occurrence]] = {}  # submitted and not ended, by job id
        self._running_lock = threading.Lock()

    # The methods that each jobstore adds, besides those of `ClaimingStore`.

    def _update(self, job: Any) -> None:
        """Do what `update_job` does outside of a pass."""
        raise NotImplementedError

    def _remove(self, job_id: str) -> None:
        """Do what `remove_job` does outside of a pass."""
        raise NotImplementedError

    def _head(self) -> datetime | None:
        """What `get_next_run_time` returns outside of a pass: the earliest next run time, None = there is none."""
        raise NotImplementedError

    def _is_running(self, occurrence: Occurrence) -> bool:
        """Whether an occurrence runs, as far as this process can see. A broken executor reports no end."""
        scheduler = self._scheduler
        if scheduler is None or self.driven:
            return occurrence.submitted
        executor = scheduler._executors.get(occurrence.job.executor)
        instances = getattr(executor, "_instances", None)
        known = instances is None or occurrence.job_id in instances
        occurrence.unseen = 0 if known else occurrence.unseen + 1
        return occurrence.alive

    # The five calls.

    def start(self, scheduler: Any, alias: str) -> None:
        """Start the jobstore. A scheduler calls this. If `scheduler` is None, no events report how occurrences end."""
        super().start(scheduler, alias)
        self._logger = logger_of(f"apscheduler.jobstores.{alias}")  # escapes the lines, which quote stored data
        self.driven = bool(getattr(scheduler, "drives_batches", False))
        if scheduler is not None and not self.driven:
            scheduler.add_listener(self._on_event, _ENDS | EVENT_JOB_SUBMITTED)

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Claim due jobs, at most a batch of each shard. If more are due, the scheduler makes another pass at once."""
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
            if executors and occurrence.job.executor not in executors:  # `executors` is empty before the start
                self.report_unknown_executor(occurrence)  # a stock scheduler would delete the job
            elif occurrence.job_id in self._pass:  # the scheduler would mix up two occurrences of one job
                twice.append(occurrence)
            else:
                self._pass[occurrence.job_id] = occurrence
        if twice:
            self.release(twice)
            self._wake_at = now
        self._watch(self._pass.values())
        return [occurrence.job for occurrence in self._pass.values()]

    def update_job(self, job: Any) -> None:
        """Note the next run of a job that this pass has claimed. Write any other change of a job to the store.

        Raises:
            JobLookupError: there is no such job. Never raised for a job that this pass has claimed.
        """
        occurrence = self._held_here(job.id)
        if occurrence is None or job is not occurrence.job:
            self._update(job)
        elif not occurrence.planned:
            occurrence.plan(job.next_run_time)

    def remove_job(self, job_id: str) -> None:
        """Note that a job that this pass has claimed has no next run. Remove any other job from the store.

        Raises:
            JobLookupError: there is no such job. Never raised for a job that this pass has claimed.
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
        """When to make the next pass. Inside a pass, this first marks the claimed jobs as submitted, without I/O."""
        if self._claimed_once and threading.get_ident() == self._pass_thread:
            self._close_pass()
            wake_at, self._wake_at, self._claimed_once = self._wake_at, None, False
            return wake_at
        return self._head()

    def _close_pass(self) -> None:
        occurrences, self._pass = list(self._pass.values()), {}
        planned = [occurrence for occurrence in occurrences if occurrence.planned]
        if len(planned) < len(occurrences):  # the pass ended before it planned the rest
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
        """Compute the next run times that a stock scheduler's pass has left out because of a shutdown."""
        for occurrence in self._pass.values():
            job = occurrence.job
            if getattr(job, "fixed", None) is not None and type(job.trigger) is not Answered:
                # at-most-once delivery plans before the pass, and the pass has not come to this job
                occurrence.planned = False
                continue
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
        """Stop waiting for the end of an occurrence. Returns whether this jobstore waited for it."""
        with self._running_lock:
            occurrences = self._running.get(occurrence.job_id)
            if occurrences is None or occurrence not in occurrences:
                return False
            occurrences.remove(occurrence)
            if not occurrences:
                del self._running[occurrence.job_id]
        return True

    def _occurrence_of(self, job_id: str, run_time: datetime, *, new: bool = False) -> Occurrence | None:
        """The occurrence that an event is about. `new`: skip occurrences that were already submitted."""
        with self._running_lock:
            occurrences = [one for one in self._running.get(job_id, ()) if not (new and one.submitted)]
            if len(occurrences) == 1:
                return occurrences[0]
            run_us = to_us(run_time)  # two runs in the doubled hour of autumn are equal datetimes, with different us
            return next((one for one in occurrences if any(to_us(each) == run_us for each in one.run_times)), None)

    def _on_event(self, event: Any) -> None:
        """Handle an event of a stock scheduler. The end of a run may arrive before SUBMITTED, and inside the pass."""
        if event.jobstore != self._alias:
            return
        code = event.code
        if code in (EVENT_JOB_SUBMITTED, EVENT_JOB_MAX_INSTANCES):
            occurrence = self._occurrence_of(event.job_id, event.scheduled_run_times[0], new=True)
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
