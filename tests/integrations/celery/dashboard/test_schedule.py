"""The pages about entries of the schedule, and their actions, over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.beat.entries import BeatEntries

from tests.dashboard.documented import DocumentedApi
from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.store import DelayStore

EVIL = '<script>alert("x")</script>&\u202e'
OPERATE = ("pause-beat-entry", "resume-beat-entry", "run-beat-entry-now")


@pytest.fixture
def app(memory: DelayStore) -> Iterator[Celery]:
    """An application whose store is the one in memory."""
    app = Celery("shown", broker="memory://", set_as_current=False)
    install(app, "redis://nowhere.invalid")
    app.wheel._store = memory
    yield app
    app.close()


@pytest.fixture
def entries(app: Celery) -> BeatEntries:
    return BeatEntries(app)


@pytest.fixture
def add(entries: BeatEntries) -> Callable[..., Any]:
    """Adds an entry: `add(name, schedule)`."""

    def add(name: str, schedule: Any = 3600, **rest: Any) -> Any:
        return entries.add(entries.make(name, "mail.send", schedule, **rest)).entry

    return add


@pytest.fixture
def running(
    open_visitor: Callable[..., Visiting], memory: DelayStore, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> Visiting:
    """A visitor of a dashboard that has the running application."""
    import contextlib

    from wheel_sched_celery.dashboard import opening

    monkeypatch.setattr(opening, "_store_of", lambda *_: contextlib.nullcontext(memory))
    return open_visitor(memory, {"store": "memory:"}, extras={"celery_app": app})


def test_entries_are_listed_in_order_of_their_names(visitor: Visiting, add: Any, memory: DelayStore) -> None:
    """The list has task, schedule, next and last run, source and catch-up, on the page and in the API alike."""
    add("report", "0 4 * * *", catch_up="all", catch_up_limit=3, options={"queue": "mail"})
    add("ping", 60)
    found = visitor.call("/beat")
    assert [one["name"] for one in found["entries"]] == ["ping", "report"]
    report = found["entries"][1]
    assert (report["task"], report["schedule"], report["queue"]) == ("mail.send", "0 4 * * *", "mail")
    assert (report["catch_up"], report["source"], report["state"]) == ("all, 3 at most", "run-time", "waiting")
    assert found["entries"][0]["due_ms"] > memory.now_ms()
    assert (found["total"], found["overdue"]) == (2, 0)
    page = visitor.page("/beat")
    assert page.index("/beat/ping") < page.index("/beat/report")


def test_entries_are_filtered_and_paged(visitor: Visiting, add: Any, entries: BeatEntries) -> None:
    """Entries are filtered by a pattern and by state. The pages together have each entry once."""
    for number in range(5):
        add(f"mail-{number}")
    add("other")
    entries.pause("mail-3")
    assert [one["name"] for one in visitor.call("/beat", state="paused")["entries"]] == ["mail-3"]
    first = visitor.call("/beat", name="mail-*", limit=3)
    second = visitor.call("/beat", name="mail-*", limit=3, cursor=first["cursor"])
    names = [one["name"] for found in (first, second) for one in found["entries"]]
    assert (names, second["cursor"]) == ([f"mail-{number}" for number in range(5)], None)
    assert "Next page" in visitor.page("/beat", limit=3)
    assert visitor.call("/beat", 400, state="asleep")["error"]["kind"] == "Rejected"
    assert visitor.call("/beat", 400, name="x" * 201)["error"]["kind"] == "Rejected"


def test_one_entry_is_shown_whole(running: Visiting, add: Any) -> None:
    """The page of an entry has its next runs. It has the arguments only if the dashboard shows payloads."""
    entry = add("report", 3600, args=["s3cret"])
    found = running.call("/beat/report")
    assert found["next_runs"][:2] == [entry.due_ms, entry.due_ms + 3_600_000]
    assert len(found["next_runs"]) == 10
    page = running.page("/beat/report")
    assert "every 3600s" in page
    assert "s3cret" not in page
    assert running.call("/beat/unknown", 404)["error"]["kind"] == "NotFound"
    running.page("/beat/unknown", 404)


def test_payloads_are_shown_where_the_dashboard_shows_them(open_visitor: Any, add: Any, memory: DelayStore) -> None:
    """If the dashboard shows payloads, the page and the API have the arguments of an entry."""
    add("report", 3600, args=["s3cret"])
    visitor = open_visitor(memory, {"store": "memory:"}, show_payloads=True)
    assert "s3cret" in visitor.page("/beat/report")
    assert visitor.call("/beat")["entries"][0]["args"] == ["s3cret"]


def test_texts_of_an_entry_are_escaped(visitor: Visiting, entries: BeatEntries) -> None:
    """Every text of an entry may contain markup, and the page escapes it."""
    name = '<b>&"'
    entries.add(entries.make(name, "<script>alert(1)</script>", 60, options={"queue": "<i>"}))
    for page in (visitor.page("/beat"), visitor.page("/beat/%3Cb%3E&%22")):
        assert "<script>alert(1)" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page


def test_actions_change_entries(running: Visiting, add: Any, entries: BeatEntries, memory: DelayStore) -> None:
    """Pause, resume, run now and remove do what their previews say."""
    add("one")
    add("two")
    assert running.act("pause-beat-entry", entry=["one"], entries="two\r\n")["words"] == "2 entries paused"
    assert {one.state for one in entries.all()} == {"paused"}
    assert running.act("resume-beat-entry", entry=["one"])["words"] == "1 entry resumed"
    before = entries.get("one")
    assert running.act("run-beat-entry-now", entry=["one"])["words"] == "1 entry to run now"
    assert entries.get("one") == before
    assert memory.counts().total("due") == 2  # the entry, and its task
    assert running.act("remove-beat-entry", entry=["one", "two"])["words"] == "2 entries removed"
    assert entries.all() == []


def test_what_is_not_here_is_left(running: Visiting, add: Any) -> None:
    """The preview names entries that do not exist, and a request without names is refused."""
    add("one")
    found = running.preview("pause-beat-entry", entry=["one", "nobody"])
    assert (found["count"], "is not here" in found["warning"]) == (1, True)
    for action in (*OPERATE, "remove-beat-entry"):
        assert running.preview(action, 400)["error"]["kind"] == "Rejected"


@pytest.mark.parametrize("action", [*OPERATE, "remove-beat-entry"])
def test_an_entry_with_another_definition_is_not_changed(
    running: Visiting, add: Any, entries: BeatEntries, action: str
) -> None:
    """If somebody has replaced the entry since the preview, the action is refused. A run in between is no reason to
    refuse.
    """
    add("one")
    found = running.preview(action, entry=["one"])
    entries.replace(entries.make("one", "mail.send", 60))
    answer = running.execute(action, found["token"], 409, entry=["one"])
    assert answer["error"]["kind"] == "ChangedMeanwhile"
    assert entries.get("one").state == "waiting"  # type: ignore[union-attr]


def test_without_the_application_some_actions_are_missing(visitor: Visiting, add: Any, entries: BeatEntries) -> None:
    """Actions that need the application's time zone or code are not offered without it, and the page says so."""
    add("one")
    entries.add(entries.make("of-code", "mail.send", 60, source="code"))
    for action, name in (("resume-beat-entry", "one"), ("run-beat-entry-now", "one"), ("remove-beat-entry", "of-code")):
        found = visitor.preview(action, entry=[name])
        assert (found["count"], "running application" in found["warning"]) == (0, True)
    assert "Resume and run now are missing here" in visitor.page("/beat")
    assert visitor.act("pause-beat-entry", entry=["one"])["done"] == 1
    assert visitor.act("remove-beat-entry", entry=["one"])["done"] == 1


