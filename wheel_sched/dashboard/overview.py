"""The overview page: counts, rates, lateness, what is due next, and problems with their fix."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.charts import lateness_rows
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import Panel
from wheel_sched.dashboard.sampling import EVENTS, Sample
from wheel_sched.dashboard.schemas import INTEGER, INTEGER_OR_NONE, TEXT, array, mapping, nullable, record
from wheel_sched.errors import WheelSchedError
from wheel_sched.management.doctor.namespace import CLOCK_FIX, FROZEN_FIX
from wheel_sched.management.members import counted, lateness_of
from wheel_sched.management.overdue import is_noticed, overdue, overdue_problem
from wheel_sched.management.problem import Problem
from wheel_sched.management.statistics import counts_as_dict
from wheel_sched.management.wording import amount, span
from wheel_sched.store import Members
from wheel_sched.store.core.items import STATES

_SHOWN_TOPICS = 50
_RATES = ("accepted", "completed", "died", "lapsed")
_BARS = 60

SCHEMA = record(
    namespace={"type": "string"},
    shards=INTEGER,
    now_ms=INTEGER,
    due=INTEGER,
    leased=INTEGER,
    held=INTEGER,
    dead=INTEGER,
    next_due_ms=INTEGER_OR_NONE,
    overdue_ms=INTEGER,
    ever=mapping(INTEGER),
    lateness=array(record(up_to_ms=INTEGER_OR_NONE, count=INTEGER)),
    topics=mapping(record(due=INTEGER, leased=INTEGER, held=INTEGER, dead=INTEGER, paused_since_ms=INTEGER_OR_NONE)),
    rates=mapping(nullable({"type": "number"})),
    problems=array(record(what=TEXT, fix=TEXT, level={"enum": ["warn", "problem"]})),
)


def problems_of(dashboard: Dashboard, sample: Sample) -> list[Problem]:
    """The problems that need a person, as the store's numbers show them. The parts add their own problems."""
    counts, found = sample.counts, []
    now_ms = counts.now_us // 1000
    if counts.frozen:
        found.append(Problem(f"the namespace is frozen: {counts.frozen}", FROZEN_FIX, "problem"))
    if counts.due_head_ms is not None and is_noticed(now_ms - counts.due_head_ms):
        topics = sorted(topic for state, topic in counts.now if state == "due")
        late = overdue_problem(overdue(dashboard.store), topics, Members(dashboard.store).live(), now_ms)
        found += [Problem(*late, "problem")] if late else []
    found += [
        Problem(
            f"topic {topic or '(none)'} has been paused for {span(max(0, now_ms - since_ms))}",
            "resume it when it may go on",
        )
        for topic, since_ms in sorted(counts.paused.items())
    ]
    if counts.jumps:
        found.append(Problem(f"the server's clock jumped {amount(counts.jumps, 'time')}", CLOCK_FIX))
    return found


def panels_of(dashboard: Dashboard) -> list[Panel]:
    """The panels of the parts. If a part fails, its panel shows the error; the other panels are not affected."""
    panels = []
    for part in dashboard.parts:
        for panel in part.panels:
            try:
                found = panel(dashboard)
            except (WheelSchedError, OSError) as error:
                found = Panel(part.name, (), (Problem(f"{part.name} cannot be read: {error}", "see the log"),))
            if found is not None:
                panels.append(found)
    return panels


def show(dashboard: Dashboard, request: Request) -> Response:
    """The overview as a page."""
    sample = dashboard.sampler.now()
    counts = sample.counts
    panels, live = panels_of(dashboard), Members(dashboard.store).live()
    topics = sorted(counts.topics, key=lambda topic: -sum(counts.now.get((state, topic), 0) for state in STATES))
    values = {
        "counts": counts,
        "states": [(state, counts.total(state)) for state in STATES],
        "rates": [(event, dashboard.sampler.rate(event), dashboard.sampler.series(event)[-_BARS:]) for event in _RATES],
        "topics": [
            (topic, [counts.now.get((state, topic), 0) for state in STATES], topic in counts.paused)
            for topic in topics[:_SHOWN_TOPICS]
        ],
        "more_topics": len(topics) - _SHOWN_TOPICS,
        "now_ms": counts.now_us // 1000,
        "live": counted(live),
        "lateness": lateness_rows(lateness_of(live)),
        "problems": [*problems_of(dashboard, sample), *(one for panel in panels for one in panel.problems)],
        "panels": [panel for panel in panels if panel.lines or panel.chart],
    }
    return dashboard.page(request, "overview.html", values)


def answer(dashboard: Dashboard, request: Request) -> Any:
    """The overview as data for the JSON API."""
    sample = dashboard.sampler.now()
    found = [*problems_of(dashboard, sample), *(one for panel in panels_of(dashboard) for one in panel.problems)]
    return {
        **counts_as_dict(sample.counts, dashboard.store.shards, dashboard.store.namespace),
        "rates": {event: dashboard.sampler.rate(event) for event in EVENTS},
        "lateness": [
            {"up_to_ms": bound_ms, "count": count} for bound_ms, count in lateness_of(Members(dashboard.store).live())
        ],
        "problems": [one._asdict() for one in found],
    }
