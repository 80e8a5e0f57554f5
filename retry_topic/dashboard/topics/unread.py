"""Finds retry topics whose records no retry service takes in, and says which command starts the service.

The result is read from the broker at most every five seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from retry_topic.dashboard.opening import connection_of, settings_of
from retry_topic.management.untaken import missing_services
from wheel_sched.dashboard import Dashboard, Panel, Problem
from wheel_sched.store import Members

_FRESH_S = 5.0


def unread(dashboard: Dashboard) -> Sequence[Problem]:
    """Retry topics whose records no retry service takes in, and groups with live consumers and no retry service."""
    return dashboard.recent.get("untaken retries", _FRESH_S, lambda: _look(dashboard))


def _look(dashboard: Dashboard) -> list[Problem]:
    connection = connection_of(dashboard)
    members, now_ms = Members(connection.store).live(), connection.store.now_ms()
    found = missing_services(connection.broker, settings_of(dashboard).retry_topic, members, now_ms)
    return found.problems(now_ms)


def panel(dashboard: Dashboard) -> Panel | None:
    """The problems with retries, for the overview; None when there are none."""
    found = unread(dashboard)
    return Panel("Retries", (), found) if found else None
