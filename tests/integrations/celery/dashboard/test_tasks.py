"""The pages about tasks, over a store in memory. Nothing of a message is executed or unpickled."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.store import DelayStore, Item, Members
from wheel_sched.store.members import this_process

EVIL = '<script>alert("x")</script>&\u202e'
HOUR_MS = 3_600_000


def ids(found: Any) -> list[str]:
    return [task["id"] for task in found["tasks"]]


def test_tasks_are_listed_in_order_of_their_eta(visitor: Visiting, hold: Any) -> None:
    """The list has name, queue, ETA and retries, on the page and in the API alike."""
    hold("later", 2 * HOUR_MS, queue="mail", retries=3, headers={"root_id": "root-1", "parent_id": "parent-1"})
    hold("soon", HOUR_MS)
    found = visitor.call("/tasks")
    assert ids(found) == ["soon", "later"]
    later = found["tasks"][1]
    assert (later["task"], later["queue"], later["retries"]) == ("mail.send", "mail", 3)
    assert (later["root_id"], later["parent_id"]) == ("root-1", "parent-1")
    assert found["counts"] == {"due": 2, "leased": 0, "held": 0, "dead": 0}
    assert found["queues"] == {"celery": 1, "mail": 1}
    page = visitor.page("/tasks")
    assert page.index("/tasks/soon") < page.index("/tasks/later")
    assert "/tasks/root-1" in page
    assert "/tasks/parent-1" in page


def test_tasks_are_filtered(visitor: Visiting, hold: Any, memory: DelayStore) -> None:
    """Tasks are filtered by name, queue, state, and the time until they are due."""
    hold("a", HOUR_MS, name="mail.send")
    hold("b", 2 * HOUR_MS, name="bill.write", queue="other")
    held = hold("c", 3 * HOUR_MS)
    memory.hold([held.item_id], "by hand", route="c")
    assert ids(visitor.call("/tasks", name="mail.*")) == ["a"]
    assert ids(visitor.call("/tasks", queue="other")) == ["b"]
    assert ids(visitor.call("/tasks", within="90m")) == ["a"]
    assert ids(visitor.call("/tasks", within="10s")) == []
    found = visitor.call("/tasks", state="held")
    assert (ids(found), found["tasks"][0]["reason"]) == (["c"], "by hand")
    assert "by hand" in visitor.page("/tasks", state="held")
    for wrong in ({"state": "asleep"}, {"within": "soon"}, {"name": "x" * 201}, {"limit": "0"}, {"cursor": "none"}):
        assert visitor.call("/tasks", 400, **wrong)["error"]["kind"] == "Rejected"


@pytest.mark.parametrize("search", [{}, {"name": "mail.*"}, {"queue": "celery"}])
def test_a_listing_is_read_page_by_page(visitor: Visiting, hold: Any, search: dict[str, str]) -> None:
    """The pages together have each task once."""
    for number in range(7):
        hold(f"task-{number}", HOUR_MS + 1_000 * number)
    seen: list[str] = []
    cursor = None
    while True:
        found = visitor.call("/tasks", limit=3, **search, **({"cursor": cursor} if cursor else {}))
        seen += ids(found)
        cursor = found["cursor"]
        if cursor is None:
            break
    assert seen == [f"task-{number}" for number in range(7)]
    assert "Next page" in visitor.page("/tasks", limit=3, **search)


def test_a_search_reads_a_bounded_number_of_tasks(
    visitor: Visiting, memory: DelayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that no task has ends after 40 pages with a cursor, however many tasks wait."""
    for start in range(0, 1_000, 500):
        memory.schedule([Item(f"t{start + at}:0:1:0", 2_208_988_800_000, b"x", "celery") for at in range(500)])
    calls = []
    execute = type(memory).execute
    monkeypatch.setattr(type(memory), "execute", lambda self, given: calls.extend(given) or execute(self, given))
    found = visitor.call("/tasks", name="nothing like this", limit=10)
    assert (ids(found), found["cursor"] is None) == ([], False)
    assert len(calls) < 100
    assert "looks at more tasks" in visitor.page("/tasks", name="nothing like this", limit=10)


