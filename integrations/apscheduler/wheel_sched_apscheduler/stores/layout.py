"""How jobs lie in a delay store.

    topic job           id = job id                       body = the job (see `codec`), due = its next run time
    topic occurrence    id = <run time in ms>\\0<job id>   body = <run times in us, comma-separated>|<the job>, signed
                                                               under its own id where jobs are signed
    topic run           id = random                       a run that has left the store, see `marks`
    topic worker        a process with long runs under way, parked: its host, pid and fires
    topic history       ends, some fifty an item, among the dead and capped like these
    refs                tag:<tag> of a job, run:<job id> of an occurrence or run, workers of a worker; running of a
                        job of which a run lies beside it, or did when it was written; those of `loading`

A paused job is parked (`held` without due), a quarantined one held with its reason. Run times before 1970 are due at
once: scores of a store start there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from wheel_sched.store.items import MAX_DUE_MS
from wheel_sched_apscheduler.codec import Unreadable
from wheel_sched_apscheduler.instants import from_us, to_ms, to_us

JOB = "job"
OCCURRENCE = "occurrence"
HISTORY = "history"
WORKER = "worker"
RUN = "run"
TAG = "tag:"
WORKERS = "workers"
RUNNING = "running"


def due_of(moment: datetime | None) -> int | None:
    """A next run time as a due."""
    return None if moment is None else min(max(to_ms(moment), 0), MAX_DUE_MS)


def occurrence_id(job_id: str, run_ms: int) -> str:
    """The id of an occurrence that was split off its job."""
    return f"{run_ms}\0{job_id}"


def job_id_of(item_id: str) -> str:
    """The job behind the id of a job or an occurrence."""
    return item_id.partition("\0")[2] if "\0" in item_id else item_id


def occurrence_body(run_times: Sequence[datetime], body: bytes) -> bytes:
    """An occurrence's body; `body` may be one itself."""
    return b"%s|%s" % (",".join(str(to_us(moment)) for moment in run_times).encode(), body)


def read_occurrence(raw: bytes) -> tuple[list[datetime], bytes]:
    """Run times and job of an occurrence.

    Raises:
        Unreadable: it is none.
    """
    head, bar, body = raw.partition(b"|")
    try:
        if not bar:
            raise ValueError("no job")
        return [from_us(int(us)) for us in head.split(b",")], body
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"it is not a stored occurrence (starts {raw[:24]!r}): {error}") from error
