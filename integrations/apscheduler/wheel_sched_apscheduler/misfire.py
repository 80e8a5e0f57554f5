"""From when lateness is counted: at the claim, not when a worker thread happens to be free.

Stock looks at `misfire_grace_time` in the worker, so time spent in the pool's queue counts, and its default of one
second drops most of a burst. Here the clock is read once, when the job is claimed; what is claimed in time runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from wheel_sched_apscheduler.instants import to_us

Misfire = Literal["lenient", "claim", "stock"]
MISFIRES: tuple[Misfire, ...] = ("lenient", "claim", "stock")
STOCK_GRACE_S = 1  # APScheduler's default, which nobody chose


def grace_after_claim(job: Any, now: datetime, misfire: Misfire) -> int | None:
    """The grace the executor is to apply to a job claimed at `now`; None = run it however late.

    Args:
        job: with its next run time.
        now: of the claim.
        misfire: "lenient": a grace of 1 s, APScheduler's default, counts as none, any other as in "claim".
            "claim": a job that is claimed within its grace runs; one claimed later is MISSED. "stock": as the job says,
            counted when a worker takes it.
    """
    grace_s: int | None = job.misfire_grace_time
    if grace_s is None or misfire == "stock":
        return grace_s
    if misfire == "lenient" and grace_s == STOCK_GRACE_S:
        return None
    return None if to_us(now) - to_us(job.next_run_time) <= grace_s * 1_000_000 else grace_s
