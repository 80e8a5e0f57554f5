"""Messages in the dashboard."""

from __future__ import annotations

from collections.abc import Callable

from wheel_sched.dashboard import Action, ApiCall, Dashboard, Page, Panel

PAGES: tuple[Page, ...] = ()
CALLS: tuple[ApiCall, ...] = ()
ACTIONS: tuple[Action, ...] = ()
PANELS: tuple[Callable[[Dashboard], Panel | None], ...] = ()
