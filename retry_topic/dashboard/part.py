"""`PART`: what retry topics add to the dashboard."""

from __future__ import annotations

from pathlib import Path

from retry_topic.dashboard import items, policies, topics
from retry_topic.dashboard.opening import PART as NAME
from retry_topic.dashboard.opening import open_connection
from wheel_sched.dashboard import DashboardPart

PART = DashboardPart(
    name=NAME,
    pages=(
        *topics.PAGES,
        *items.PAGES,
        *policies.PAGES,
    ),
    calls=(
        *topics.CALLS,
        *items.CALLS,
        *policies.CALLS,
    ),
    actions=(
        *topics.ACTIONS,
        *items.ACTIONS,
        *policies.ACTIONS,
    ),
    templates=Path(__file__).parent / "templates",
    open=open_connection,
    panels=(
        *topics.PANELS,
        *items.PANELS,
        *policies.PANELS,
    ),
)
