"""A dashboard with the pages of retry topics. It stores dead letters and sends requests, for tests."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

from starlette.testclient import TestClient

from retry_topic.dashboard.part import PART
from retry_topic.management.settings import RetrySettings
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from tests.json_schema import validate
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import DelayStore, Item

CALLS = {call.path: call for call in PART.calls}


class InboxSite:
    """A dashboard, and an HTTP client that sends requests to it.

    Args:
        store: an open store.
        right: the right of every visitor. Defaults to "delete".
        config: further arguments of `DashboardConfig`.
    """

    def __init__(self, store: DelayStore, right: Any = "delete", **config: Any) -> None:
        self.store = store
        loaded = load_settings({}, env={}, kinds=(RetrySettings,))
        self.app = DashboardApp(
            store,
            loaded,
            everyone(right, "ada"),
            config=DashboardConfig(right="delete", **config),
            parts=(CORE, PART),
        )
        self.client = TestClient(self.app, base_url="http://localhost")

    def bury(
        self,
        count: int = 1,
        name: str = "a",
        *,
        topic: str = "orders",
        print_: str = "aaaa",
        error: str = "text of {}",
        payload: bytes = b"secret payload",
        traceback: str | None = None,
        ago_ms: int = 10,
    ) -> list[str]:
        """Store dead letters as the intake does. Returns their ids."""
        letters = []
        for number in range(count):
            state = RetryState(
                id=f"{name}{number}",
                attempt=3,
                original_topic=topic,
                original_offset=f"{number}",
                consumer_group="billing",
                error_class="builtins.ValueError",
                error_message=error.format(number),
                error_fingerprint=print_ or None,
                traceback=traceback,
            )
            body = encode_body(Message("orders", payload, None, write((), state)))
            refs = (f"fp:{print_}",) if print_ else ()
            item = Item(f"{name}{number}.3", self.store.now_ms() - ago_ms, body, topic, refs)
            letters.append((item, "max-attempts: builtins.ValueError"))
        assert self.store.bury(letters) == count
        return [item.id for item, _ in letters]

    def page(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def call(self, path: str, pattern: str | None = None) -> Any:
        """Make a call of the API, and check the answer against the call's schema."""
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        validate(found, CALLS[pattern or path.partition("?")[0]].schema)
        return found

    def post(self, call: str, body: dict[str, Any], key: str | None = None) -> Any:
        csrf = self.client.get("/api/v1/session").json()["csrf_token"]
        headers = {"X-CSRF-Token": csrf, "Idempotency-Key": key or uuid.uuid4().hex}
        return self.client.post(f"/api/v1/actions/{call}", json=body, headers=headers)

    def preview(self, action: str, **arguments: str) -> dict[str, Any]:
        answer = self.post(f"{action}/preview", arguments)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def do(self, action: str, **arguments: str) -> dict[str, Any]:
        """Preview an action and execute it."""
        token = self.preview(action, **arguments)["token"]
        answer = self.post(action, {**arguments, "token": token})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def refused(self, call: str, status: int, **arguments: str) -> str:
        """Send a call that must be refused with this status. Returns the error's message."""
        answer = self.post(call, arguments)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"]["message"])

    def until(self, operation_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `holds` is true for the operation. Returns the operation as the API shows it."""
        until_s = time.monotonic() + 40
        while time.monotonic() < until_s:
            found: dict[str, Any] = self.call(f"/operations/{operation_id}", "/operations/{id}")
            if holds(found):
                return found
            threading.Event().wait(0.01)  # the runner's thread works meanwhile
        raise AssertionError(found)

    def start_replay(self, **arguments: str) -> str:
        """Prepare a replay, and wait until its letters are counted. Returns the id of the operation."""
        operation_id = self.do("start-replay", **arguments)["link"].rpartition("/")[2]
        self.until(operation_id, lambda found: found["state"] != "counting")
        return str(operation_id)

    def close(self) -> None:
        self.app.dashboard.close()


def words(html: str) -> str:
    """The text of a page as a reader sees it."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())
