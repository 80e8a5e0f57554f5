"""The calls of the JSON API about jobs. They read by the same functions as the pages."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from wheel_sched.dashboard import ApiCall, Dashboard, Parameter
from wheel_sched.dashboard.json_values import json_value
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched_apscheduler.dashboard import answers
from wheel_sched_apscheduler.dashboard.opening import opened_of
from wheel_sched_apscheduler.dashboard.pages import one_job, search_of
from wheel_sched_apscheduler.management.running import last_runs, running_page
from wheel_sched_apscheduler.management.searching import search_jobs


def _jobs(dashboard: Dashboard, request: Request) -> Any:
    opened = opened_of(dashboard)
    page = search_jobs(opened.store, search_of(request), cursor_of(request), limit_of(request))
    fields = {
        "jobs": [answers.job_as_dict(job) for job in page.jobs],
        "cursor": page.cursor,
        "counts": answers.counts_as_dict(opened.counts()),
    }
    return json_value(fields)


def _in_flight(dashboard: Dashboard, request: Request) -> Any:
    page = running_page(opened_of(dashboard).store, cursor_of(request), limit_of(request))
    return json_value({"runs": [answers.running_as_dict(run) for run in page.runs], "cursor": page.cursor})


def _history(dashboard: Dashboard, request: Request) -> Any:
    job_id = request.query_params.get("job") or None
    found = last_runs(opened_of(dashboard).store, limit_of(request), job_id)
    return json_value({"runs": [answers.run_as_dict(run) for run in found.records], "complete": found.complete})


def _job(dashboard: Dashboard, request: Request) -> Any:
    found = one_job(opened_of(dashboard), request.path_params["id"])
    return json_value(answers.detailed_as_dict(found, dashboard.config.show_payloads))


_LIMIT = Parameter("limit", "at most this many, up to 200", "integer")
_CURSOR = Parameter("cursor", "the cursor in the answer of the page before")

CALLS = (
    ApiCall(
        "/jobs",
        _jobs,
        "APScheduler jobs in a state, in order of their next run",
        answers.JOBS,
        (
            Parameter("state", "scheduled (default), paused, in_flight or quarantined"),
            Parameter("text", "a part of the id, the function or the name"),
            Parameter("tag", "only jobs with this tag"),
            Parameter("id", "only the job with this id, in any state"),
            _LIMIT,
            _CURSOR,
        ),
    ),
    ApiCall(
        "/jobs/in-flight",
        _in_flight,
        "The runs of APScheduler jobs under way, with process and lease",
        answers.RUNS_IN_FLIGHT,
        (_LIMIT, _CURSOR),
    ),
    ApiCall(
        "/jobs/history",
        _history,
        "How the last runs of APScheduler jobs ended, newest first",
        answers.HISTORY,
        (Parameter("job", "only runs of the job with this id"), _LIMIT),
    ),
    ApiCall("/jobs/{id:path}", _job, "One APScheduler job with its next and last runs", answers.ONE_JOB),
)
