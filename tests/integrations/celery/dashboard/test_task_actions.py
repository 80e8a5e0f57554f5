"""Changes of tasks: as many are changed as the preview said, and none that has changed since."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.store import DelayStore

if TYPE_CHECKING:
    from wheel_sched_celery.message.held_task import HeldTask

HOUR_MS = 3_600_000
MOVED = {"run-task-now": {}, "reschedule-task": {"in": "2h"}, "purge-task": {}}


def eta_of(visitor: Visiting, task_id: str) -> int:
    found: int = visitor.call(f"/tasks/{task_id}")["messages"][0]["eta_ms"]
    return found


def claim(memory: DelayStore, task: HeldTask) -> None:
    """Put a task on its way to its queue."""
    memory.reschedule([task.item_id], 0, route=task.task_id)
    assert memory.claim(10, lease_ms=60_000).items


def test_each_change_does_what_its_preview_says(visitor: Visiting, hold: Any, memory: DelayStore) -> None:
    """The changes are run now, reschedule and purge. A task that a worker is sending is not changed, and the preview
    says why.
    """
    for task_id in ("one", "two", "three", "four"):
        hold(task_id)
    now_ms = memory.now_ms()
    assert visitor.act("run-task-now", task=["one"])["words"] == "1 task to run now"
    assert eta_of(visitor, "one") <= now_ms + 60_000
    assert visitor.act("reschedule-task", tasks="two\r\nthree\n", **{"in": "2h"})["words"] == "2 tasks rescheduled"
    assert eta_of(visitor, "two") >= now_ms + 2 * HOUR_MS
    found = visitor.preview("reschedule-task", task=["two", "nobody"], at="2040-01-01T00:00")
    assert "2040-01-01T00:00:00.000Z" in found["words"]
    assert "is not here" in found["warning"]
    visitor.execute("reschedule-task", found["token"], task=["two", "nobody"], at="2040-01-01T00:00")
    assert eta_of(visitor, "two") == datetime(2040, 1, 1, tzinfo=UTC).timestamp() * 1000
    assert visitor.act("purge-task", task=["one", "two"])["words"] == "2 tasks removed"
    assert visitor.call("/tasks")["counts"]["due"] == 2


@pytest.mark.parametrize("action", MOVED)
def test_a_task_on_its_way_is_left(visitor: Visiting, hold: Any, memory: DelayStore, action: str) -> None:
    """A task that a worker is sending is not changed."""
    claim(memory, hold("away"))
    found = visitor.preview(action, task=["away"], **MOVED[action])
    assert found["count"] == 0
    assert "on its way to its queue" in found["warning"]
    assert visitor.act(action, task=["away"], **MOVED[action])["done"] == 0


@pytest.mark.parametrize("change", ["rewritten", "sent", "removed"])
@pytest.mark.parametrize("action", MOVED)
def test_a_change_is_refused_when_the_task_has_changed(
    visitor: Visiting, hold: Any, memory: DelayStore, action: str, change: str
) -> None:
    """A task that was rewritten, sent or removed since the preview is not touched; the answer says so."""
    task = hold("a")
    (item,) = memory.get([task.item_id], route="a")
    assert item is not None
    found = visitor.preview(action, task=["a"], **MOVED[action])
    if change == "rewritten":
        memory.replace(item.item(), keep_due=True)
    elif change == "sent":
        claim(memory, task)
    else:
        memory.cancel([task.item_id], route="a")
    before = memory.get([task.item_id], route="a")
    answer = visitor.execute(action, found["token"], 409, task=["a"], **MOVED[action])
    assert answer["error"]["kind"] == "ChangedMeanwhile"
    assert memory.get([task.item_id], route="a") == before


@pytest.mark.parametrize("action", MOVED)
def test_a_task_that_changes_during_the_change_is_left(
    visitor: Visiting, hold: Any, memory: DelayStore, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the change, somebody else changes the task. That change stays."""
    from wheel_sched_celery.dashboard import task_actions

    task = hold("a")
    (item,) = memory.get([task.item_id], route="a")
    assert item is not None
    found = visitor.preview(action, task=["a"], **MOVED[action])
    execute = task_actions._execute

    def late(*args: Any) -> Any:
        memory.replace(item.item(), keep_due=True)
        return execute(*args)

    monkeypatch.setattr(task_actions, "_execute", late)
    done = visitor.execute(action, found["token"], task=["a"], **MOVED[action])
    assert done["done"] == 0
    assert done["left"] == {"was changed by another process meanwhile": 1}
    (after,) = memory.get([task.item_id], route="a")
    assert after is not None
    assert after.score_ms == item.score_ms


def test_revoking_needs_the_application(visitor: Visiting, hold: Any) -> None:
    """Without the application, the button is not shown, the API says why, and the action is refused."""
    hold("a")
    for path in ("/tasks", "/tasks/a"):
        page = visitor.page(path)
        assert "actions/revoke-task" not in page
        assert "actions/purge-task" in page
        answer = visitor.call(path)
        assert answer["can_revoke"] is False
        assert "celery_app=app" in answer["why_no_revoke"]
    assert "celery_app=app" in visitor.preview("revoke-task", 400, task=["a"])["error"]["message"]
    assert visitor.call("/tasks")["counts"]["due"] == 1


def test_rights_are_needed(memory: DelayStore, open_visitor: Any, hold: Any) -> None:
    """A reader changes nothing and sees no buttons; an operator removes nothing."""
    hold("a")
    reader, operator = (open_visitor(memory, {"store": "memory:"}, right=right) for right in ("read", "operate"))
    assert "actions/" not in reader.page("/tasks") + reader.page("/tasks/a")
    for action in ("run-task-now", "reschedule-task", "revoke-task", "purge-task"):
        assert reader.preview(action, 403, task=["a"])["error"]["kind"] == "NotAllowed"
    pages = operator.page("/tasks") + operator.page("/tasks/a")
    assert "actions/reschedule-task" in pages
    assert "actions/purge-task" not in pages
    for action in ("revoke-task", "purge-task"):
        operator.preview(action, 403, task=["a"])
    assert operator.act("run-task-now", task=["a"])["done"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"in": "2h", "at": "2040-01-01T00:00:00Z"},
        {"in": "soon"},
        {"at": "tomorrow"},
        {"at": "0001-01-01T00:00:00+14:00"},
    ],
)
def test_a_moment_that_cannot_be_read_is_refused(visitor: Visiting, hold: Any, arguments: dict[str, str]) -> None:
    """A request with two times, with none, or with a text that is no time changes nothing."""
    hold("a")
    answer = visitor.preview("reschedule-task", 400, task=["a"], **arguments)
    assert "nothing was changed" in answer["error"]["message"]


def test_a_moment_outside_of_the_calendar_is_refused(visitor: Visiting, hold: Any) -> None:
    """An ETA before 1970 cannot be stored."""
    hold("a")
    assert visitor.preview("reschedule-task", 400, task=["a"], at="1960-01-01T00:00:00Z")["error"]["kind"] == "Rejected"


def test_a_request_must_name_tasks(visitor: Visiting) -> None:
    """A request without ids, or with too many, is refused."""
    assert "which tasks" in visitor.preview("purge-task", 400)["error"]["message"]
    many = [str(number) for number in range(501)]
    assert "at most 500" in visitor.preview("purge-task", 400, task=many)["error"]["message"]
