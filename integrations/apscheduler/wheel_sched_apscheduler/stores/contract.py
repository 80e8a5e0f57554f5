"""The contract between a jobstore and its driver: claim a batch, plan it, report how it ended.

    batch = store.claim_batch(now, limit)       one round trip; it also settles what has ended since the last one
    for occurrence in batch.occurrences:
        if not occurrence.run_times:
            run_times, following = missed_runs(occurrence.job, now)
            occurrence.run_at(run_times)
        occurrence.plan(following)              the next run time of the job; None = there is none
    store.mark_submitted(batch.occurrences)     after planning, before or while executors take them; no I/O
    store.finish(occurrence, Finish.EXECUTED)   when all run times of the occurrence have ended; no I/O
    store.release([occurrence], delay_ms)       the occurrence must not run now; no I/O
    sleep until batch.wake_at, or until the store calls scheduler.wakeup()

The driver. A stock scheduler drives a jobstore through APScheduler's five methods, see `scheduler_pass`: `get_due_jobs`
claims, `update_job` and `remove_job` plan, `get_next_run_time` marks as submitted, and events report the end. Our
schedulers call the methods above. Their class has `drives_batches = True`. A jobstore that such a scheduler starts
listens to no events, so each end is reported once. Its occurrences hold plain jobs. `occurrence.run_times` has the run
times that are already decided. The driver makes the occurrence the current one and marks its start.

Rules.
- One thread at a time claims and marks as submitted. `finish` and `release` may come from any thread, also before
  `mark_submitted` has returned, and never block on I/O.
- Each claimed occurrence ends in one call of `finish` or `release`. If it has several run times, the driver counts
  them (`occurrence.left`) and calls `finish` with the worst outcome when the last has ended.
- A submitted occurrence keeps its lease while this process lives and its executor knows the job. The store extends the
  lease in its own thread. After a crash the occurrence is handed out again.
- `claim_batch` never raises when the store does not answer. It returns an empty batch with a `wake_at` a moment later,
  and logs once. Finished occurrences are kept, and settled when the store answers again.
- A job that cannot be loaded is in no batch: the store gives it back for other processes, or quarantines it.
- A released occurrence is claimed again, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from wheel_sched_apscheduler.occurrence import Finish, Occurrence


@dataclass(slots=True)
class OccurrenceBatch:
    """The result of one claim.

    Args:
        occurrences: by next run time, then by job id.
        wake_at: when to claim again; None = when the store calls `wakeup`. With `more` it is not after now.
        more: whether more was due than the limit allowed.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    wake_at: datetime | None = None
    more: bool = False


@runtime_checkable
class ClaimingStore(Protocol):
    """The methods that a driver calls on a jobstore. Both of our jobstores have them."""

    def claim_batch(self, now: datetime, limit: int | None = None) -> OccurrenceBatch:
        """Claim the occurrences that are due at `now`. See the module."""
        ...

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """Report that these occurrences are planned and go to their executors."""
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
