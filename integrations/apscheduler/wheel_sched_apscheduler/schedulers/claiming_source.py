"""A job store of ours as the loop sees it: one round trip settles what has ended and claims the next batch.

Claiming needs no lock of the scheduler, so nobody waits for the server but the loop. What is claimed is handed over at
once; a pause or the end that comes in between puts it back, at its old due. Claiming stops while an executor has too
much in flight, so that a backlog stays in the store, where other processes can take it; see `loads` for what happens
when there are others.
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

from wheel_sched_apscheduler.instants import to_us
from wheel_sched_apscheduler.misfire import Misfire, grace_after_claim
from wheel_sched_apscheduler.occurrence import Finish, Fire
from wheel_sched_apscheduler.run_times import missed_runs
from wheel_sched_apscheduler.schedulers.in_flight_limits import PACE_S, Loads
from wheel_sched_apscheduler.schedulers.stock_source import Batch
from wheel_sched_apscheduler.schedulers.submission import Handover, in_grace, without_grace
from wheel_sched_apscheduler.stores.scheduler_pass import RETRY_REFUSED_MS

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.events import SchedulerEvent


class BatchFeed:
    """One job store that is claimed from.

    Args:
        store: a started `passes.BatchStore`.
        alias: its name in the scheduler.
        executors: the names of all there are, looked at anew each time.
        ring: wakes the loop.
        retry_s: pause after an error nobody foresaw; a store that is away says itself when to come again.
        max_in_flight: hand-overs to one executor that have not ended, at which it gets no more.
        logger: where errors are told.

    Thread rules: `take` and `put_back` by the loop's thread; the ends of hand-overs come from any.
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
        self.loads = Loads(executors, max_in_flight)

    def forget(self, job_id: str | None = None) -> None:
        """Nothing is remembered here: the store tells a changed job from the one it gave out."""

    def take(self, now: datetime, limit: int) -> Batch:
        """Claim at most `limit` jobs and plan their next runs."""
        batch = Batch()
        room, again_s = self.loads.room()
        if not room:
            batch.head_s = None if again_s is None else now.timestamp() + again_s
            return batch
        try:
            claimed = self.store.claim_batch(now, min(limit, room))
        except Exception:
            self._logger.exception("Job store %r failed; next try in %g s", self.alias, self._retry_s)
            batch.head_s = now.timestamp() + self._retry_s
            return batch
        planned: list[Fire] = []
        crowded: list[Fire] = []
        now_us = to_us(now)
        head_us = None if claimed.wake_at is None else to_us(claimed.wake_at)
        for fire in claimed.fires:
            job = fire.job
            if job.executor not in self._executors:
                self.store._unknown_executor(fire)
                head_us = now_us
                continue
            if not self.loads.board(fire):
                crowded.append(fire)
                continue
            if not fire.planned and not self._plan(fire, now):
                self.loads.landed(fire)
                head_us = now_us
                continue
            planned.append(fire)
            following = fire.next_run_time
            if following is not None:
                following_us = to_us(following)
                head_us = following_us if head_us is None else min(head_us, following_us)
            last = following is None and not fire.redelivered
            if job.misfire_grace_time is None:
                batch.handovers.append(Handover(job, self.alias, fire.run_times, self, fire, last))
            elif grace_after_claim(job, now, self._misfire) is None:
                batch.handovers.append(Handover(without_grace(job), self.alias, fire.run_times, self, fire, last))
            else:
                batch.handovers.append(self._judged(fire, now, last))
        self.store.hand_over(planned)
        batch.head_s = None if head_us is None else head_us / 1e6
        if crowded:  # others, in this process or elsewhere, come first
            delay_s = self.loads.put_back(len(crowded))
            self.store.release(crowded, int(delay_s * 1000))
            if claimed.more:
                batch.head_s = now.timestamp() + len(crowded) * PACE_S
            else:
                batch.head_s = min(batch.head_s or math.inf, now.timestamp() + delay_s)
        return batch

    def put_back(self, handovers: list[Handover]) -> list[Handover]:
        """The scheduler was paused or is being shut down: these come again. The answer: what cannot be put back."""
        for handover in handovers:
            handover.end(())
        return []

    def _plan(self, fire: Fire, now: datetime) -> bool:
        """Decide its run times and what comes after them; False: it does not run now."""
        job = fire.job
        try:
            if fire.run_times:
                fire.plan(job.trigger.get_next_fire_time(fire.run_times[-1], now))
                return True
            run_times, following = missed_runs(job, now)
        except Exception as error:
            self.store._trigger_failed(fire, error)
            return False
        if not run_times:
            self.store.release([fire])
            return False
        fire.run_at(run_times)
        fire.plan(following)
        return True

    def _judged(self, fire: Fire, now: datetime, last: bool) -> Handover:
        """What of it is within its grace, and what came too late."""
        job = fire.job
        run_times, late = in_grace(job, fire.run_times, now)
        if late:
            self._logger.warning('%d run times of job "%s" came too late and are dropped', len(late), job)
        return Handover(without_grace(job), self.alias, run_times, self, fire, last, late)

    def ended(self, handover: Handover, events: Sequence[SchedulerEvent]) -> None:
        """From any thread: what became of a hand-over."""
        fire = handover.fire
        if fire is None:
            return
        if not events:
            self._release(fire)
            return
        if len(events) == 1 and events[0].code == EVENT_JOB_EXECUTED and not handover.late:  # nearly always
            self._finish(fire, Finish.EXECUTED, "")
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
        if fire.next_run_time is None:  # the last of its runs must not be lost
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
        if self.loads.landed(fire):
            self._ring()