def test_an_overdue_entry_is_an_ailment(visitor: Visiting, add: Any, memory: DelayStore, entries: BeatEntries) -> None:
    """The overview and the page say which command to start."""
    from dataclasses import replace

    add("soon")
    entries.add(replace(entries.make("late", "mail.send", 60), due_ms=memory.now_ms() - 60_000))
    assert visitor.call("/beat")["overdue"] == 1
    for page in (visitor.page("/beat"), visitor.page("/")):
        assert "overdue and nobody sends their tasks" in page
        assert "beat -S wheel" in page


def test_tasks_and_entries_are_apart(visitor: Visiting, add: Any, hold: Any) -> None:
    """Entries are neither in the list of tasks nor in the counts of tasks."""
    add("one")
    hold("task")
    found = visitor.call("/tasks")
    assert [task["id"] for task in found["tasks"]] == ["task"]
    assert (found["counts"]["due"], list(found["queues"])) == (1, ["celery"])
    assert visitor.call("/beat")["total"] == 1


def test_every_call_and_action_answers_as_the_document_says(running: Any, hold: Any, add: Any) -> None:
    """Over tasks that are run, moved, revoked and removed, and an entry that goes through all its states."""
    for task_id in ("one", "two", "three"):
        hold(task_id)
    add("ping", 60)
    api = DocumentedApi(running.client)
    for path in ("/session", "/overview", "/members", "/audit"):
        api.get(path)
    assert len(api.get("/tasks", {"state": "due", "queue": "celery", "limit": "5"})["tasks"]) == 3
    assert api.get("/tasks/{id}", id="one")["messages"]
    assert api.get("/beat")["entries"]
    assert api.get("/beat/{name}", name="ping")["next_runs"]
    api.absent("/tasks/{id}")
    api.absent("/beat/{name}")
    api.act("run-task-now", task=["one"])
    api.act("reschedule-task", tasks="one\ntwo\n", **{"in": "2h"})
    api.act("revoke-task", task=["two"])
    api.act("purge-task", task=["three"])
    for action in ("pause-beat-entry", "resume-beat-entry", "run-beat-entry-now", "remove-beat-entry"):
        api.act(action, entry=["ping"])
    assert not api.left_out
