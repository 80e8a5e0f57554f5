"""ClaimingJobSource: due jobs from one of our jobstores, a batch at a time.

One round trip settles ended occurrences and claims the next batch. Claiming needs no lock of the scheduler, so only the
loop waits for the server. Claimed jobs are submitted immediately. If the scheduler is paused or ends in between, the
batch is put back at its old due time. Claiming stops while an executor has too much in flight, so that a backlog stays
in the store for other processes. See `in_flight_limits` for a full executor beside others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
)

from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.run_times import Misfire, grace_after_claim, missed_runs, to_us
from wheel_sched_apscheduler.schedulers.in_flight_limits import PACE_S, InFlightLimits
from wheel_sched_apscheduler.schedulers.stock_source import SubmissionBatch
from wheel_sched_apscheduler.schedulers.submission import Submission, in_grace, without_grace
from wheel_sched_apscheduler.stores.scheduler_pass import RETRY_REFUSED_MS

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.events import SchedulerEvent


class ClaimingJobSource:
    """One of our jobstores.

    Args:
        store: a started `ClaimingStore`.
        alias: its name in the scheduler.
        executors: the names of all executors, read again each time.
        ring: wakes the loop.
        retry_s: pause after an unexpected error. A store that does not answer gives its own time to come again.
        max_in_flight: an executor with this many unfinished submissions gets no more.
        logger: logs errors.

    Threads: the loop's thread calls `take` and `put_back`; any thread calls `ended`.
    """

    locked = False

    def __init__(
        self,
        store: Any,
        alias: str,
        executors: Collection[str],
        ring: Callable[[], None],
        retry_s: float,
        max_in_flight: int,
        logger: Logger,
    ) -> None:
        self.store = store
        self.alias = alias
        self._executors = executors
        self._ring = ring
        self._retry_s = retry_s
        self._logger = logger
        self._misfire: Misfire = getattr(store, "misfire", "claim")
        self.limits = InFlightLimits(executors, max_in_flight)

    def forget(self, job_id: str | None = None) -> None:
        """Does nothing: the store itself detects that a job was changed after it was handed out."""

    def take(self, now: datetime, limit: int) -> SubmissionBatch:
        """Claim at most `limit` jobs and plan their next runs."""
        batch = SubmissionBatch()
        room, again_s = self.limits.room()
        if not room:
            batch.head_s = None if again_s is None else now.timestamp() + again_s
            return batch
        try:
            claimed = self.store.claim_batch(now, min(limit, room))
        except Exception:
            self._logger.exception("Job store %r failed; next try in %g s", self.alias, self._retry_s)
            batch.head_s = now.timestamp() + self._retry_s
            return batch
        planned: list[Occurrence] = []
        crowded: list[Occurrence] = []
        now_us = to_us(now)
        head_us = None if claimed.wake_at is None else to_us(claimed.wake_at)
        for occurrence in claimed.occurrences:
            job = occurrence.job
            if job.executor not in self._executors:
                self.store.report_unknown_executor(occurrence)
                head_us = now_us
                continue
            if not self.limits.admit(occurrence):
                crowded.append(occurrence)
                continue
            if not occurrence.planned and not self._plan(occurrence, now):
                self.limits.leave(occurrence)
                head_us = now_us
                continue
            planned.append(occurrence)
            following = occurrence.next_run_time
            if following is not None:
                following_us = to_us(following)
                head_us = following_us if head_us is None else min(head_us, following_us)
            last = following is None and not occurrence.redelivered
            if job.misfire_grace_time is None:
                batch.submissions.append(Submission(job, self.alias, occurrence.run_times, self, occurrence, last))
            elif grace_after_claim(job, now, self._misfire) is None:
                batch.submissions.append(
                    Submission(without_grace(job), self.alias, occurrence.run_times, self, occurrence, last)
                )
            else:
                batch.submissions.append(self._judged(occurrence, now, last))
        self.store.mark_submitted(planned)
        batch.head_s = None if head_us is None else head_us / 1e6
        if crowded:  # others, in this process or elsewhere, come first
            delay_s = self.limits.put_back(len(crowded))
            self.store.release(crowded, int(delay_s * 1000))
            if claimed.more:
                batch.head_s = now.timestamp() + len(crowded) * PACE_S
            else:
                batch.head_s = min(batch.head_s or math.inf, now.timestamp() + delay_s)
        return batch

    def put_back(self, submissions: list[Submission]) -> list[Submission]:
        """Put submissions back, because the scheduler was paused or ends. Returns no leftovers: all can be put back."""
        for submission in submissions:
            submission.end(())
        return []

    def _plan(self, occurrence: Occurrence, now: datetime) -> bool:
        """Decide its run times and what follows; False: it does not run now."""
        job = occurrence.job
        try:
            if occurrence.run_times:
                occurrence.plan(job.trigger.get_next_fire_time(occurrence.run_times[-1], now))
                return True
            run_times, following = missed_runs(job, now)
        except Exception as error:
            self.store.report_trigger_failure(occurrence, error)
            return False
        if not run_times:
            self.store.release([occurrence])
            return False
        occurrence.run_at(run_times)
        occurrence.plan(following)
        return True

    def _judged(self, occurrence: Occurrence, now: datetime, last: bool) -> Submission:
        """Submit the run times within the grace; drop those that came too late."""
        job = occurrence.job
        run_times, late = in_grace(job, occurrence.run_times, now)
        if late:
            self._logger.warning('%d run times of job "%s" came too late and are dropped', len(late), job)
        return Submission(without_grace(job), self.alias, run_times, self, occurrence, last, late)

    def ended(self, submission: Submission, events: Sequence[SchedulerEvent]) -> None:
        """Note that a submission has ended. No events: it was cut short. Any thread."""
        occurrence = submission.occurrence
        if occurrence is None:
            return
        if not events:
            self._release(occurrence)
            return
        if len(events) == 1 and events[0].code == EVENT_JOB_EXECUTED and not submission.late:  # nearly always
            self._finish(occurrence, Finish.EXECUTED, "")
            return
        worst, error = Finish.MISSED if submission.late else Finish.EXECUTED, ""
        for event in events:
            code = event.code
            if code == EVENT_JOB_EXECUTED:
                continue
            if code == EVENT_JOB_MAX_INSTANCES:
                self._refused(occurrence)
                return
            if code == EVENT_JOB_ERROR:
                worst, error = Finish.ERROR, repr(event.exception)
        self._finish(occurrence, worst, error)

    def _refused(self, occurrence: Occurrence) -> None:
        if occurrence.next_run_time is None:  # the last run of a job must not be lost
            self._release(occurrence, RETRY_REFUSED_MS)
        else:
            self._finish(occurrence, Finish.REFUSED, "max_instances of it are running")

    def _finish(self, occurrence: Occurrence, finish: Finish, error: str) -> None:
        self.store.finish(occurrence, finish, error)
        self._leave(occurrence)

    def _release(self, occurrence: Occurrence, delay_ms: int = 0) -> None:
        self.store.release([occurrence], delay_ms)
        self._leave(occurrence)

    def _leave(self, occurrence: Occurrence) -> None:
        if self.limits.leave(occurrence):
            self._ring()
