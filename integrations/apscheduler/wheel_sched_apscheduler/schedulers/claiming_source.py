"""ClaimingJobSource: due jobs from one of our jobstores, a batch at a time.

One round trip settles ended occurrences and claims the next batch. Claiming needs no lock of the scheduler, so only the
loop waits for the server. The scheduler submits claimed jobs immediately. If it is paused or ends between the claim and
the submit, it puts the batch back.

*In-flight limits.* The source stops claiming while an executor has too much in flight, so that a backlog stays in the
store for other processes. A claim takes due jobs of all executors. So when one executor is full, the source waits a
while before it claims more, because most of the next jobs are probably for that executor. An executor that stays full
for `PATIENCE_S` counts as slow, and the other executors do not wait for it. The source then claims more, and puts jobs
for the slow executor back into the store, where other processes may claim them. It limits how many jobs it puts back in
a second, so that a backlog of any length costs a few percent of a core. At the default settings, these jobs are due
again soon enough to keep a slow executor busy.
"""

from __future__ import annotations

import math
import time
from collections import deque
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
from wheel_sched_apscheduler.schedulers.stock_source import SubmissionBatch
from wheel_sched_apscheduler.schedulers.submission import Submission, in_grace, without_grace
from wheel_sched_apscheduler.stores.scheduler_pass import RETRY_REFUSED_MS

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.events import SchedulerEvent

PATIENCE_S = 0.25
BACK_AFTER_S = 1.0  # a job that was put back is not due for at least this time
PACE_S = 0.001  # per job that was put back: the next claim waits this long, and later jobs are due this much later
_WORTHWHILE = 32  # an executor has room when at least this fraction of its limit is free


