"""The calls and actions of retry topics answer and refuse as the OpenAPI document says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from retry_topic.management.dead_letter_operations import DELETE
from tests.dashboard.documented import DocumentedApi
from tests.json_schema import validate
from tests.retry_topic.dashboard.inbox_site import InboxSite
from wheel_sched.management.operations import OperationBook
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
    """The test makes every call of the document. A call that names a thing is also made for a thing that does not
    exist.
    """
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


def made_paused(site: InboxSite) -> str:
    """Prepare a deletion of the group "bbbb", wait until it has counted, and pause it. Returns the operation's id."""
    book = OperationBook(site.store)
    operation_id = book.create(DELETE, {"topic": "orders", "group": "bbbb"}, "ada").id
    site.until(operation_id, lambda found: found["state"] == "ready")
    assert book.put(replace(book.found(operation_id), state="paused")) is not None
    return operation_id


def test_every_action_is_previewed_and_executed_as_the_document_says(site: InboxSite) -> None:
    """The test previews every action of the document, is refused without the preview's token, and then executes the
    action, which changes something.
    """
    letters, _ = site.bury(9), site.bury(2, "b", print_="bbbb")
    later_ms = site.store.now_ms() + 3_600_000
    site.store.schedule([Item("w.1", later_ms, b"no message", "orders")])
    api, group, waiting = DocumentedApi(site.client), {"topic": "orders", "group": "aaaa"}, {"ids": ["w.1"]}
    for action in ("pause-topic", "resume-topic"):
        api.act(action, topic="orders")
    for action, more in (("hold", {"reason": "r"}), ("release", {}), ("reschedule", {"in": "1h"}), ("run-now", {})):
        api.act(action, **waiting, **more)
    api.act("replay", ids=letters[:1])
    api.act("delete", ids=letters[1:2])
    for action in ("acknowledge-group", "fix-group", "reopen-group"):
        api.act(action, **group)
    api.act("note-group", **group, text="see the ticket")
    replay = api.act("start-replay", **group, rate="1", max_replays="2")["link"].rpartition("/")[2]
    deletion = api.act("delete-group", **group)["link"].rpartition("/")[2]
    for operation_id in (replay, deletion):
        site.until(operation_id, lambda found: found["state"] == "ready")
    for action in ("confirm-operation", "pause-operation", "resume-operation", "cancel-operation"):
        api.act(action, id=replay)
    api.act("confirm-delete", id=deletion)
    api.act("resume-delete", id=made_paused(site))
    assert {path for path in api.left_out if path.startswith("/actions/")} == set()


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
