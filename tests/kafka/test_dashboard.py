"""The dashboard over a group whose topics lie on a Kafka cluster: every page opens, and its actions work."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from retry_topic import Consumer, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.dashboard.part import PART
from retry_topic.management.settings import RetrySettings
from retry_topic.policy import Fixed
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.store import DelayStore

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

_LINK = re.compile(r'href="(/[^"#]*)"')


class Site:
    """A dashboard whose settings name a Kafka cluster, and an HTTP client of the dashboard."""

    def __init__(self, store: DelayStore, bootstrap: str) -> None:
        loaded = load_settings({"kafka": bootstrap}, env={}, kinds=(RetrySettings,))
        self.app = DashboardApp(
            store,
            loaded,
            everyone("delete"),
            config=DashboardConfig(right="delete", show_payloads=True),
            parts=(CORE, PART),
        )
        self.client = TestClient(self.app, base_url="http://localhost")

    def page(self, path: str) -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.text

    def do(self, action: str, **arguments: str | list[str]) -> dict[str, Any]:
        """Preview an action and execute it."""
        csrf = self.client.get("/api/v1/session").json()["csrf_token"]
        headers = {"X-CSRF-Token": csrf, "Idempotency-Key": uuid.uuid4().hex}
        preview = self.client.post(f"/api/v1/actions/{action}/preview", json=arguments, headers=headers)
        assert preview.status_code == 200, preview.text
        body = {**arguments, "token": preview.json()["token"]}
        answer = self.client.post(f"/api/v1/actions/{action}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def every_page(self, topic: str) -> set[str]:
        """Open all pages that links lead to, at most 60. Returns their paths.

        The cluster also has topics of other tests. Of the topic pages, only that of `topic` is opened.
        """
        seen: set[str] = set()
        left = ["/"]
        while left and len(seen) < 60:
            path = left.pop(0)
            if path.startswith("/topics/") and path != f"/topics/{topic}":
                continue
            if path not in seen and not path.startswith(("/assets/", "/api/")):
                seen.add(path)
                left += [urlsplit(link).path for link in _LINK.findall(self.page(path))]
        return seen


def test_the_dashboard_of_a_group_on_kafka(kafka: TemporaryKafka, name: str, until: Until) -> None:
    """A message that waits and one that is dead are found with their payloads, and the dead one can be replayed."""

    healed: list[bool] = []
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if not healed:
            raise ValueError("no answer from the bank")
        handled.append(message.value)

    policy = RetryPolicy(delay=Fixed(base_ms=50), max_attempts=2)
    KafkaBroker(kafka.bootstrap).create_topic(name)
    with (
        connect("memory:", broker=KafkaBroker(kafka.bootstrap), namespace=name) as connection,
        RetryService(connection, name, policy),
        Consumer(connection, name, handle, group=name),
    ):
        assert not any(connection.broker.publish([Message(name, b"secret payload", b"k")]))
        until(lambda: connection.store.counts().total("dead") == 1)
        site = Site(connection.store, kafka.bootstrap)
        pages = site.every_page(name)
        assert {"/topics", f"/topics/{name}", "/items", "/dead-letters", "/members"} <= pages
        (letter,) = [path for path in pages if path.startswith("/items/")]
        assert "secret payload" in site.page(letter)
        assert "no answer from the bank" in site.page(letter)
        assert any(path.startswith(f"/dead-letters/{name}/") for path in pages)
        healed.append(True)
        site.do("replay", ids=[letter.removeprefix("/items/")])
        until(lambda: handled == [b"secret payload"])
        site.client.close()
        site.app.close()
