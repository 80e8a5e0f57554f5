"""Jobs and runs as data: what the pages and the JSON API show, made in one place for both."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from wheel_sched.dashboard.schemas import INTEGER, INTEGER_OR_NONE, SWITCH, TEXT, TEXT_OR_NONE, array, listing, record
from wheel_sched_apscheduler.entries import JOB_STATES, InFlightRun, JobEntry, RunRecord
from wheel_sched_apscheduler.management.jobs import DetailedJob
from wheel_sched_apscheduler.management.run_forecast import next_runs
from wheel_sched_apscheduler.management.searching import ListedJob, StateCounts
from wheel_sched_apscheduler.management.trigger_words import trigger_words
from wheel_sched_apscheduler.run_times import to_ms

PICKLED = "(pickled, not shown)"
_DEPTH = 12
_NEXT = 10

_STATE = {"enum": [*JOB_STATES]}
JOB = record(
    id=TEXT,
    state=_STATE,
    function=TEXT,
    name=TEXT,
    trigger=TEXT,
    next_run_ms=INTEGER_OR_NONE,
    executor=TEXT,
    reason=TEXT,
    tags=array(TEXT),
)
COUNTS = record(scheduled=INTEGER, paused=INTEGER, in_flight=INTEGER, quarantined=INTEGER, exact=SWITCH)
RUNNING = record(
    job_id=TEXT,
    occurrence_id=TEXT_OR_NONE,
    lease_until_ms=INTEGER_OR_NONE,
    owner=TEXT_OR_NONE,
    since_ms=INTEGER_OR_NONE,
)
RUN = record(
    job_id=TEXT,
    occurrence_id=TEXT,
    run_time_ms=INTEGER,
    started_ms=INTEGER,
    finished_ms=INTEGER,
    outcome=TEXT,
    error=TEXT,
    owner=TEXT,
    lateness_ms=INTEGER,
    took_ms=INTEGER,
)
JOBS = listing("jobs", JOB, cursor=TEXT_OR_NONE, counts=COUNTS)
RUNS_IN_FLIGHT = listing("runs", RUNNING, cursor=TEXT_OR_NONE)
HISTORY = listing("runs", RUN, complete=SWITCH)
ONE_JOB = {
    **JOB,
    "properties": {
        **JOB["properties"],
        "stored_trigger": TEXT,
        "next_runs_ms": array(INTEGER),
        "no_forecast_because": TEXT,
        "running": array(RUNNING),
        "history": array(RUN),
        "what_to_do": TEXT,
    },
    "required": [
        *JOB["required"],
        "stored_trigger",
        "next_runs_ms",
        "no_forecast_because",
        "running",
        "history",
        "what_to_do",
    ],
}


def next_ms(entry: JobEntry) -> int | None:
    """The next run time of a job, in epoch ms; None: it is paused or cannot be read."""
    return None if entry.next_run_time is None else to_ms(entry.next_run_time)


def job_as_dict(job: ListedJob) -> dict[str, Any]:
    """A job of a listing. Arguments and metadata are left out: they are payload."""
    entry = job.entry
    return {
        "id": entry.id,
        "state": entry.state,
        "function": entry.func,
        "name": entry.name,
        "trigger": job.trigger,
        "next_run_ms": next_ms(entry),
        "executor": entry.executor,
        "reason": entry.reason,
        "tags": list(entry.tags),
    }


def counts_as_dict(counts: StateCounts) -> dict[str, Any]:
    return counts._asdict()


def running_as_dict(run: InFlightRun) -> dict[str, Any]:
    return asdict(run)


def run_as_dict(run: RunRecord) -> dict[str, Any]:
    """How a run ended, with its lateness and how long it took, in ms."""
    return {**asdict(run), "lateness_ms": max(0, run.lateness_ms), "took_ms": took_ms(run)}


def took_ms(run: RunRecord) -> int:
    """How long a run took, in ms; 0 when it did not begin, or when nobody knows when."""
    return max(0, run.finished_ms - run.started_ms) if run.started_ms else 0


def detailed_as_dict(job: DetailedJob, show_payloads: bool) -> dict[str, Any]:
    """Everything about one job. Its arguments and metadata only if payloads may be shown, and never pickled ones."""
    entry = job.entry
    forecast = next_runs(job.trigger, entry.next_run_time, job.now_ms, _NEXT)
    fields = {
        **job_as_dict(ListedJob(entry, trigger_words(job.trigger) or entry.trigger)),
        "stored_trigger": entry.trigger,
        "next_runs_ms": list(forecast.times_ms),
        "no_forecast_because": forecast.why_not,
        "running": [running_as_dict(run) for run in job.running],
        "history": [run_as_dict(run) for run in job.history],
        "what_to_do": what_to_do(entry),
    }
    if show_payloads:
        fields |= {name: without_pickle(getattr(entry, name)) for name in ("args", "kwargs", "metadata")}
    return fields


def without_pickle(value: Any, depth: int = 0) -> Any:
    """Stored values for display. Pickled parts and parts that lie very deep are left out; nothing is unpickled."""
    if depth > _DEPTH:
        return "(too deep, not shown)"
    if isinstance(value, Mapping):
        if value.get("$") == "pickle":
            return PICKLED
        return {str(key): without_pickle(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_pickle(part, depth + 1) for part in value]
    return value


def what_to_do(entry: JobEntry) -> str:
    """What a person can do about a job in quarantine; "" for any other job."""
    if entry.state != "quarantined":
        return ""
    repoint = f"`wheel-sched aps repoint {shlex.quote(entry.func)} NEW_MODULE:NAME`"
    if "signature" in entry.reason or "signed" in entry.reason:
        return (
            "give all processes that add or run jobs the same secret, then release the job; if nobody you trust has "
            "written it, delete it"
        )
    if "pickle" in entry.reason:
        return "open the jobstore of the schedulers with allow_pickle=True, or add the job anew with plain arguments"
    if "allow-list" in entry.reason:
        return f"add its function to allow=[...] of the schedulers, or name another one with {repoint}; then release it"
    return f"deploy the code that it names, or name other code with {repoint}; then release it"
