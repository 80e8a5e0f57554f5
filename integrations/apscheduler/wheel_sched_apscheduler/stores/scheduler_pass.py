"""SchedulerPassStore: the five calls of a stock scheduler's pass, as claim, plan and submit.

A pass of APScheduler 3 runs under one lock: `get_due_jobs`, then for each job `update_job` or `remove_job`, then
`get_next_run_time`. So the first call claims, the middle ones only plan, and the last one marks as submitted. The
middle and last calls do no I/O that can fail: an exception there ends a stock scheduler's loop without a log line.

An executor may run a job inside the pass, and the job may change itself. The scheduler plans with the same object that
it got, so the object's identity tells a plan from a change.

`ClaimedJob` is the job as a stock scheduler gets it. A `Job` has slots and no room for more, but its class may differ.
This one
- notes the run times that the scheduler takes, so that ends can be matched with them;
- of a coalesced job, gives only the last missed run time, without asking the trigger for each;
- asks the trigger once a pass, and repeats its answer when the scheduler asks again. A trigger that raises would end a
  stock scheduler's loop: the occurrence keeps the error, and nothing runs;
- runs the function with `current_occurrence()` set, in a pool of threads, an event loop or a pool of processes.
What is stored, listed or looked up is a plain `Job`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore

from wheel_sched.escaping import logger_of
from wheel_sched_apscheduler.occurrence import Finish, Occurrence, reset_current, set_current
from wheel_sched_apscheduler.run_times import earliest, missed_runs, to_us
from wheel_sched_apscheduler.stores.contract import ClaimingStore

_ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
_SEVERITY = {Finish.EXECUTED: 0, Finish.MISSED: 1, Finish.ERROR: 2}
RETRY_REFUSED_MS = 1_000  # until a last run is tried again that found `max_instances` running


class SchedulerPassStore(ClaimingStore, BaseJobStore):
    """The common part of both jobstores: the pass of a stock scheduler, and the occurrence of each event."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = False  # whether one of our schedulers drives it, see `contract`: occurrences then hold plain jobs
        self._pass: dict[str, Occurrence] = {}
        self._pass_thread = 0
        self._wake_at: datetime | None = None
        self._claimed_once = False
        self._running: dict[str, list[Occurrence]] = {}  # with executors and not ended, by job id
        self._running_lock = threading.Lock()

    # The methods that each jobstore adds, besides those of `ClaimingStore`.

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
        """A scheduler calls this. Without a scheduler (None) no events report how occurrences end."""
        super().start(scheduler, alias)
        self._logger = logger_of(f"apscheduler.jobstores.{alias}")  # its lines quote stored data
        self.driven = bool(getattr(scheduler, "drives_batches", False))
        if scheduler is not None and not self.driven:
            scheduler.add_listener(self._on_event, _ENDS | EVENT_JOB_SUBMITTED)

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Claim due jobs, at most a batch. If more jobs are due, the scheduler comes again immediately."""
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
        """Plan the next run of a claimed job. Any other change, also by the job's own code, goes to the store.

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
        """Mark the claimed jobs as submitted. Answers when to come again. Does not raise when the store is away."""
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
        """At a shutdown, plan the rest: a stock pass breaks off when its scheduler stops, with some jobs submitted."""
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
        """Stop waiting for the end of an occurrence. Answers whether this jobstore waited for it."""
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
            return next((one for one in occurrences if any(to_us(each) == run_us for each in one.run_times)), None)

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


_STATE = (
    *("id", "func", "func_ref", "args", "kwargs", "trigger", "name", "executor", "next_run_time"),
    *("coalesce", "max_instances", "misfire_grace_time", "_scheduler", "_jobstore_alias"),
)


class Answered:
    """A trigger that repeats its answer: a second answer may differ from the first, or be an error."""

    __slots__ = ("_following", "trigger")

    def __init__(self, trigger: Any, following: datetime | None) -> None:
        self.trigger = trigger
        self._following = following

    def get_next_fire_time(self, _: datetime | None, __: datetime) -> datetime | None:
        """The answer that the trigger gave."""
        return self._following

    def __str__(self) -> str:
        return str(self.trigger)

    def __repr__(self) -> str:
        return repr(self.trigger)


