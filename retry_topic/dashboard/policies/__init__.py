"""Policies in the dashboard: explained in words, simulated, and compared with the recorded attempts."""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.dashboard.policies import all_policies, one_policy, over_history
from wheel_sched.dashboard import Action, ApiCall, Dashboard, DashboardPage, Panel

PAGES: tuple[DashboardPage, ...] = (*all_policies.PAGES, *over_history.PAGES, *one_policy.PAGES)
CALLS: tuple[ApiCall, ...] = (*all_policies.CALLS, *over_history.CALLS, *one_policy.CALLS)
ACTIONS: tuple[Action, ...] = ()
PANELS: tuple[Callable[[Dashboard], Panel | None], ...] = ()
