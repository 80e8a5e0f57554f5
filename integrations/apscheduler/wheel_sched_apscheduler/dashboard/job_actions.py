"""The changes of jobs that a visitor can ask for. A visitor sees a preview first.

A job that has changed since the preview stays as it is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from wheel_sched.dashboard import Action, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.named_things import ChosenThings, NamedKind
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.errors import StoreError
from wheel_sched.management.wording import amount, relative
from wheel_sched.store import Found
from wheel_sched_apscheduler.dashboard.answers import next_ms
from wheel_sched_apscheduler.dashboard.opening import opened_of
from wheel_sched_apscheduler.management import changing
from wheel_sched_apscheduler.management.fingerprint import fingerprint
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

JOBS = NamedKind("job", "jobs", "the id of a job", lambda count: amount(count, "job"))


class JobChange(NamedTuple):
    """A change of jobs.

    Args:
        name: the name of the action.
        right: the right that a user of the action needs.
        summary: one line for the OpenAPI document.
        words: what the action would do; `{}` becomes the number of jobs.
        done: what the action did, in the same form.
        change: changes jobs while the caller iterates.
        warning: what the user should know before. Defaults to "".
        rewrites: whether the action writes a new record of the job. Then this process must be able to read the record.
    """

    name: str
    right: Right
    summary: str
    words: str
    done: str
    change: changing.Change
    warning: str = ""
    rewrites: bool = True


CHANGES = (
    JobChange(
        "run-job-now",
        "operate",
        "Make APScheduler jobs due now",
        "make {} due now",
        "{} due now",
        changing.run_now,
        "a recurring job then runs again at the times of its trigger; a paused job is scheduled again",
    ),
    JobChange(
        "pause-job",
        "operate",
        "Pause APScheduler jobs",
        "pause {}",
        "{} paused",
        changing.pause,
        "a run under way finishes",
    ),
    JobChange(
        "resume-job",
        "operate",
        "Resume paused APScheduler jobs",
        "schedule {} from now on",
        "{} scheduled",
        changing.resume,
        "a job whose trigger has no more run times is deleted",
    ),
    JobChange(
        "release-job",
        "operate",
        "Release APScheduler jobs from quarantine",
        "release {} from quarantine",
        "{} released",
        changing.release,
        "a job that still cannot run is quarantined again",
        rewrites=False,
    ),
    JobChange(
        "delete-job",
        "delete",
        "Delete APScheduler jobs for good",
        "delete {} for good",
        "{} deleted",
        changing.delete,
        "a run under way finishes",
        rewrites=False,
    ),
)


def _preview(change: JobChange, dashboard: Dashboard, arguments: Arguments) -> Preview:
    store = opened_of(dashboard).store
    ids = JOBS.names_of(arguments)
    now_ms, chosen = store.store.now_ms(), ChosenThings(JOBS)
    for job_id, found in zip(ids, store.store.get(ids), strict=True):
        why = _why_not(store, change, found)
        if found is None or why:
            chosen.leave(why)
            continue
        entry, identity = store.entry(found), fingerprint(store, found)
        at_ms = next_ms(entry)
        when = "" if at_ms is None else f", next run {relative(at_ms, now_ms)}"
        sample = f"{job_id}: {entry.func}, {entry.state.replace('_', ' ')}{when}"
        chosen.choose(job_id, identity, identity, sample)
    return chosen.preview(change.words, change.warning)


def _why_not(store: RedisWheelJobStore, change: JobChange, found: Found | None) -> str:
    """Why this change of a job is not possible, in words; "" when it is possible."""
    why = changing.wrong_state(store, change.change, found)
    if why or found is None:
        return why
    if change.rewrites:
        try:
            store.codec.moved(found.id, found.body, None)
            if change.change is changing.resume:
                store.codec.trigger(found.id, found.body)
        except StoreError as error:
            return str(error)
    return ""


def _execute(change: JobChange, dashboard: Dashboard, found: Preview) -> ActionResult:
    store = opened_of(dashboard).store
    chosen: dict[str, list[Any]] = found.selected
    results = list(change.change(store, list(chosen), lambda item: fingerprint(store, item) == chosen[item.id]))
    done = sum(result.changed for result in results)
    left = Counter(result.done for result in results if not result.changed)
    return ActionResult(done, change.done.format(amount(done, "job")), dict(left))


def _action(change: JobChange) -> Action:
    return Action(
        change.name,
        change.right,
        change.summary,
        JOBS.fields,
        lambda dashboard, arguments: _preview(change, dashboard, arguments),
        lambda dashboard, _arguments, found, _who: _execute(change, dashboard, found),
    )


ACTIONS = tuple(map(_action, CHANGES))
