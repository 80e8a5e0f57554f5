"""Changes jobs, one after the other. A job that cannot be changed does not keep the others from being changed.

Each change takes the jobstore, the ids, and `only_if`, a function that gets a job's present record and returns whether
to change the job. Without `only_if` every job is changed. The check and the change are one step: no other process can
change the job in between.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apscheduler.jobstores.base import JobLookupError

from wheel_sched.management.wording import instant
from wheel_sched.store import Found, Outcome
from wheel_sched.store.core.change import Alteration
from wheel_sched_apscheduler.codec import BadSignature, Forbidden, NotHere, Unreadable
from wheel_sched_apscheduler.entries import JOB_STATES, JobState
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.stores.layout import JOB
from wheel_sched_apscheduler.stores.queries import Condition, OtherJob
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

_NO_JOB = "there is no such job"
_TRIES = 20  # how often a change is tried, each time after another process has changed the job


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """What a change did to one job.

    Args:
        id: the id of the job.
        found: whether there is such a job.
        done: what was done, or why nothing was done, in words.
        changed: whether the job was changed.
    """

    id: str
    found: bool
    done: str
    changed: bool

    def as_dict(self) -> dict[str, Any]:
        """The result as data for JSON."""
        return {"id": self.id, "found": self.found, "done": self.done}


Change = Callable[[RedisWheelJobStore, Sequence[str], Condition | None], Iterator[ChangedJob]]


def wrong_state(store: RedisWheelJobStore, change: Change, found: Found | None, *, repeat: bool = False) -> str:
    """Why the present state of a job does not allow a change, in words; "" when it allows the change.

    Args:
        store: the jobstore.
        change: one of the changes of this module.
        found: the present record of the job; None: there is none.
        repeat: whether a change that the job already has is allowed, such as pausing a paused job. Defaults to False.
    """
    if found is None or found.topic != JOB:
        return _NO_JOB
    state = store.entry(found).state
    if state not in (*_STATES[change], *(_REPEATED.get(change, ()) if repeat else ())):
        return f"it is {state.replace('_', ' ')}"
    last = state == "in_flight" and change in (run_now, pause) and store.repository.is_gone(found)
    return "its last run is under way" if last else ""


def change_named(store: RedisWheelJobStore, job_ids: Sequence[str], change: Change) -> Iterator[ChangedJob]:
    """Change the jobs of these ids while you iterate, each if its state allows it. A change may be repeated."""
    for job_id in job_ids:
        (found,) = store.store.get([job_id])
        if why := wrong_state(store, change, found, repeat=True):
            yield ChangedJob(job_id, why != _NO_JOB, f"{why}; nothing was changed" if why != _NO_JOB else why, False)
        else:
            yield from change(store, [job_id], lambda item: not wrong_state(store, change, item, repeat=True))


def run_now(
    store: RedisWheelJobStore, job_ids: Sequence[str], only_if: Condition | None = None
) -> Iterator[ChangedJob]:
    """Make jobs due at once, paused ones too. A recurring job then runs again at the times of its trigger."""

    def change(job_id: str) -> str:
        store.run_now(job_id, only_if)
        return "due now"

    return _each(job_ids, change)


def pause(store: RedisWheelJobStore, job_ids: Sequence[str], only_if: Condition | None = None) -> Iterator[ChangedJob]:
    """Take jobs out of the schedule and keep them. A run under way finishes."""

    def change(job_id: str) -> str:
        store.pause(job_id, only_if)
        return "paused"

    return _each(job_ids, change)


def resume(store: RedisWheelJobStore, job_ids: Sequence[str], only_if: Condition | None = None) -> Iterator[ChangedJob]:
    """Schedule paused jobs from now on. A job whose trigger has no more run times is deleted."""

    def change(job_id: str) -> str:
        moment = store.resume(job_id, only_if)
        return "deleted: its trigger has no more run times" if moment is None else f"next run {instant(to_ms(moment))}"

    return _each(job_ids, change)


def delete(store: RedisWheelJobStore, job_ids: Sequence[str], only_if: Condition | None = None) -> Iterator[ChangedJob]:
    """Delete jobs for good. A run under way finishes."""

    def change(job_id: str) -> str:
        if only_if is None:
            store.remove_job(job_id)
        else:
            _remove_if(store, job_id, only_if)
        return "deleted"

    return _each(job_ids, change)


def release(
    store: RedisWheelJobStore, job_ids: Sequence[str], only_if: Condition | None = None
) -> Iterator[ChangedJob]:
    """Schedule quarantined jobs again. A job that still cannot run is quarantined again."""

    def change(job_id: str) -> str:
        if not store.release_quarantined([job_id], only_if):
            raise OtherJob("it is not in quarantine any more, or was changed meanwhile: it was left as it is")
        return "released"

    return _each(job_ids, change)


_STATES: Mapping[Change, Sequence[JobState]] = {
    run_now: ("scheduled", "paused", "in_flight"),
    pause: ("scheduled", "in_flight"),
    resume: ("paused",),
    delete: JOB_STATES,
    release: ("quarantined",),
}
_REPEATED: Mapping[Change, Sequence[JobState]] = {pause: ("paused",), resume: ("scheduled", "in_flight")}


def _remove_if(store: RedisWheelJobStore, job_id: str, only_if: Condition) -> None:
    for _ in range(_TRIES):
        (found,) = store.store.get([job_id])
        if found is None or found.topic != JOB:
            raise JobLookupError(job_id)
        if not only_if(found):
            break
        (outcome,) = store.store.change([Alteration(job_id, "c", "", found.version)])
        if outcome in (Outcome.DONE, Outcome.CANCELLED):
            return
    raise OtherJob("it was changed meanwhile: it was left as it is")


def quarantined_ids(store: RedisWheelJobStore) -> list[str]:
    """The ids of the jobs in quarantine, see `JobQueries.quarantined`. `release_quarantined` schedules them again."""
    return [entry.id for entry in store.quarantined()]


def _each(job_ids: Sequence[str], change: Callable[[str], str]) -> Iterator[ChangedJob]:
    """Change the jobs while you iterate."""
    for job_id in job_ids:
        try:
            yield ChangedJob(job_id, True, change(job_id), True)
        except JobLookupError:
            yield ChangedJob(job_id, False, _NO_JOB, False)
        except (OtherJob, Forbidden, BadSignature) as error:
            yield ChangedJob(job_id, True, str(error), False)
        except NotHere as error:
            yield ChangedJob(job_id, True, f"{error}; nothing was changed", False)
        except Unreadable as error:
            hint = f"`wheel-sched aps delete {shlex.quote(job_id)}` deletes it for good"
            words = f"its record is damaged: {error}; nothing was changed; {hint}"
            yield ChangedJob(job_id, True, words, False)