class ClaimedJob(Job):
    """A job as a stock scheduler gets it. `occurrence` is its claimed occurrence."""

    __slots__ = ("fixed", "occurrence", "plain_func")

    occurrence: Occurrence
    fixed: list[datetime] | None  # run times that are already decided
    func: Any
    plain_func: Any  # `func`, without `current_occurrence()` set

    def _get_run_times(self, now: datetime) -> list[datetime]:
        occurrence: Occurrence = self.occurrence
        job: Any = self  # a slot of the base class
        if self.fixed is not None:  # it was handed out before: its run times are decided
            run_times, following = self.fixed, occurrence.next_run_time
        else:
            try:
                run_times, following = missed_runs(self, now)
            except Exception as error:  # the scheduler's loop would end; the store learns of it at the end of the pass
                occurrence.trigger_error = error
                return []
        if run_times:
            job.trigger = Answered(job.trigger, following)
        return occurrence.run_at(run_times)

    def __getstate__(self) -> dict[str, Any]:
        running, self.func = self.func, self.plain_func
        try:
            state: dict[str, Any] = super().__getstate__()
        finally:
            self.func = running
        occurrence = self.occurrence
        if type(self.trigger) is Answered:
            state["trigger"] = self.trigger.trigger
        state["occurrence"] = (
            occurrence.job_id,
            occurrence.scheduled,
            occurrence.token,
            occurrence.redelivered,
            occurrence.run_times,
        )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process of a pool: the occurrence, as far as the job's code may see it."""
        super().__setstate__(state)
        job_id, scheduled, token, redelivered, run_times = state["occurrence"]
        self.occurrence = Occurrence(self, job_id, scheduled, token, redelivered)
        self.occurrence.run_at(run_times)
        self.fixed = None
        self.plain_func = self.func
        self.func = with_current_occurrence(self.occurrence, self.func, self.misfire_grace_time)


def claimed_copy(job: Any, token: int, grace_s: int | None) -> ClaimedJob:
    """A copy of `job` for a scheduler, with its own occurrence.

    Args:
        job: a plain job with a next run time.
        token: fencing token.
        grace_s: the grace that its executor is to apply.
    """
    copy = ClaimedJob.__new__(ClaimedJob)
    for name in _STATE:
        setattr(copy, name, getattr(job, name))
    copy.misfire_grace_time = grace_s
    return with_occurrence(copy, token)


def with_occurrence(
    job: ClaimedJob, token: int, *, redelivered: bool = False, fixed: list[datetime] | None = None
) -> ClaimedJob:
    """Give a new `ClaimedJob` its occurrence, and return the job."""
    job.occurrence = Occurrence(job, job.id, job.next_run_time, token, redelivered)
    job.fixed = fixed
    job.plain_func = job.func
    job.func = with_current_occurrence(job.occurrence, job.func, job.misfire_grace_time)
    return job


def with_current_occurrence(
    occurrence: Occurrence, func: Callable[..., Any], grace_s: int | None
) -> Callable[..., Any]:
    """`func`, run with `current_occurrence()` set to its present run time."""
    turn = 0

    def begin() -> Any:
        nonlocal turn
        times = occurrence.run_times or [occurrence.scheduled]
        run_time = times[min(turn, len(times) - 1)]
        if grace_s is not None:  # the executor skips run times that it finds too late, without a word
            oldest = datetime.now(UTC) - timedelta(seconds=grace_s)
            while run_time < oldest and turn < len(times) - 1:
                turn += 1
                run_time = times[turn]
        turn += 1
        occurrence.mark_started()
        return set_current(occurrence.job_id, run_time, occurrence.token, occurrence.redelivered)

    if iscoroutinefunction(func):

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            mark = begin()
            try:
                return await func(*args, **kwargs)
            finally:
                reset_current(mark)

        return run_coroutine

    def run(*args: Any, **kwargs: Any) -> Any:
        mark = begin()
        try:
            return func(*args, **kwargs)
        finally:
            reset_current(mark)

    return run
