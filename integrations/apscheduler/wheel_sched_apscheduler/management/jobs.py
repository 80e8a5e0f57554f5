"""Jobs as data: listed without loading them, or one with its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wheel_sched.errors import NotDone
from wheel_sched_apscheduler.entries import InFlightRun, JobEntry, JobState, RunRecord
from wheel_sched_apscheduler.management.running import last_runs, runs_of_job
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.stores.layout import JOB
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore


def listed_jobs(store: RedisWheelJobStore, state: JobState | None = None, tag: str | None = None) -> Iterator[JobEntry]:
    """The jobs: scheduled ones in order of next run time, then paused, in flight and quarantined ones.

    Args:
        store: the jobstore.
        state: only jobs in this state. Defaults to None: any state.
        tag: only jobs with this tag, at most 1000, by id. Defaults to None: any job.
    """
    if tag is None:
        return store.entries(state)
    found = (store.get_entry(job_id) for job_id in store.find(tag))
    return (entry for entry in found if entry is not None and state in (None, entry.state))


@dataclass(frozen=True, slots=True)
class DetailedJob:
    """One job with its runs.

    Args:
        entry: the job.
        running: its runs that have not ended.
        history: how its last runs ended, newest first.
        now_ms: the store's time when it was read, epoch ms.
        trigger: its trigger; None when it cannot be read here.
    """

    entry: JobEntry
    running: Sequence[InFlightRun]
    history: Sequence[RunRecord]
    now_ms: int
    trigger: Any = None

    def as_dict(self) -> dict[str, Any]:
        """The job as data for JSON."""
        return {
            **as_dict(self.entry),
            "running": [asdict(run) for run in self.running],
            "history": [asdict(record) for record in self.history],
        }


def detailed_job(store: RedisWheelJobStore, job_id: str, runs: int = 5) -> DetailedJob:
    """Read one job and its runs.

    Args:
        store: the jobstore.
        job_id: the id of the job.
        runs: the largest number of ended runs. Defaults to 5.

    Raises:
        NotDone: there is no such job.
    """
    now_ms = store.store.now_ms()
    (found,) = store.store.get([job_id])
    if found is None or found.topic != JOB:
        raise NotDone(f"there is no job {job_id!r}; `wheel-sched aps list` lists the jobs")
    history = last_runs(store, runs, job_id).records
    trigger = store.codec.shown_trigger(found.body)
    return DetailedJob(store.entry(found), runs_of_job(store, job_id), history, now_ms, trigger)


def as_dict(entry: JobEntry) -> dict[str, Any]:
    """A job as plain data that can be written as JSON."""
    moment = entry.next_run_time
    fields = asdict(entry)
    fields["next_run_time"] = None if moment is None else moment.isoformat()
    fields["next_run_ms"] = None if moment is None else to_ms(moment)
    return fields
