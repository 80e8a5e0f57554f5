"""`PART` has what retry topics add to the dashboard."""

from __future__ import annotations

from pathlib import Path

from retry_topic.dashboard import dead_letters, items, policies, topics
from retry_topic.dashboard.opening import PART as NAME
from retry_topic.dashboard.opening import open_connection
from wheel_sched.dashboard import DashboardPart

PART = DashboardPart(
    name=NAME,
    place=10,
    pages=(
        *topics.PAGES,
        *items.PAGES,
        *dead_letters.PAGES,
        *policies.PAGES,
    ),
    calls=(
        *topics.CALLS,
        *items.CALLS,
        *dead_letters.CALLS,
        *policies.CALLS,
    ),
    actions=(
        *topics.ACTIONS,
        *items.ACTIONS,
        *dead_letters.ACTIONS,
        *policies.ACTIONS,
    ),
    templates=Path(__file__).parent / "templates",
    open=open_connection,
    started=dead_letters.start_runner,
    panels=(
        *topics.PANELS,
        *items.PANELS,
        *dead_letters.PANELS,
        *policies.PANELS,
    ),
)
