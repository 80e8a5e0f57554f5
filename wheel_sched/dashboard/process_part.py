"""The dashboard's page about the process that serves it: the purgatories and timers of this process."""

from __future__ import annotations

import os
import platform
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.charts import lateness_rows
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import ApiCall, DashboardPage, DashboardPart
from wheel_sched.dashboard.schemas import INTEGER, INTEGER_OR_NONE, SWITCH, TEXT, array, mapping, record
from wheel_sched.management.process import ShownPurgatory, shown_purgatories, shown_timers

_LABELS = {
    "satisfied": "by a try",
    "forced": "by force",
    "expired": "by the timer",
    "cancelled": "cancelled",
    "failed": "failed calls",
}


def _ends(one: ShownPurgatory) -> list[tuple[str, int]]:
    """How many operations ended in which way: a label and a count for each bar of the chart."""
    return [(label, one.numbers[name] or 0) for name, label in _LABELS.items() if name in one.numbers]


def _show(dashboard: Dashboard, request: Request) -> Response:
    config = dashboard.config
    values = {
        "pid": os.getpid(),
        "host": platform.node(),
        "purgatories": [
            (one, _ends(one) if one.lateness else [], lateness_rows(one.lateness))
            for one in shown_purgatories(config.purgatories)
        ],
        "timers": shown_timers(config.timers),
    }
    return dashboard.page(request, "process.html", values)


def _answer(dashboard: Dashboard, request: Request) -> Any:
    config = dashboard.config
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "purgatories": [one.as_dict() for one in shown_purgatories(config.purgatories)],
        "timers": [one.as_dict() for one in shown_timers(config.timers)],
    }


_PURGATORY = record(
    name=TEXT,
    kind=TEXT,
    numbers=mapping(INTEGER_OR_NONE),
    lateness=array(record(up_to_ms=INTEGER_OR_NONE, count=INTEGER)),
    error=TEXT,
)
_TIMER = record(
    name=TEXT, kind=TEXT, numbers=mapping(INTEGER_OR_NONE), levels=array(INTEGER), closed=SWITCH, error=TEXT
)

PROCESS = DashboardPart(
    name="process",
    place=85,
    pages=(DashboardPage("/timers", _show, "Timers", live=True),),
    calls=(
        ApiCall(
            "/process",
            _answer,
            "The purgatories and timers of the process that serves the dashboard",
            record(pid=INTEGER, host=TEXT, purgatories=array(_PURGATORY), timers=array(_TIMER)),
        ),
    ),
)
