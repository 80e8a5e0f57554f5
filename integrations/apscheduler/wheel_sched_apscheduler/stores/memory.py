"""WheelJobStore: the jobs of one process on a timing wheel.

What it is. A drop-in for `MemoryJobStore`: add, update and remove are O(1) at any number of jobs, where a sorted list
moves half of its entries. Order is made inside the due batch alone; `get_all_jobs` sorts on demand.

Invariant. A job with a next run time is in exactly one of: the wheel, what was overdue when it was added, and the
hands of a fire. A paused job is in none of them.

Threads. Any; one lock, held for the length of a call. Nothing is durable: `RedisWheelJobStore` is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.clock import SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.wheel import TimerTaskEntry, TimingWheel
from wheel_sched_apscheduler.instants import earliest, floor_ms, from_ms, from_us, to_us
from wheel_sched_apscheduler.misfire import MISFIRES, Misfire, grace_after_claim
from wheel_sched_apscheduler.occurrence import Finish, Fire, bare_fire
from wheel_sched_apscheduler.settings import whole
from wheel_sched_apscheduler.stores.claimed_job import claimed
from wheel_sched_apscheduler.stores.contract import Batch
from wheel_sched_apscheduler.stores.entries import JobState
from wheel_sched_apscheduler.stores.memory_queries import MemoryCatalogue
from wheel_sched_apscheduler.stores.misfire_queue import Overdue
from wheel_sched_apscheduler.stores.scheduler_pass import BracketStore

_NEVER_US = 1 << 62
_RETRY_UNKNOWN = timedelta(seconds=30)  # until somebody adds the executor, or corrects the trigger


class _Slot:
    """One job and where it waits."""

    __slots__ = ("due_us", "fire", "job", "late", "timer")

    def __init__(self, job: Any) -> None:
        self.job = job
        self.due_us = _NEVER_US
        self.timer: TimerTaskEntry[_Slot] | None = None
        self.late = False  # among the overdue
        self.fire: Fire | None = None


_order = attrgetter("due_us", "job.id")


def _state_of(slot: _Slot) -> JobState:
    if slot.fire is not None:
        return "in_flight"
    return "paused" if slot.job.next_run_time is None else "scheduled"


class WheelJobStore(MemoryCatalogue, BracketStore):
    """Jobs of this process; plugin alias `wheel`.

    Args:
        batch: how many jobs one pass hands over at most; the scheduler's lock is free between passes. Defaults to 500.
        misfire: from when lateness counts, see `misfire`. Defaults to "lenient".
        history: how many of the last ends are kept; 0 = none. Defaults to 1000.

    Raises:
        ConfigError: with all that is wrong.
    """

    def __init__(self, *, batch: int = 500, misfire: Misfire = "lenient", history: int = 1000) -> None:
        super().__init__()
        problems: list[str] = []
        batch = whole("batch", batch, 1, None, problems)
        history = whole("history", history, 0, None, problems)
        if misfire not in MISFIRES:
            problems.append(f"expected misfire to be one of {', '.join(MISFIRES)}, got: {misfire!r}")
        if problems:
            raise ConfigError(problems)
        self._flying = {}
        self._past = deque(maxlen=history)
        self._tags = {}
        self._metadata = {}
        self.misfire: Misfire = misfire
        self._batch = batch
        self._lock = threading.RLock()
        self._slots: dict[str, _Slot] = {}
        self._wheel: TimingWheel[_Slot] = TimingWheel(SystemClock().wall_ms())
        self._overdue: Overdue[_Slot] = Overdue()
        self._tokens = 0

    # The contract outside of a pass.

    def lookup_job(self, job_id: str) -> Any:
        """The job, or None."""
        slot = self._slots.get(job_id)
        return None if slot is None else slot.job

    def get_all_jobs(self) -> list[Any]:
        """All jobs by next run time, then id; paused ones last."""
        with self._lock:
            slots = sorted(self._slots.values(), key=_order)
        return [slot.job for slot in slots]

    def get_next_run_time(self) -> datetime | None:
        """When to come again; within a pass also what was put back in it counts."""
        return earliest([super().get_next_run_time(), self._head()])

    def _ordered(self) -> list[tuple[Any, JobState]]:
        with self._lock:
            slots = sorted(self._slots.values(), key=_order)
            return [(slot.job, _state_of(slot)) for slot in slots]

    def _one(self, job_id: str) -> tuple[Any, JobState] | None:
        slot = self._slots.get(job_id)
        return None if slot is None else (slot.job, _state_of(slot))

    def _states(self) -> list[JobState]:
        with self._lock:
            return [_state_of(slot) for slot in self._slots.values()]

    def _drop_notes(self, job_id: str) -> None:
        self._tags.pop(job_id, None)
        self._metadata.pop(job_id, None)

    def add_job(self, job: Any) -> None:
        """O(1).

        Raises:
            ConflictingIdError: there is a job of that id; nothing was changed.
        """
        with self._lock:
            if job.id in self._slots:
                raise ConflictingIdError(job.id)
            slot = self._slots[job.id] = _Slot(job)
            self._arm(slot)

    def remove_all_jobs(self) -> None:
        """Forget every job; what is running goes on and is not handed out again."""
        with self._lock:
            self._slots.clear()
            self._overdue.clear()
            self._tags.clear()
            self._metadata.clear()
            self._wheel = TimingWheel(SystemClock().wall_ms())

    def shutdown(self) -> None:
        """As stock: the jobs go with the scheduler."""
        self.remove_all_jobs()

    def _update(self, job: Any) -> None:
        with self._lock:
            slot = self._slots.get(job.id)
            if slot is None:
                raise JobLookupError(job.id)
            slot.job = job
            if slot.fire is not None and job.next_run_time == slot.fire.scheduled:
                return  # under way, and to come again as its fire will plan it
            slot.fire = None
            self._arm(slot)

    def _remove(self, job_id: str) -> None:
        with self._lock:
            slot = self._slots.pop(job_id, None)
            if slot is None:
                raise JobLookupError(job_id)
            self._drop_notes(job_id)
            self._disarm(slot)

    def _head(self) -> datetime | None:
        with self._lock:
            late_us = self._overdue.head()
            if late_us is not None:
                return from_us(late_us)
            expiry_ms = self._wheel.next_expiry()
            return None if expiry_ms is None else from_ms(expiry_ms)

    # Places.

    def _arm(self, slot: _Slot) -> None:
        """Wait for the job's next run time, at the place where that belongs."""
        moment = slot.job.next_run_time
        if moment is None:
            self._disarm(slot)
            slot.due_us = _NEVER_US
            return
        due_us = to_us(moment)
        due_ms = -(-due_us // 1000)
        if slot.late:
            self._disarm(slot)
        slot.due_us = due_us
        if due_ms > self._wheel.now_ms:
            if slot.timer is None:
                slot.timer = self._wheel.schedule(slot, due_ms)
            else:
                slot.timer.reschedule(due_ms)
            return
        self._disarm(slot)
        slot.late = True
        self._overdue.add(due_us, slot.job.id, slot)

    def _disarm(self, slot: _Slot) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if slot.late:
            slot.late = False
            self._overdue.discard(slot.due_us, slot.job.id)

    # The seam, see `passes`.

    def claim_batch(self, now: datetime, limit: int | None = None) -> Batch:
        """Take what is due out of the wheel; O(1) per job."""
        limit = self._batch if limit is None else limit
        claimed_ms = time.time_ns() // 1_000_000
        with self._lock:
            due = self._overdue.take(to_us(now), limit)
            for slot in due:
                slot.late = False
            if len(due) < limit and floor_ms(now) >= self._wheel.now_ms:
                for entry in self._wheel.advance(floor_ms(now), limit - len(due)):
                    taken = entry.task
                    if taken is not None:
                        taken.timer = None
                        due.append(taken)
                due.sort(key=_order)
            fires = []
            token = self._tokens
            for slot in due:
                token += 1
                if self.driven:
                    fire = bare_fire(slot.job, token, claimed_ms=claimed_ms)
                else:
                    fire = claimed(slot.job, token, grace_after_claim(slot.job, now, self.misfire)).fire
                slot.fire = fire
                fire.ticket = slot
                self._flying[token] = fire
                fires.append(fire)
            self._tokens = token
            more = len(fires) == limit
            return Batch(fires, now if more else self._head(), more)

    def hand_over(self, fires: Sequence[Fire]) -> None:
        """Let the jobs wait for their next run time, or go."""
        with self._lock:
            for fire in fires:
                slot: _Slot = fire.ticket
                if slot.fire is not fire:
                    continue  # changed or removed meanwhile
                slot.fire = None
                if slot.job.next_run_time != fire.scheduled:
                    pass  # somebody is changing it, and will say so
                elif fire.next_run_time is None:
                    if self._slots.get(fire.job_id) is slot:
                        del self._slots[fire.job_id]
                        if self._tags or self._metadata:
                            self._drop_notes(fire.job_id)
                    continue
                else:
                    slot.job.next_run_time = fire.next_run_time
                if self._slots.get(fire.job_id) is slot:
                    self._arm(slot)

    def finish(self, fire: Fire, finish: Finish, error: str = "") -> None:
        """Note the end."""
        fire.note_end(finish, error)
        self._past.append(fire)
        self._flying.pop(fire.token, None)

    def release(self, fires: Iterable[Fire], delay_ms: int = 0) -> None:
        """Put fires back; one whose job has gone on to its next run time meanwhile stays away."""
        with self._lock:
            for fire in fires:
                slot: _Slot = fire.ticket
                self._flying.pop(fire.token, None)
                known = self._slots.get(fire.job_id)
                if known is None and fire.planned and fire.next_run_time is None:
                    known = self._slots[fire.job_id] = slot
                    slot.fire = fire
                if known is not slot or slot.fire is not fire:
                    continue
                slot.fire = None
                self._arm(slot)
                if delay_ms:
                    self._postpone(slot, delay_ms)
        scheduler = self._scheduler
        if scheduler is not None and scheduler.running and not self._bracket:
            scheduler.wakeup()

    def _postpone(self, slot: _Slot, delay_ms: int) -> None:
        """Hand the job out later than its next run time says."""
        self._disarm(slot)
        slot.timer = self._wheel.schedule(slot, SystemClock().wall_ms() + delay_ms)

    def _unknown_executor(self, fire: Fire) -> None:
        self._logger.error(
            "Job %r names the executor %r, which this scheduler does not have; it stays in the store and is tried "
            "again in %d s: add the executor or give the job another",
            fire.job_id,
            fire.job.executor,
            _RETRY_UNKNOWN.seconds,
        )
        self.release([fire], int(_RETRY_UNKNOWN.total_seconds() * 1000))

    def _trigger_failed(self, fire: Fire, error: Exception) -> None:
        self._logger.error(
            "The trigger of job %r failed; the job stays in the store and is tried again in %d s: correct it",
            fire.job_id,
            _RETRY_UNKNOWN.seconds,
            exc_info=error,
        )
        self.release([fire], int(_RETRY_UNKNOWN.total_seconds() * 1000))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} jobs={len(self._slots)} {self._wheel!r}>"