class ClaimingJobSource:
    """Gives a scheduler the due jobs of one of our jobstores, or of another `ClaimingStore`.

    Args:
        store: a started `ClaimingStore`.
        alias: the store's name in the scheduler.
        executors: the names of all executors. The scheduler may add and remove names.
        ring: wakes the scheduler's loop.
        retry_s: pause after an unexpected error, in seconds. A store that does not answer says itself when to retry.
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
        """Do nothing: the store itself detects that a job was changed after its claim."""

    def take(self, now: datetime, limit: int) -> SubmissionBatch:
        """Claim jobs, at most `limit` of each shard, and plan their next runs."""
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
        no_room: list[Occurrence] = []
        no_run_times: list[datetime] = []
        now_us = to_us(now)
        head_us = None if claimed.wake_at is None else to_us(claimed.wake_at)
        for occurrence in claimed.occurrences:
            job = occurrence.job
            if job.executor not in self._executors:
                self.store.report_unknown_executor(occurrence)
                head_us = now_us
                continue
            if not self.limits.admit(occurrence):
                no_room.append(occurrence)
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
            run_times, late = occurrence.run_times, no_run_times
            if job.misfire_grace_time is not None:
                claimed_at = occurrence.due_at(now)
                if grace_after_claim(job, claimed_at, self._misfire) is not None:
                    run_times, late = in_grace(job, run_times, claimed_at, self._logger)
                job = without_grace(job)
            last = following is None and not occurrence.redelivered
            batch.submissions.append(Submission(job, self.alias, run_times, self, occurrence, last, late))
        self.store.mark_submitted(planned)
        batch.head_s = None if head_us is None else head_us / 1e6
        if no_room:  # jobs for other executors run first, and other processes may take these
            delay_s = self.limits.put_back(len(no_room))
            self.store.release(no_room, int(delay_s * 1000))
            if claimed.more:
                batch.head_s = now.timestamp() + len(no_room) * PACE_S
            else:
                batch.head_s = min(batch.head_s or math.inf, now.timestamp() + delay_s)
        return batch

    def put_back(self, submissions: list[Submission]) -> list[Submission]:
        """Put all submissions back, because the scheduler is paused or ends.

        Returns:
            The submissions that must still run: none.
        """
        for submission in submissions:
            submission.end(())
        return []

    def _plan(self, occurrence: Occurrence, now: datetime) -> bool:
        """Set an occurrence's run times and the job's next run time. Returns False if the occurrence cannot run now."""
        job = occurrence.job
        try:
            if occurrence.run_times:
                occurrence.plan(job.trigger.get_next_fire_time(occurrence.run_times[-1], now))
                return True
            run_times, following = missed_runs(job, occurrence.due_at(now))
        except Exception as error:
            self.store.report_trigger_failure(occurrence, error)
            return False
        if not run_times:
            self.store.release([occurrence])
            return False
        occurrence.run_at(run_times)
        occurrence.plan(following)
        return True

    def ended(self, submission: Submission, events: Sequence[SchedulerEvent]) -> None:
        """Record that a submission has ended. Any thread may call it.

        `events` are the executor's events for its runs. Without events, the submission was interrupted, and the
        occurrence is put back.
        """
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


class _ExecutorLoad:
    """How many submissions an executor has not finished, and since when it is full."""

    __slots__ = ("full_since_s", "occurrences", "slow")

    def __init__(self) -> None:
        self.occurrences: set[Occurrence] = set()
        self.full_since_s: float | None = None
        self.slow = False


class InFlightLimits:
    """How many occurrences of one jobstore each executor holds, and how many more may be claimed.

    Threads: any thread calls `leave`; the claiming thread calls the other methods.

    Args:
        executors: the names of all executors. The scheduler may add and remove names.
        most: an executor with this many unfinished submissions is full.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, executors: Collection[str], most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._executors = executors
        self._most = most
        self._worthwhile = max(1, most // _WORTHWHILE)
        self._clock = clock
        self._loads: dict[str, _ExecutorLoad] = {}
        self._waiting = False
        self._away: deque[tuple[float, int]] = deque()  # occurrences that were put back: when due again, how many
        self._away_count = 0

    def __len__(self) -> int:
        return sum(len(load.occurrences) for load in self._loads.values())

    def room(self) -> tuple[int, float | None]:
        """How many jobs may be claimed now, and in how many seconds to ask again if that number is 0.

        If the number is 0 and the seconds are None, the caller asks again after a `leave` that returned True.
        """
        answer = self._room()
        if not answer[0]:
            self._waiting = True
            answer = self._room()  # again: `leave` may have been called before `_waiting` was set
        if answer[0]:
            self._waiting = False
        return answer

    def _room(self) -> tuple[int, float | None]:
        now_s = self._clock()
        room = 0
        patience_s: float | None = None
        for name in list(self._executors):
            load = self._loads.get(name)
            free = self._most if load is None else self._most - len(load.occurrences)
            if free >= self._worthwhile:
                room = free if not room else min(room, free)
                if load is not None:
                    load.full_since_s = None
                    load.slow = load.slow and free < self._most // 2
            elif load is not None and not load.slow:
                if load.full_since_s is None:
                    load.full_since_s = now_s
                left_s = load.full_since_s + PATIENCE_S - now_s
                load.slow = left_s <= 0
                if not load.slow:
                    patience_s = left_s if patience_s is None else max(patience_s, left_s)
        if room and patience_s is not None:
            return 0, patience_s
        return room, None

    def admit(self, occurrence: Occurrence) -> bool:
        """Count a claimed occurrence. Returns False if its executor is full: then the caller must put it back."""
        name = occurrence.job.executor
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _ExecutorLoad()
        if len(load.occurrences) >= self._most:
            return False
        load.occurrences.add(occurrence)
        return True

    def put_back(self, count: int) -> float:
        """Note that the caller puts `count` occurrences back. Returns after how many seconds they must be due again."""
        now_s = self._clock()
        while self._away and self._away[0][0] <= now_s:
            self._away_count -= self._away.popleft()[1]
        delay_s = BACK_AFTER_S + self._away_count * PACE_S
        self._away.append((now_s + delay_s, count))
        self._away_count += count
        return delay_s

    def leave(self, occurrence: Occurrence) -> bool:
        """Note that an occurrence has ended. Returns whether to wake the thread that waits to claim more."""
        load = self._loads.get(occurrence.job.executor)
        if load is None:
            return False
        load.occurrences.discard(occurrence)
        if self._waiting and self._most - len(load.occurrences) >= self._worthwhile:
            self._waiting = False
            return True
        return False
