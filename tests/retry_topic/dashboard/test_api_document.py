"""The OpenAPI document holds for the calls of retry topics: each is made, and answers and refuses as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.json_schema import validate
from tests.retry_topic.dashboard.inbox_site import InboxSite
from wheel_sched.store import Item, open_store

POLICY = "[default]\nmax_attempts = 3\n"
SIMULATED = {"failure_rate": "0.5", "per_second": "2", "seconds": "10"}


@pytest.fixture
def site() -> Iterator[InboxSite]:
    with open_store("memory:") as store:
        made = InboxSite(store)
        yield made
        made.close()


def check(document: dict[str, Any], path: str, status: str, answer: Any) -> None:
    schema = document["paths"][path]["get"]["responses"][status]["content"]["application/json"]["schema"]
    validate(answer, {**schema, "components": document["components"]})


def test_every_reading_call_answers_and_refuses_as_the_document_says(site: InboxSite) -> None:
    """No call of the document is left out. A call that names a thing is also made for one that is not there."""
    (letter, *_) = site.bury(3)
    site.store.schedule([Item("w.1", site.store.now_ms() + 3_600_000, b"no message", "orders")])
    operation = site.start_replay(topic="orders", group="aaaa")
    document = site.client.get("/api/v1/openapi.json").json()
    names = {"topic": "orders", "id": letter, "group": "aaaa"}
    queries = {"/policies/{topic}/simulate": SIMULATED, "/policies/what-if": {"policy": POLICY}}
    for path, operations in document["paths"].items():
        if "get" not in operations:
            continue
        found = {**names, "id": operation} if path.startswith("/operations") else names
        answer = site.client.get("/api/v1" + path.format(**found), params=queries.get(path))
        assert answer.status_code == 200, (path, answer.text)
        check(document, path, "200", answer.json())
        if "{id}" in path or "{group}" in path:
            missing = site.client.get("/api/v1" + re.sub(r"\{\w+\}", "nothing", path))
            assert missing.status_code == 404, path
            check(document, path, "default", missing.json())


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/items", "/items?search=topik:orders"),
        ("/dead-letters", "/dead-letters?sort=nonsense"),
        ("/policies/what-if", "/policies/what-if"),
        ("/policies/{topic}/explain", "/policies/orders/explain?attempt=x"),
        ("/policies/{topic}/simulate", "/policies/orders/simulate?failure_rate=7"),
    ],
)
def test_a_wrong_argument_is_refused_as_the_document_says(site: InboxSite, path: str, address: str) -> None:
    document = site.client.get("/api/v1/openapi.json").json()
    answer = site.client.get(f"/api/v1{address}")
    assert answer.status_code == 400, answer.text
    check(document, path, "default", answer.json())
