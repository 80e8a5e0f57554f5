"""The background work of parts is started in a thread, started again after an error, and closed in reverse order."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardPart, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import open_store


class Opened:
    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self.closed = name, closed

    def close(self) -> None:
        self.closed.append(self.name)


def test_a_part_that_cannot_start_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are shown while a part cannot start. At the end, the part that was started last is closed first."""
    monkeypatch.setattr("wheel_sched.dashboard.context.START_AGAIN_S", 0.01)
    tried, may_start, started = threading.Event(), threading.Event(), threading.Event()
    closed: list[str] = []

    def start(dashboard: Any) -> None:
        tried.set()
        if not may_start.is_set():
            raise StoreUnavailable("away")
        dashboard.kept("second", lambda here: Opened(f"after {here.opened('one').name}", closed))
        started.set()

    part = DashboardPart("one", open=lambda _: Opened("first", closed), started=start)
    with open_store("memory:") as store:
        app = DashboardApp(store, load_settings({}, env={}), everyone("read"), parts=(CORE, part))
        with TestClient(app, base_url="http://localhost") as client:
            assert tried.wait(20)
            assert client.get("/").status_code == 200
            may_start.set()
            assert started.wait(20)
        assert closed == ["after first", "first"]


def test_a_part_that_never_starts_does_not_hold_the_end() -> None:
    def start(_: Any) -> None:
        raise OSError("no")

    with open_store("memory:") as store:
        part = DashboardPart("one", started=start)
        app = DashboardApp(store, load_settings({}, env={}), everyone("read"), parts=(CORE, part))
        with TestClient(app, base_url="http://localhost"):
            pass
    assert not [one for one in threading.enumerate() if one.name == "dashboard"]
