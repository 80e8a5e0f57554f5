"""Fixtures: a dashboard with the APScheduler part, over a store in memory or on a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_apscheduler.dashboard.part import PART

from tests.dashboard.closing import dashboards_end as dashboards_end
from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import DelayStore, open_store

FAR = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)


def do_nothing(*_: Any, **__: Any) -> None:
    """A job function that does nothing."""


@pytest.fixture
def job() -> Callable[..., None]:
    """A job function that does nothing."""
    return do_nothing


@pytest.fixture
def far() -> datetime:
    """A run time long after the test."""
    return FAR


@pytest.fixture
def memory() -> Iterator[DelayStore]:
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def jobstore(memory: DelayStore) -> RedisWheelJobStore:
    """The jobstore in the dashboard's own store."""
    return RedisWheelJobStore(store=memory)


@pytest.fixture
def producer(jobstore: RedisWheelJobStore) -> Producer:
    return Producer(jobstore, timezone="UTC")


Opener = Callable[..., Visiting]


@pytest.fixture
def open_browser() -> Iterator[Opener]:
    """Opens dashboards: `open_browser(store, settings, right=..., show_payloads=...)`."""
    with ExitStack() as stack:

        def opened(store: DelayStore, settings: dict[str, Any], **config: Any) -> Visiting:
            given = DashboardConfig(**{"right": "delete", **config})
            loaded = load_settings(settings, env={})
            app = DashboardApp(store, loaded, everyone(given.right), config=given, parts=(CORE, PART))
            stack.callback(app.dashboard.close)
            return Visiting(app, PART)

        yield opened


@pytest.fixture
def browser(open_browser: Opener, memory: DelayStore) -> Visiting:
    """A visitor who may do everything, and sees no payloads."""
    return open_browser(memory, {"store": "memory:"})


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition holds, at most a minute. Other processes and threads make it true."""

    def wait_until(condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end_s
            time.sleep(0.05)  # the other processes and threads send no signal

    return wait_until
