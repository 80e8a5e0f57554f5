"""`PART`: what the Celery integration adds to the dashboard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from wheel_sched.dashboard import Dashboard, DashboardPage, DashboardPart, Panel, Problem
from wheel_sched.management.overdue import is_noticed, overdue
from wheel_sched.management.wording import amount, relative
from wheel_sched.store import Members
from wheel_sched_celery.beat.entry import REF
from wheel_sched_celery.dashboard import beat_actions, beat_pages, pages
from wheel_sched_celery.dashboard.beat_answers import entries_of
from wheel_sched_celery.dashboard.calls import CALLS
from wheel_sched_celery.dashboard.opening import NAME, OpenedTasks, TasksAbsent, opened_of
from wheel_sched_celery.dashboard.task_actions import ACTIONS
from wheel_sched_celery.management.beat_findings import beat_findings, beat_state


def panel(dashboard: Dashboard) -> Panel | None:
    """Tasks by state, what is due next, and whether workers release it; None when the store has no namespace of tasks.

    What is due next, or overdue, may be an entry of the schedule.
    """
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
    problems = []
    if head_ms is not None and is_noticed(now_ms - head_ms):
        late = overdue(tasks.store)
        if is_noticed(late.late_ms):
            lines.append(("overdue", late.words, "/tasks"))
            releasing = any(one.member.releases for one in workers)
            fix = "see the logs of the workers" if releasing else "start a Celery worker with dispatch=True"
            problems.append(Problem(f"Celery: {late.words}", fix, "problem"))
    if counts.total("dead"):
        what = f"{amount(counts.total('dead'), 'Celery task')} could not be sent to the broker"
        problems.append(Problem(what, "see Tasks, given up: each says why; `Run now` sends it again"))
    return Panel("Celery tasks", tuple(lines), tuple(problems))


def beat_panel(dashboard: Dashboard) -> Panel | None:
    """Entries of the schedule, the next one, and what is wrong with them; None when there are none."""
    opened = opened_of(dashboard)
    try:
        entries = entries_of(opened)
    except TasksAbsent:
        return None
    if not entries.store.find(REF, limit=1):
        return None
    state = beat_state(entries) if opened.app is not None else replace(beat_state(entries), gone=frozenset())
    counts = state.as_dict()
    lines = [("entries", f"{counts['entries']:,}", "/beat")]
    first = state.next
    if first is not None:
        lines.append(("next", f"{first.name}, {relative(counts['next_ms'], state.now_ms)}", "/beat"))
    lines += [
        (name, f"{counts['states'][name]:,}", f"/beat?state={name}")
        for name in ("paused", "failed", "unreadable")
        if counts["states"].get(name)
    ]
    problems = [
        Problem(found.evidence, found.fix, "problem" if found.level == "problem" else "warn")
        for found in beat_findings(state)
        if found.level != "ok"
    ]
    return Panel("Celery schedule", tuple(lines), tuple(problems))


PART = DashboardPart(
    name=NAME,
    pages=(
        DashboardPage("/tasks", pages.tasks, "Tasks", live=True),
        DashboardPage("/tasks/{id:path}", pages.task),
        DashboardPage("/beat", beat_pages.schedule, "Schedule", live=True),
        DashboardPage("/beat/{name:path}", beat_pages.entry),
    ),
    calls=(*CALLS, *beat_pages.CALLS),
    actions=(*ACTIONS, *beat_actions.ACTIONS),
    templates=Path(__file__).parent / "templates",
    open=OpenedTasks,
    panels=(panel, beat_panel),
)
