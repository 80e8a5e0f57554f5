"""The form of jobs in a delay store.

    topic job           id = job id                       body = the job (see `codec`), due = its next run time
    topic occurrence    id = <run time in ms>\\0<job id>   a *split item*: a run that lies beside its job.
                                                          body = <run times in us, comma-separated>|<the job>, signed
                                                          under its own id where jobs are signed
    topic run           id = random                       mark of a run that has left the store, see `max_instances`
    topic worker        id = random                       a process with long runs: its host, pid and occurrences; held
    topic history       id = random                       some fifty run records, kept and capped as dead letters
    refs                tag:<tag> of a job; run:<job id> of a split item or mark; workers of a worker; running of a
                        job if a split item lay beside it when it was written; those of `refusals`

A paused job is held without a due. A quarantined job is held with its reason. Scores of a store start in 1970, so a job
with an earlier run time is due at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched_apscheduler.codec import Unreadable
from wheel_sched_apscheduler.run_times import from_us, to_ms, to_us

JOB = "job"
OCCURRENCE = "occurrence"
HISTORY = "history"
WORKER = "worker"
RUN = "run"
TAG = "tag:"
WORKERS = "workers"
RUNNING = "running"
QUARANTINE = "quarantine"


def due_of(moment: datetime | None) -> int | None:
    """The due time of a job with this next run time."""
    return None if moment is None else min(max(to_ms(moment), 0), MAX_DUE_MS)


def split_item_id(job_id: str, run_ms: int) -> str:
    """The id of a split item."""
    return f"{run_ms}\0{job_id}"


def job_id_of(item_id: str) -> str:
    """The job id in the id of a job or of a split item."""
    return item_id.partition("\0")[2] if "\0" in item_id else item_id


def split_item_body(run_times: Sequence[datetime], body: bytes) -> bytes:
    """The body of a split item. `body` is the body of the job or of another split item."""
    return b"%s|%s" % (",".join(str(to_us(moment)) for moment in run_times).encode(), body)


def read_split_item(raw: bytes) -> tuple[list[datetime], bytes]:
    """Run times and job body of a split item.

    Raises:
        Unreadable: `raw` is no body of a split item.
    """
    head, bar, body = raw.partition(b"|")
    try:
        if not bar:
            raise ValueError("no job")
        return [from_us(int(us)) for us in head.split(b",")], body
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"it is not a stored occurrence (starts {raw[:24]!r}): {error}") from error
