"""A dashboard with the pages of retry topics, over a store in memory or on a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

from retry_topic import Connection, Message, connect
from retry_topic.dashboard.part import PART
from retry_topic.management.settings import RetrySettings
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from retry_topic.message.headers.failed_attempts import FailedAttempt, with_failed_attempt
from tests.dashboard.closing import dashboards_end as dashboards_end
from tests.json_schema import validate
from wheel_sched.config import Settings, load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, Right, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import Found, Item

HOUR = 3_600_000


class Seen:
    """A dashboard and its visitor.

    Args:
        connection: the dashboard's store and broker.
        right: what the visitor may do. Defaults to "delete".
        show_payloads: whether the dashboard shows payloads. Defaults to False.
        env: the environment of the settings. Defaults to none.
        given: whether the dashboard uses the broker of `connection`. Otherwise it opens one. Defaults to True.
    """

    def __init__(
        self,
        connection: Connection,
        right: Right = "delete",
        *,
        show_payloads: bool = False,
        env: dict[str, str] | None = None,
        given: bool = True,
    ) -> None:
        self.connection = connection
        self.store = connection.store
        config = DashboardConfig(
            right=right, show_payloads=show_payloads, extras={"broker": connection.broker} if given else {}
        )
        loaded = load_settings({}, env=env or {}, kinds=(Settings, RetrySettings))
        self.app = DashboardApp(self.store, loaded, everyone(right), config=config, parts=(CORE, PART))
        self.client = TestClient(self.app, base_url="http://localhost", raise_server_exceptions=True)
        self._keys = 0

    # What the store holds.

    def message(
        self,
        item_id: str = "m1.2",
        *,
        topic: str = "orders",
        value: bytes = b'{"id": 1}',
        key: bytes | None = b"customer-7",
        headers: tuple[tuple[str, bytes], ...] = (),
        in_ms: int = HOUR,
        state: str = "due",
        reason: str = "out of attempts",
        **fields: Any,
    ) -> str:
        """Store a message that has failed twice, in one of the states. Returns its id.

        The message is due `in_ms` from now. A dead letter died `in_ms` ago.
        """
        now_ms = self.store.now_ms()
        lines = None
        for number in (1, 2):
            at_ms = now_ms - 600_000 * (3 - number)
            error = "no answer from host a" if number == 1 else "no answer from host b"
            lines = with_failed_attempt(
                lines, FailedAttempt(number, at_ms, "web-1:7", "TimeoutError", error, 60_000, "payments@3")
            )
        known: dict[str, Any] = {
            "id": item_id.partition(".")[0],
            "attempt": 2,
            "max_attempts": 5,
            "policy": "payments@3",
            "original_topic": topic,
            "error_class": "TimeoutError",
            "error_message": "no answer from host b",
            "error_fingerprint": "3f2a00",
            "first_failed_ms": now_ms - 1_200_000,
            "last_failed_ms": now_ms - 600_000,
            "failed_attempts": lines,
            "traceback": "Traceback (most recent call last):\n  File x\nTimeoutError: no answer",
            "due_ms": now_ms + in_ms,
            "delay_ms": in_ms,
        }
        retry = RetryState(**{**known, **fields})
        body = encode_body(Message(topic, value, key, write(headers, retry)))
        if state == "dead":
            self.store.bury([(Item(item_id, now_ms - abs(in_ms), body, topic, ("fp:3f2a00",)), reason)])
            return item_id
        self.store.schedule([Item(item_id, now_ms + in_ms, body, topic)])
        if state == "held":
            self.store.hold([item_id], reason)
        return item_id

    def found(self, item_id: str = "m1.2") -> Found | None:
        return self.store.get([item_id], anywhere=True)[0]

    # What the visitor does.

    def page(self, path: str, status: int = 200, **query: str) -> str:
        answer = self.client.get(path, params=query)
        assert answer.status_code == status, answer.text[:2000]
        return answer.text

    def api(self, path: str, status: int = 200, **query: str) -> Any:
        answer = self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()

    def valid(self, template: str, path: str, **query: str) -> Any:
        """The answer of an API call, checked against the schema of the call."""
        (call,) = (call for call in PART.calls if call.path == template)
        found = self.api(path, **query)
        validate(found, dict(call.schema))
        return found

    def _csrf(self) -> dict[str, str]:
        return {"X-CSRF-Token": self.client.get("/api/v1/session").json()["csrf_token"]}

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        """Send JSON in ASCII, because only then can it contain an id that is not UTF-8."""
        headers = {**self._csrf(), "Content-Type": "application/json", **headers}
        return self.client.post(f"/api/v1/actions/{path}", content=json.dumps(body), headers=headers)

    def preview(self, action: str, status: int = 200, **arguments: Any) -> Any:
        answer = self._post(f"{action}/preview", arguments, {})
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()

    def execute(self, action: str, token: str, status: int = 200, **arguments: Any) -> Any:
        self._keys += 1
        answer = self._post(action, {**arguments, "token": token}, {"Idempotency-Key": f"test-key-{self._keys}"})
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()

    def act(self, action: str, **arguments: Any) -> Any:
        """Preview an action and execute it. Both must have the same count."""
        found = self.preview(action, **arguments)
        done = self.execute(action, found["token"], **arguments)
        assert done["done"] == found["count"], (found, done)
        return {**found, **done}

    def submit(self, action: str, fields: dict[str, Any]) -> str:
        """Send the form of a page, and then the form of its preview, as a browser does. Returns the last page."""
        csrf = self._csrf()["X-CSRF-Token"]
        answer = self.client.post(f"/actions/{action}", data={"csrf": csrf, "back": "/items", **fields})
        assert answer.status_code == 200, answer.text[:2000]
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', answer.text)
        form: dict[str, list[str]] = {}
        for name, value in hidden:
            form.setdefault(unescape(name), []).append(unescape(value))
        answer = self.client.post(f"/actions/{action}", data=form)
        assert answer.status_code == 200, answer.text[:2000]
        return answer.text

    def close(self) -> None:
        self.client.close()
        self.app.dashboard.close()


@pytest.fixture
def see() -> Iterator[Callable[..., Seen]]:
    """A function that makes a dashboard. The dashboards of one test share a store and a broker in memory."""
    with ExitStack() as opened:
        connection = opened.enter_context(connect("memory:"))

        def made(*args: Any, **kwargs: Any) -> Seen:
            one = Seen(kwargs.pop("connection", connection), *args, **kwargs)
            opened.callback(one.close)
            return one

        yield made


@pytest.fixture
def seen(see: Callable[..., Seen]) -> Seen:
    """A dashboard whose visitor may do everything, and that hides payloads."""
    return see()
