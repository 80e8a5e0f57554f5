"""The seam between a store and whoever drives it: claim a batch, plan it, tell how it ended.

    batch = store.claim_batch(now, limit)      one round trip; it also settles what has ended since the last one
    for fire in batch.fires:
        run_times, following = missed_runs(fire.job, now)     of a fire that has none yet
        fire.run_at(run_times)
        fire.plan(following)                   None = it was the last one
    store.hand_over(batch.fires)               once planned, before or while executors take them; no I/O
    store.finish(fire, Finish.EXECUTED)        from any thread, when all run times of a fire have ended; no I/O
    store.release([fire], delay_ms)            a fire that is not to run now; any thread; no I/O
    sleep until batch.wake_at, or until the store calls scheduler.wakeup()

Who drives. A stock scheduler does, through the five methods of a jobstore (`bracket`): `get_due_jobs` claims,
`update_job` and `remove_job` plan, `get_next_run_time` hands over, and events tell the end. A scheduler of ours calls
the methods above. Its class says `drives_batches = True`; a store that is started by such a scheduler listens to no
events, so that an end is told once, and gives out fires of plain jobs: run times that are decided already stand in
`fire.run_times`, the driver makes a fire the current one while it runs, and notes its start.

Rules.
- One thread at a time claims and hands over; `finish` and `release` may come from any thread, also before
  `hand_over` has returned, and never block on I/O.
- Each claimed fire ends in exactly one of `finish` and `release`. Of several run times the driver counts
  (`fire.left`), and calls `finish` with the worst outcome when the last has ended.
- A fire that is handed over and not finished keeps its lease for as long as this process lives and its executor
  knows the job; the store extends it from a thread of its own. After a crash the occurrence is handed out again.
- `claim_batch` never raises for a store that is away: it answers an empty batch with `wake_at` a moment later and
  reports once. What was finished is kept and settled when the store is back.
- A job that cannot be loaded is no part of a batch; the store has quarantined it.
- `release` with a delay puts a fire back as it was; its occurrence will be claimed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from wheel_sched_apscheduler.occurrence import Finish, Fire


@dataclass(slots=True)
class Batch:
    """What one claim gave.

    Args:
        fires: in order of next run time, then of job id.
        wake_at: when to claim again; None = when the store calls `wakeup`. Not after now when `more`.
        more: whether more was due than the limit allowed.
    """

    fires: list[Fire] = field(default_factory=list)
    wake_at: datetime | None = None
    more: bool = False


@runtime_checkable
class BatchStore(Protocol):
    """What a driver needs of a store; both of ours have it."""

    def claim_batch(self, now: datetime, limit: int | None = None) -> Batch:
        """Claim what is due at `now`; see the module."""
        ...

    def hand_over(self, fires: Sequence[Fire]) -> None:
        """These are planned and on their way to their executors."""
        ...

    def finish(self, fire: Fire, finish: Finish, error: str = "") -> None:
        """All run times of a fire have ended."""
        ...

    def release(self, fires: Iterable[Fire], delay_ms: int = 0) -> None:
        """Put fires back, to be claimed again after `delay_ms`."""
        ...
