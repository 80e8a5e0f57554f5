"""A fixture that closes the dashboards of a test. Otherwise their threads would run the operations of later tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wheel_sched.dashboard import DashboardApp


@pytest.fixture(autouse=True)
def dashboards_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close each dashboard that the test has made, as a server does at its end."""
    opened: list[DashboardApp] = []
    begin = DashboardApp.__init__

    def recorded(app: DashboardApp, *arguments: Any, **options: Any) -> None:
        begin(app, *arguments, **options)
        opened.append(app)

    monkeypatch.setattr(DashboardApp, "__init__", recorded)
    yield
    for app in opened:
        app.close()