def test_one_task_says_where_it_goes_and_what_follows(visitor: Visiting, hold: Any) -> None:
    """The page has destination, headers, and the chain, callbacks and chord that follow."""
    embed = {
        "callbacks": [{"task": "on.success", "options": {"task_id": "s-1"}}],
        "errbacks": [{"task": "on.failure"}],
        "chain": [{"task": "third", "options": {"task_id": "c-3"}}, {"task": "second", "options": {"task_id": "c-2"}}],
        "chord": {"task": "the.chord", "args": ["s3cret"]},
    }
    hold(
        "one",
        body=json.dumps([["s3cret"], {}, embed]),
        queue="mail",
        routing_key="mail.key",
        exchange="posts",
        priority=7,
        headers={"expires": "2040-01-01T00:00:00+00:00", "x-own": "s3cret", "group": "g-1"},
        declare=({"kind": "queue", "name": "mail"},),
    )
    (found,) = visitor.call("/tasks/one")["messages"]
    assert [(one["kind"], one["name"], one["id"]) for one in found["followers"]] == [
        ("then", "second", "c-2"),
        ("then", "third", "c-3"),
        ("on success", "on.success", "s-1"),
        ("on failure", "on.failure", ""),
        ("chord", "the.chord", ""),
    ]
    assert (found["exchange"], found["routing_key"], found["priority"]) == ("posts", "mail.key", 7)
    assert found["declares"] == ["queue mail"]
    assert found["celery"]["group"] == "g-1"
    assert "x-own" in found["header_names"]
    page = visitor.page("/tasks/one")
    for text in ("exchange posts", "routing key mail.key", "priority 7", "2040-01-01", "second", "c-3", "x-own", "g-1"):
        assert text in page
    assert "s3cret" not in page
    assert "s3cret" not in json.dumps(found)


def test_payloads_are_shown_only_on_request(
    visitor: Visiting, hold: Any, memory: DelayStore, open_visitor: Any
) -> None:
    """Arguments, body and header values count as payload."""
    hold("one", headers={"x-own": "m3ta"})
    shown = open_visitor(memory, {"store": "memory:"}, show_payloads=True)
    for path in ("/tasks", "/tasks/one"):
        assert "s3cret" not in visitor.page(path)
        assert "m3ta" not in visitor.page(path)
        assert "s3cret" not in json.dumps(visitor.call(path))
        assert "s3cret" in shown.page(path)
        assert "s3cret" in json.dumps(shown.call(path))
    assert "m3ta" in shown.page("/tasks/one")


def test_a_pickled_body_is_not_unpickled(
    visitor: Visiting, hold: Any, memory: DelayStore, open_visitor: Any, tmp_path: Path
) -> None:
    """A pickle that would write a file when it is read does not write it; nor is a compressed body opened."""

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    hold("bomb", body=pickle.dumps(Bomb()), content_type="application/x-python-serialize", content_encoding="binary")
    hold("small", body=b"x", headers={"compression": "application/x-gzip"})
    hold("odd", body=b"x", content_type="application/x-own")
    hold("torn", body="[1, 2")
    shown = open_visitor(memory, {"store": "memory:"}, show_payloads=True)
    for one in (visitor, shown):
        one.page("/tasks")
        assert "bytes), not shown" in one.page("/tasks/bomb")
        assert one.call("/tasks/bomb")["messages"][0]["content"].startswith("pickled")
        assert one.call("/tasks/small")["messages"][0]["content"].startswith("compressed")
        assert "application/x-own" in one.call("/tasks/odd")["messages"][0]["content"]
        assert "no JSON" in one.call("/tasks/torn")["messages"][0]["content"]
    assert not (tmp_path / "exploded").exists()


def test_texts_of_messages_cannot_forge_the_page(
    visitor: Visiting, hold: Any, memory: DelayStore, open_visitor: Any
) -> None:
    """Ids, names, queues, headers and arguments may contain markup. Every page escapes them."""
    task_id = f"../{EVIL}?#/\x1b[31m"
    embed = {"chain": [{"task": EVIL, "options": {"task_id": EVIL}}], "chord": [EVIL], "callbacks": EVIL}
    hold(
        task_id,
        name=EVIL,
        queue=EVIL,
        routing_key=EVIL,
        exchange=EVIL,
        body=json.dumps([[EVIL], {}, embed]),
        headers={"argsrepr": EVIL, "kwargsrepr": [EVIL], "root_id": EVIL, "parent_id": {EVIL: 1}, EVIL: EVIL,
                 "origin": EVIL, "expires": [EVIL], "shadow": "\ud800", "timelimit": [float("nan"), EVIL]},
    )  # fmt: skip
    shown = open_visitor(memory, {"store": "memory:"}, show_payloads=True)
    for one in (visitor, shown):
        one.call("/tasks")
        one.call(f"/tasks/{quote(task_id, safe='')}")
        for page in (one.page("/tasks"), one.page(f"/tasks/{quote(task_id, safe='')}")):
            assert "&lt;script&gt;" in page
            assert "<script>alert" not in page
            assert "\u202e" not in page
            assert "\x1b" not in page
    assert "<script>alert" not in visitor.page("/tasks", name=EVIL, queue=EVIL)


