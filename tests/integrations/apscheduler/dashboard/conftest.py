"""Fixtures: a dashboard with the APScheduler part, over a store in memory or on a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_apscheduler.dashboard.part import PART

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


class Browser:
    """A visitor of a dashboard: pages, calls of the API, and actions.

    Args:
        app: the dashboard.
        base: where it is mounted. Defaults to "".
    """

    def __init__(self, app: Any, base: str = "") -> None:
        self.app = app
        self._base = base
        self._client = TestClient(app, base_url="http://localhost", raise_server_exceptions=True)
        self._keys = 0

    def page(self, path: str, status: int = 200, **query: Any) -> str:
        """The HTML of a page."""
        answer = self._client.get(self._base + path, params=query)
        assert answer.status_code == status, answer.text
        return answer.text

    def call(self, path: str, status: int = 200, **query: Any) -> Any:
        """The answer of an API call. A good answer is held against its schema."""
        answer = self._client.get(f"{self._base}/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text
        found = answer.json()
        if status == 200:
            calls = {call.path: call for call in PART.calls}
            known = calls.get(path) or calls["/jobs/{id:path}"]
            jsonschema.validate(found, known.schema)
        return found

    def preview(self, action: str, status: int = 200, **arguments: Any) -> Any:
        """What an action would do."""
        return self._post(f"/actions/{action}/preview", status, arguments)

    def execute(self, action: str, token: str, status: int = 200, **arguments: Any) -> Any:
        """Execute what was previewed."""
        return self._post(f"/actions/{action}", status, {**arguments, "token": token})

    def act(self, action: str, **arguments: Any) -> Any:
        """Preview an action and execute it. As much is done as the preview said."""
        found = self.preview(action, **arguments)
        done = self.execute(action, found["token"], **arguments)
        assert done["done"] == found["count"]
        return done

    def _post(self, path: str, status: int, body: Any) -> Any:
        self._keys += 1
        token = self._client.get(f"{self._base}/api/v1/session").json()["csrf_token"]
        headers = {"x-csrf-token": token, "idempotency-key": f"key-number-{self._keys}"}
        answer = self._client.post(f"{self._base}/api/v1{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()


Opener = Callable[..., Browser]


@pytest.fixture
def open_browser() -> Iterator[Opener]:
    """Opens dashboards: `open_browser(store, settings, right=..., show_payloads=...)`."""
    with ExitStack() as stack:

        def opened(store: DelayStore, settings: dict[str, Any], **config: Any) -> Browser:
            given = DashboardConfig(**{"right": "delete", **config})
            loaded = load_settings(settings, env={})
            app = DashboardApp(store, loaded, everyone(given.right), config=given, parts=(CORE, PART))
            stack.callback(app.dashboard.close)
            return Browser(app)

        yield opened


@pytest.fixture
def browser(open_browser: Opener, memory: DelayStore) -> Browser:
    """A visitor who may do everything, and sees no payloads."""
    return open_browser(memory, {"store": "memory:"})


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition holds, at most a minute. Other processes and threads make it true."""

    def wait_until(condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end_s
            time.sleep(0.05)  # nothing announces it to this process

    return wait_until
