"""WheelJobStore: the jobs of one process, on the deadline queue.

It replaces `MemoryJobStore`, which keeps a sorted list and moves half of its entries for each change. Here add, update
and remove are O(1) at any number of jobs. Only due batches and listings are sorted. The jobs are lost when the
scheduler ends: use `RedisWheelJobStore` to keep them. Use it also to share due jobs between tenants, because only a
delay store can do that.

Invariant. A job with a next run time is in exactly one place: the deadline queue, the misfire queue (it was already due
when it was added), or an occurrence. A paused job is in none of them.

Threads: any thread may call any method. Each call that moves a job holds one lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.clock import SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.timers import DeadlineQueue
from wheel_sched_apscheduler.occurrence import Finish, Occurrence, claimed_copy
from wheel_sched_apscheduler.run_times import (
    MISFIRES,
    Misfire,
    earliest,
    floor_ms,
    from_ms,
    from_us,
    grace_after_claim,
    lateness_until,
    to_us,
)
from wheel_sched_apscheduler.settings import one_of, whole
from wheel_sched_apscheduler.stores.memory_queries import NEVER_US, MemoryJobQueries, Slot, slot_order
from wheel_sched_apscheduler.stores.scheduler_pass import OccurrenceBatch

T = TypeVar("T")
_RETRY_S = 30  # a job that cannot run is tried again after this time


class _Bucket(Generic[T]):
    """The entries of one due time."""

    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: dict[str, T] = {}
        self.order: list[str] | None = None  # remaining names, last first; None = not sorted yet


class MisfireQueue(Generic[T]):
    """Jobs that were already due when they were added, by due time, then by name.

    Each due time has a bucket, which is sorted when its first entry is taken. So a burst of jobs with one due time
    costs no heap operation per job. Adding, discarding and taking are O(1), except the heap push of a new due time and
    the sort of a bucket, which is one pass when names come in order. Discarding frees the entry at once; only its name
    or its due time may stay for a while.

    Threads: not thread-safe; the caller holds the jobstore's lock.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket[T]] = {}
        self._heap: list[int] = []  # due times of the buckets, and of some removed buckets

    def add(self, due: int, name: str, entry: T) -> None:
        """Add an entry. The queue must not have an entry with the same due time and name."""
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = _Bucket()
            if len(self._heap) > 2 * len(self._buckets) + 64:
                self._heap = list(self._buckets)
                heapify(self._heap)
            else:
                heappush(self._heap, due)
        bucket.entries[name] = entry
        bucket.order = None

    def discard(self, due: int, name: str) -> None:
        """Remove an entry, which must exist."""
        entries = self._buckets[due].entries
        del entries[name]
        if not entries:
            del self._buckets[due]

    def take(self, until: int, limit: int) -> list[T]:
        """Remove and return at most `limit` entries whose due time is not after `until`, in order."""
        taken: list[T] = []
        while len(taken) < limit:
            due = self.head()
            if due is None or due > until:
                break
            bucket = self._buckets[due]
            entries, order = bucket.entries, bucket.order
            if order is None:
                order = bucket.order = sorted(entries, reverse=True)
            while entries and len(taken) < limit:
                entry = entries.pop(order.pop(), None)
                if entry is not None:  # None: discarded after the sort
                    taken.append(entry)
            if not entries:
                del self._buckets[due]
        return taken

    def head(self) -> int | None:
        """The earliest due time; None = there is no entry."""
        heap = self._heap
        while heap and heap[0] not in self._buckets:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Remove everything."""
        self._buckets.clear()
        self._heap.clear()


class WheelJobStore(MemoryJobQueries):
    """A jobstore for the jobs of one process, in memory. Its plugin alias is `wheel`.

    Args:
        batch: how many jobs a stock scheduler's pass hands out at most. Its lock is free between passes. Defaults to
            500.
        misfire: when lateness is measured, see `run_times.grace_after_claim`. Defaults to "lenient".
        history: how many run records are kept; 0 = none. Defaults to 1000.

    Raises:
        ConfigError: names everything that is wrong.
    """

    def __init__(self, *, batch: int = 500, misfire: Misfire = "lenient", history: int = 1000) -> None:
        problems: list[str] = []
        self._batch = whole("batch", batch, 1, None, problems)
        history = whole("history", history, 0, None, problems)
        self.misfire: Misfire = one_of("misfire", misfire, MISFIRES, problems)
        if problems:
            raise ConfigError(problems)
        super().__init__(history)
        self._queue: DeadlineQueue[Slot] = DeadlineQueue(SystemClock().wall_ms())
        self._misfire_queue: MisfireQueue[Slot] = MisfireQueue()
        self._tokens = 0

    # APScheduler's calls outside of a pass.

    def lookup_job(self, job_id: str) -> Any:
        """The job with this id; None = there is none."""
        slot = self._slots.get(job_id)
        return None if slot is None else slot.job

    def get_all_jobs(self) -> list[Any]:
        """All jobs by next run time, then id; paused ones last."""
        return [slot.job for slot in self._ordered()]

    def get_next_run_time(self) -> datetime | None:
        """When to make the next pass. Also considers jobs that the present pass has put back."""
        return earliest([super().get_next_run_time(), self._head()])

    def _drop_notes(self, job_id: str) -> None:
        self._tags.pop(job_id, None)
        self._metadata.pop(job_id, None)

    def add_job(self, job: Any) -> None:
        """Add a job. O(1).

        Raises:
            ConflictingIdError: a job with this id exists; nothing was changed.
        """
        with self._lock:
            if job.id in self._slots:
                raise ConflictingIdError(job.id)
            slot = self._slots[job.id] = Slot(job)
            self._arm(slot)

    def remove_all_jobs(self) -> None:
        """Forget every job. A running job finishes and does not run again."""
        with self._lock:
            self._slots.clear()
            self._misfire_queue.clear()
            self._tags.clear()
            self._metadata.clear()
            self._queue.restart(SystemClock().wall_ms())

    def shutdown(self) -> None:
        """Forget every job, as APScheduler's `MemoryJobStore` does."""
        self.remove_all_jobs()

    def _update(self, job: Any) -> None:
        with self._lock:
            slot = self._slots.get(job.id)
            if slot is None:
                raise JobLookupError(job.id)
            slot.job = job
            if slot.occurrence is not None and job.next_run_time == slot.occurrence.scheduled:
                return  # the job runs, and its occurrence plans the next run
            slot.occurrence = None
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
            late_us = self._misfire_queue.head()
            if late_us is not None:
                return from_us(late_us)
            expiry_ms = self._queue.next_ms()
            return None if expiry_ms is None else from_ms(expiry_ms)

    # The queues of waiting jobs.

    def _arm(self, slot: Slot) -> None:
        """Put a job into the queue in which it waits for its next run time. A paused job leaves all queues."""
        moment = slot.job.next_run_time
        if moment is None:
            self._disarm(slot)
            slot.due_us = NEVER_US
            return
        due_us = to_us(moment)
        due_ms = -(-due_us // 1000)
        if slot.late:
            self._disarm(slot)
        slot.due_us = due_us
        if due_ms > self._queue.now_ms:
            if slot.timer is None:
                slot.timer = self._queue.schedule(slot, due_ms)
            else:
                slot.timer.reschedule(due_ms)
            return
        self._disarm(slot)
        slot.late = True
        self._misfire_queue.add(due_us, slot.job.id, slot)

    def _disarm(self, slot: Slot) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if slot.late:
            slot.late = False
            self._misfire_queue.discard(slot.due_us, slot.job.id)

    # The contract with a driver, see `scheduler_pass`.

    def claim_batch(self, now: datetime, limit: int | None = None) -> OccurrenceBatch:
        """Take at most `limit` due jobs out of the queues. Make an occurrence of each, by due time and then by id."""
        limit = self._batch if limit is None else limit
        claimed_ms = time.time_ns() // 1_000_000
        with self._lock:
            due = self._misfire_queue.take(to_us(now), limit)
            for slot in due:
                slot.late = False
            if len(due) < limit and floor_ms(now) >= self._queue.now_ms:
                for slot in self._queue.take(floor_ms(now), limit - len(due)):
                    slot.timer = None
                    due.append(slot)
                due.sort(key=slot_order)
            occurrences = []
            token = self._tokens
            for slot in due:
                token += 1
                if self.driven:
                    job = slot.job
                    occurrence = Occurrence(job, job.id, job.next_run_time, token, claimed_ms=claimed_ms)
                else:
                    grace_s = grace_after_claim(slot.job, now, self.misfire)
                    until = lateness_until(now, self.misfire)
                    occurrence = claimed_copy(slot.job, token, grace_s, claimed_at=until).occurrence
                slot.occurrence = occurrence
                occurrence.handle = slot
                self._in_flight[token] = occurrence
                occurrences.append(occurrence)
            self._tokens = token
            more = len(occurrences) == limit
            return OccurrenceBatch(occurrences, now if more else self._head(), more)

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """Let the jobs of these occurrences wait for their next run times. Removes jobs that have none."""
        with self._lock:
            for occurrence in occurrences:
                slot: Slot = occurrence.handle
                if slot.occurrence is not occurrence:
                    continue  # the job was changed or removed meanwhile
                slot.occurrence = None
                if slot.job.next_run_time != occurrence.scheduled:
                    pass  # another thread changes the job, and then calls `update_job`
                elif occurrence.next_run_time is None:
                    if self._slots.get(occurrence.job_id) is slot:
                        del self._slots[occurrence.job_id]
                        if self._tags or self._metadata:
                            self._drop_notes(occurrence.job_id)
                    continue
                else:
                    slot.job.next_run_time = occurrence.next_run_time
                if self._slots.get(occurrence.job_id) is slot:
                    self._arm(slot)

    def finish(self, occurrence: Occurrence, finish: Finish, error: str = "") -> None:
        """Implements `ClaimingStore.finish`."""
        occurrence.mark_ended(finish, error)
        self._past.append(occurrence)
        self._in_flight.pop(occurrence.token, None)

    def release(self, occurrences: Iterable[Occurrence], delay_ms: int = 0) -> None:
        """Implements `ClaimingStore.release`. Leaves a job alone that already waits for its next run."""
        with self._lock:
            for occurrence in occurrences:
                slot: Slot = occurrence.handle
                self._in_flight.pop(occurrence.token, None)
                known = self._slots.get(occurrence.job_id)
                if known is None and occurrence.planned and occurrence.next_run_time is None:
                    known = self._slots[occurrence.job_id] = slot
                    slot.occurrence = occurrence
                if known is not slot or slot.occurrence is not occurrence:
                    continue
                slot.occurrence = None
                self._arm(slot)
                if delay_ms:
                    self._postpone(slot, delay_ms)
        scheduler = self._scheduler
        if scheduler is not None and scheduler.running and not self._pass:
            scheduler.wakeup()

    def _postpone(self, slot: Slot, delay_ms: int) -> None:
        """Let the job be handed out `delay_ms` from now, later than its next run time."""
        self._disarm(slot)
        slot.timer = self._queue.schedule(slot, SystemClock().wall_ms() + delay_ms)

    def report_unknown_executor(self, occurrence: Occurrence) -> None:
        self._logger.error(
            "Job %r names the executor %r, which this scheduler does not have; the job stays in the store and is tried "
            "again in %d s: add the executor or give the job another",
            occurrence.job_id,
            occurrence.job.executor,
            _RETRY_S,
        )
        self.release([occurrence], _RETRY_S * 1000)

    def report_trigger_failure(self, occurrence: Occurrence, error: Exception) -> None:
        self._logger.error(
            "The trigger of job %r failed; the job stays in the store and is tried again in %d s: correct it",
            occurrence.job_id,
            _RETRY_S,
            exc_info=error,
        )
        self.release([occurrence], _RETRY_S * 1000)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} jobs={len(self._slots)} {self._queue!r}>"