def _message(**changes: Any) -> bytes:
    fields = {
        "id": "x", "task": "t", "eta": 1, "raw": False, "body": "", "declare": [], "ttl_until": None, "retries": 0,
        "exchange": "", "routing_key": "", "queue": "", "content_type": None, "content_encoding": None, "headers": {},
        "properties": {}, "priority": None, **changes,
    }  # fmt: skip
    return b"C1" + json.dumps(fields).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"C1",
        b"C1" + b"[" * 100_000,
        b'C1{"id": {"__type__": "decimal", "__value__": "x"}}',
        _message(id=7),
        _message(id=None),
        _message(task=[1]),
        _message(eta="soon"),
        _message(eta=10**30),
        _message(eta=-1),
        _message(eta=True),
        _message(headers=[1]),
        _message(headers=None),
        _message(body={"a": 1}),
        _message(declare=[3]),
        _message(properties="none"),
        _message(retries="many", priority="high", content_type=[1], content_encoding=3),
        _message(headers={"argsrepr": {"deep": [[[1]]]}, "id": 3, "stamps": 3, "stamped_headers": 4}),
    ],
    ids=range(18),
)
def test_a_message_of_any_shape_is_shown(visitor: Visiting, memory: DelayStore, open_visitor: Any, body: bytes) -> None:
    """A message that is not what it should be fails no page, and can be purged."""
    memory.schedule([Item("x:0:1:0", 2_208_988_800_000, body, "celery", ("task:x",), "x")])
    shown = open_visitor(memory, {"store": "memory:"}, show_payloads=True)
    for one in (visitor, shown):
        one.page("/tasks")
        one.page("/tasks/x")
        one.call("/tasks")
        one.call("/tasks/x")
    visitor.preview("run-task-now", task=["x"])
    assert visitor.act("purge-task", task=["x"])["done"] == 1


def test_a_task_that_does_not_wait_is_not_found(visitor: Visiting) -> None:
    """The page and the call answer 404 and say why."""
    assert "waits here" in visitor.page("/tasks/nobody", 404)
    assert visitor.call("/tasks/nobody", 404)["error"]["kind"] == "NotFound"


def test_an_absent_namespace_is_not_created(
    memory: DelayStore, open_visitor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages say what to start. The API answers 404, and the overview has no panel."""
    monkeypatch.chdir(tmp_path)
    visitor = open_visitor(memory, {"store": "embedded:nowhere"})
    for path in ("/tasks", "/tasks/x"):
        assert "a Celery worker" in visitor.page(path)
        assert "nothing was changed" in visitor.call(path, 404)["error"]["message"]
    assert visitor.preview("purge-task", 404, task=["x"])["error"]["kind"] == "TasksAbsent"
    assert "Celery tasks" not in visitor.page("/")
    assert list(tmp_path.iterdir()) == []


def test_an_application_without_the_integration_is_named(memory: DelayStore, open_visitor: Any) -> None:
    """If the application does not use the integration, the page says which function to call."""
    from celery import Celery

    app = Celery("plain", broker="memory://", set_as_current=False)
    visitor = open_visitor(memory, {"store": "memory:"}, extras={"celery_app": app})
    assert "wheel_sched_celery.install(app)" in visitor.page("/tasks")


def test_the_overview_counts_tasks_and_names_overdue_ones(visitor: Visiting, hold: Any, memory: DelayStore) -> None:
    """The panel has the numbers of waiting tasks and live workers, and the next due time. It lists overdue and given-up
    tasks as problems.
    """
    hold("soon")
    page = visitor.page("/")
    assert "Celery tasks" in page
    assert "0 live" in page
    assert "overdue" not in page
    Members(memory).announce(replace(this_process("celery-worker", "w@host"), id="w1"), 60_000)
    hold("late", -60_000)
    page = visitor.page("/")
    assert "1 live" in page
    assert "Celery: 1 item is overdue" in page
    dead = hold("dead")
    (found,) = memory.get([dead.item_id], route="dead")
    assert found is not None
    memory.cancel([dead.item_id], route="dead")
    memory.bury([(found.item(), "no broker")])
    assert "1 Celery task could not be sent" in visitor.page("/")
