"""`PART`: what the APScheduler integration adds to the dashboard."""

from __future__ import annotations

from pathlib import Path

from wheel_sched.dashboard import Dashboard, DashboardPage, DashboardPart, Panel, Problem
from wheel_sched.management.wording import amount, relative
from wheel_sched_apscheduler.dashboard import pages
from wheel_sched_apscheduler.dashboard.answers import next_ms
from wheel_sched_apscheduler.dashboard.calls import CALLS
from wheel_sched_apscheduler.dashboard.job_actions import ACTIONS
from wheel_sched_apscheduler.dashboard.opening import NAME, JobsAbsent, OpenedJobs, opened_of
from wheel_sched_apscheduler.management.searching import JobSearch, search_jobs


def panel(dashboard: Dashboard) -> Panel | None:
    """Jobs by state, the next job, and whether jobs are in quarantine; None when there is no jobstore."""
    opened = opened_of(dashboard)
    try:
        counts = opened.counts()
    except JobsAbsent:
        return None
    more = "" if counts.exact else " or more"
    lines = [
        ("scheduled", f"{counts.scheduled:,}", "/jobs"),
        ("in flight", f"{counts.in_flight:,}", "/jobs?state=in_flight"),
        ("paused", f"{counts.paused:,}", "/jobs?state=paused"),
        ("quarantined", f"{counts.quarantined:,}{more}", "/jobs?state=quarantined"),
    ]
    page = search_jobs(opened.store, JobSearch(), None, 1)
    for job in page.jobs:
        at_ms = next_ms(job.entry)
        if at_ms is not None:
            lines.append(("next job", f"{job.entry.id[:80]} {relative(at_ms, opened.store.store.now_ms())}", "/jobs"))
    problems = []
    if counts.quarantined:
        what = f"{amount(counts.quarantined, 'job')}{more} of APScheduler in quarantine: no process could run them"
        problems.append(Problem(what, "see Jobs, quarantined: each says why and what to do", "problem"))
    return Panel("APScheduler jobs", tuple(lines), tuple(problems))


PART = DashboardPart(
    name=NAME,
    pages=(
        DashboardPage("/jobs", pages.jobs, "Jobs", live=True),
        DashboardPage("/jobs-history", pages.history, "Job runs"),
        DashboardPage("/jobs/{id:path}", pages.job),
    ),
    calls=CALLS,
    actions=ACTIONS,
    templates=Path(__file__).parent / "templates",
    open=OpenedJobs,
    panels=(panel,),
)
