"""The pages about jobs. They only read, and load no job: nothing is imported or unpickled."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.dashboard.opened_later import page_with
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.dashboard.rendering import as_json, query, shown_lines
from wheel_sched.errors import NotDone, Rejected
from wheel_sched_apscheduler.dashboard import answers
from wheel_sched_apscheduler.dashboard.opening import OpenedJobs, opened_of
from wheel_sched_apscheduler.dashboard.strip import strip
from wheel_sched_apscheduler.entries import JOB_STATES
from wheel_sched_apscheduler.management.jobs import DetailedJob, detailed_job
from wheel_sched_apscheduler.management.run_forecast import runs_until
from wheel_sched_apscheduler.management.running import last_runs, running_page
from wheel_sched_apscheduler.management.searching import JobSearch, search_jobs

_FOLDER = "wheel_sched_apscheduler"
_RUNS = 50  # a page shows at most this many runs of a job
_MARKS = 300  # a strip has at most this many marks
_DAY_MS = 86_400_000
_LABELS = {1: ("now", "+6h", "+12h", "+18h", "+24h"), 7: ("now", *(f"+{day}d" for day in range(1, 8)))}

_with_jobs = page_with(opened_of, f"{_FOLDER}/absent.html")


def search_of(request: Request) -> JobSearch:
    """The search in the query of a request: state, text, tag, id.

    Raises:
        Rejected: there is no such state.
    """
    asked = request.query_params
    state = asked.get("state") or "scheduled"
    if state not in JOB_STATES:
        raise Rejected(f"expected state to be one of {', '.join(JOB_STATES)}, got: {state[:40]!r}")
    return JobSearch(state, asked.get("text", "").strip(), asked.get("tag", "").strip(), asked.get("id", ""))


@_with_jobs
def jobs(dashboard: Dashboard, request: Request, opened: OpenedJobs) -> Response:
    """The jobs in a state, or the runs under way."""
    search, cursor, limit = search_of(request), cursor_of(request), limit_of(request)
    pairs = {"state": search.state, "text": search.text, "tag": search.tag, "id": search.job_id}
    is_running = search.state == "in_flight" and not (search.text or search.tag or search.job_id)
    page = None if is_running else search_jobs(opened.store, search, cursor, limit)
    running = running_page(opened.store, cursor, limit) if is_running else None
    found = [] if page is None else page.jobs
    values = {
        "search": search,
        "states": JOB_STATES,
        "counts": opened.counts(),
        "jobs": [(job, answers.next_ms(job.entry), answers.what_to_do(job.entry)) for job in found],
        "running": None if running is None else running.runs,
        "cursor": page.cursor if page is not None else running.cursor if running is not None else None,
        "pairs": {**pairs, "limit": request.query_params.get("limit")},
        "back": _back(pairs),
        "lines": "\n".join(job.entry.id for job in found if job.entry.id.isprintable()),
        "now_ms": opened.store.store.now_ms(),
    }
    return dashboard.page(request, f"{_FOLDER}/jobs.html", values)


@_with_jobs
def job(dashboard: Dashboard, request: Request, opened: OpenedJobs) -> Response:
    """Everything about one job."""
    found = one_job(opened, request.path_params["id"])
    show_payloads = dashboard.config.show_payloads
    fields = answers.detailed_as_dict(found, show_payloads)
    payload = {name: fields[name] for name in ("args", "kwargs", "metadata")} if show_payloads else None
    runs = found.history[::-1]
    values = {
        "job": found.entry,
        "fields": fields,
        "now_ms": found.now_ms,
        "strips": [_strip(found, days) for days in (1, 7)] if found.entry.next_run_time is not None else [],
        "lateness": [max(0, run.lateness_ms) / 1000 for run in runs],
        "took": [answers.took_ms(run) / 1000 for run in runs],
        "payload": None if payload is None else shown_lines(as_json(payload), 20_000),
    }
    return dashboard.page(request, f"{_FOLDER}/job.html", values)


@_with_jobs
def history(dashboard: Dashboard, request: Request, opened: OpenedJobs) -> Response:
    """How the last runs ended, of all jobs or of one."""
    job_id = request.query_params.get("job") or None
    found = last_runs(opened.store, limit_of(request), job_id)
    values = {
        "runs": [answers.run_as_dict(run) for run in found.records],
        "complete": found.complete,
        "job_id": job_id or "",
        "now_ms": opened.store.store.now_ms(),
    }
    return dashboard.page(request, f"{_FOLDER}/history.html", values)


def one_job(opened: OpenedJobs, job_id: str) -> DetailedJob:
    """One job with its runs.

    Raises:
        NotFound: there is no such job.
    """
    try:
        return detailed_job(opened.store, job_id, _RUNS)
    except NotDone as error:
        raise NotFound(f"there is no job {job_id[:200]!r}: it has run for the last time, or was deleted") from error


def _strip(found: DetailedJob, days: int) -> tuple[str, Any]:
    """The heading and the picture of the runs of the next days."""
    until_ms = found.now_ms + days * _DAY_MS
    forecast = runs_until(found.trigger, found.entry.next_run_time, until_ms, _MARKS)
    count = len(forecast.times_ms)
    heading = f"{count:,}{' or more' if forecast.more else ''} run{'' if count == 1 else 's'}"
    heading += f" in the next {'24 hours' if days == 1 else '7 days'}"
    return heading, strip(forecast.times_ms, found.now_ms, until_ms, _LABELS[days], heading)


def _back(pairs: dict[str, str]) -> str:
    return f"/jobs{query(pairs)}"
