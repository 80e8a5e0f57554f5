"""The dashboard: web pages that show everything that waits, and a JSON API. It is an ASGI application.

`wheel-sched dashboard` serves it alone. `dashboard(...)` makes it for another application to mount:

    from wheel_sched.dashboard import dashboard, everyone

    app.mount("/wheel", dashboard("redis://localhost:6379/0", access=everyone("read")))

Pages are rendered on the server and can be read without JavaScript. Visitors read by default; changes need the right
"operate" or "delete", a preview, and a confirmation. Installed packages add their pages as a `DashboardPart`.
"""

from __future__ import annotations

from wheel_sched.dashboard.app import DashboardApp
from wheel_sched.dashboard.context import Dashboard, DashboardConfig
from wheel_sched.dashboard.mounting import dashboard, dashboard_wsgi
from wheel_sched.dashboard.parts import (
    Action,
    ActionField,
    ActionResult,
    ApiCall,
    DashboardPage,
    DashboardPart,
    NotFound,
    Panel,
    Parameter,
    Preview,
)
from wheel_sched.dashboard.passwords import PasswordFile, password_line
from wheel_sched.dashboard.rights import Right, Visitor, everyone
from wheel_sched.management.problem import Problem

__all__ = [
    "Action",
    "ActionField",
    "ActionResult",
    "ApiCall",
    "Dashboard",
    "DashboardApp",
    "DashboardConfig",
    "DashboardPage",
    "DashboardPart",
    "NotFound",
    "Panel",
    "Parameter",
    "PasswordFile",
    "Preview",
    "Problem",
    "Right",
    "Visitor",
    "dashboard",
    "dashboard_wsgi",
    "everyone",
    "password_line",
]
