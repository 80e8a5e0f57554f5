"""The changes of jobs that a visitor can ask for. Each is previewed; a job that has changed since is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.errors import Rejected, StoreError
from wheel_sched.management.wording import amount, relative
from wheel_sched.store import Found
from wheel_sched_apscheduler.dashboard.answers import next_ms
from wheel_sched_apscheduler.dashboard.opening import opened_of
from wheel_sched_apscheduler.entries import JobState
from wheel_sched_apscheduler.management import changing
from wheel_sched_apscheduler.management.changing import ChangedJob
from wheel_sched_apscheduler.management.fingerprint import fingerprint
from wheel_sched_apscheduler.stores.layout import JOB
from wheel_sched_apscheduler.stores.queries import Condition
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

MOST = 500  # jobs of one request
_SAMPLES = 5
Change = Callable[[RedisWheelJobStore, Sequence[str], Condition | None], Iterator[ChangedJob]]

FIELDS = (
    ActionField("job", "the id of a job; may be repeated", many=True),
    ActionField("jobs", "ids of jobs, one in a line"),
)


class JobChange(NamedTuple):
    """A change of jobs.

    Args:
        name: the name of the action.
        right: the right that it needs.
        summary: one line for the OpenAPI document.
        words: what it would do; `{}` becomes the number of jobs.
        done: what it did, in the same form.
        states: the states in which a job can be changed so.
        change: changes jobs while the caller iterates.
        warning: what the user should know before. Defaults to "".
        rewrites: whether it writes the record of the job anew, for which the record must be readable here.
    """

    name: str
    right: Right
    summary: str
    words: str
    done: str
    states: tuple[JobState, ...]
    change: Change
    warning: str = ""
    rewrites: bool = True


CHANGES = (
    JobChange(
        "run-job-now",
        "operate",
        "Make APScheduler jobs due now",
        "make {} due now",
        "{} due now",
        ("scheduled", "paused", "in_flight"),
        changing.run_now,
        "a recurring job then runs again at the times of its trigger; a paused job is scheduled again",
    ),
    JobChange(
        "pause-job",
        "operate",
        "Pause APScheduler jobs",
        "pause {}",
        "{} paused",
        ("scheduled", "in_flight"),
        changing.pause,
        "a run under way finishes",
    ),
    JobChange(
        "resume-job",
        "operate",
        "Resume paused APScheduler jobs",
        "schedule {} from now on",
        "{} scheduled",
        ("paused",),
        changing.resume,
        "a job whose trigger has no more run times is deleted",
    ),
    JobChange(
        "release-job",
        "operate",
        "Release APScheduler jobs from quarantine",
        "release {} from quarantine",
        "{} released",
        ("quarantined",),
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
        ("scheduled", "paused", "in_flight", "quarantined"),
        changing.delete,
        "a run under way finishes",
        rewrites=False,
    ),
)


def ids_of(arguments: Arguments) -> list[str]:
    """The ids that a request names, each once.

    Raises:
        Rejected: it names none, or too many.
    """
    lines = (line.strip() for line in str(arguments.get("jobs", "")).splitlines())
    ids = list(dict.fromkeys([*arguments.get("job", []), *filter(None, lines)]))
    if not ids:
        raise Rejected("which jobs? Give their ids; nothing was changed")
    if len(ids) > MOST:
        raise Rejected(f"expected at most {MOST} jobs, got {len(ids):,}: nothing was changed")
    return ids


def _preview(change: JobChange, dashboard: Dashboard, arguments: Arguments) -> Preview:
    store = opened_of(dashboard).store
    ids = ids_of(arguments)
    now_ms = store.store.now_ms()
    chosen: dict[str, list[Any]] = {}
    samples, left = [], Counter[str]()
    for job_id, found in zip(ids, store.store.get(ids), strict=True):
        why = _why_not(store, change, found)
        if found is None or why:
            left[why] += 1
            continue
        chosen[job_id] = fingerprint(store, found)
        entry = store.entry(found)
        at_ms = next_ms(entry)
        when = "" if at_ms is None else f", next run {relative(at_ms, now_ms)}"
        samples.append(f"{job_id}: {entry.func}, {entry.state.replace('_', ' ')}{when}")
    unchanged = "; ".join(
        f"{amount(count, 'job')} left as {'it is' if count == 1 else 'they are'}: {why}" for why, count in left.items()
    )
    return Preview(
        len(chosen),
        change.words.format(amount(len(chosen), "job")),
        digest_of([*chosen.values(), sorted(left.items())]),
        tuple(samples[:_SAMPLES]),
        "; ".join(filter(None, [change.warning if chosen else "", unchanged])),
        chosen,
    )


def _why_not(store: RedisWheelJobStore, change: JobChange, found: Found | None) -> str:
    """Why a job cannot be changed so, in words; "" when it can."""
    if found is None or found.topic != JOB:
        return "there is no such job"
    entry = store.entry(found)
    if entry.state not in change.states:
        return f"it is {entry.state.replace('_', ' ')}"
    if entry.state == "in_flight" and change.rewrites and store.repository.is_gone(found):
        return "its last run is under way"
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
        FIELDS,
        lambda dashboard, arguments: _preview(change, dashboard, arguments),
        lambda dashboard, _arguments, found, _who: _execute(change, dashboard, found),
    )


ACTIONS = tuple(map(_action, CHANGES))
