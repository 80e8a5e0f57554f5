"""`PART`: what the Celery integration adds to the dashboard."""

from __future__ import annotations

from pathlib import Path

from wheel_sched.dashboard import Ailment, Dashboard, DashboardPage, DashboardPart, Panel
from wheel_sched.management.overdue import NOTICED_MS, overdue
from wheel_sched.management.wording import amount, relative
from wheel_sched.store import Members
from wheel_sched_celery.dashboard import pages
from wheel_sched_celery.dashboard.calls import CALLS
from wheel_sched_celery.dashboard.opening import NAME, OpenedTasks, TasksAbsent, opened_of
from wheel_sched_celery.dashboard.task_actions import ACTIONS


def panel(dashboard: Dashboard) -> Panel | None:
    """Tasks by state, the next one, and whether workers release them; None when nothing is held."""
    try:
        tasks = opened_of(dashboard).tasks
    except TasksAbsent:
        return None
    counts = tasks.counts()
    now_ms, head_ms = counts.now_us // 1000, counts.due_head_ms
    workers = [one for one in Members(tasks.store).live() if one.member.kind == "celery-worker"]
    lines = [("waiting", f"{counts.total('due'):,}", "/tasks")]
    lines.append(("next due", "nothing waits" if head_ms is None else relative(head_ms, now_ms), "/tasks"))
    lines += [
        (label, f"{counts.total(state):,}", f"/tasks?state={state}")
        for state, label in (("leased", "on the way"), ("held", "held"), ("dead", "given up"))
        if counts.total(state)
    ]
    lines.append(("workers", f"{len(workers):,} live", "/members"))
    ailments = []
    if head_ms is not None and now_ms - head_ms >= NOTICED_MS:
        late = overdue(tasks.store)
        if late.late_ms >= NOTICED_MS:
            lines.append(("overdue", late.words, "/tasks"))
            releasing = any(one.member.releases for one in workers)
            fix = "see the logs of the workers" if releasing else "start a Celery worker with dispatch=True"
            ailments.append(Ailment(f"Celery: {late.words}", fix, "problem"))
    if counts.total("dead"):
        what = f"{amount(counts.total('dead'), 'Celery task')} could not be sent to the broker"
        ailments.append(Ailment(what, "see Tasks, given up: each says why; `Run now` sends it again"))
    return Panel("Celery tasks", tuple(lines), tuple(ailments))


PART = DashboardPart(
    name=NAME,
    pages=(DashboardPage("/tasks", pages.tasks, "Tasks", live=True), DashboardPage("/tasks/{id:path}", pages.task)),
    calls=CALLS,
    actions=ACTIONS,
    templates=Path(__file__).parent / "templates",
    open=OpenedTasks,
    panels=(panel,),
)
