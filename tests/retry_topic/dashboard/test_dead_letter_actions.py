"""Replays and deletions of dead letters in the dashboard: a visitor prepares, confirms, pauses and cancels them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from retry_topic.dashboard.dead_letters.running import runner_of
from retry_topic.management.dead_letter_operations import ReplayDeadLetters
from tests.retry_topic.dashboard.inbox_site import InboxSite, words
from wheel_sched.management.operations import OperationBook
from wheel_sched.store import DelayStore, open_store

NAMES = {"topic": "orders", "group": "aaaa"}


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def store(request: pytest.FixtureRequest) -> Iterator[DelayStore]:
    address = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with open_store(address) as opened:
        yield opened


@pytest.fixture
def site(store: DelayStore) -> Iterator[InboxSite]:
    made = InboxSite(store)
    yield made
    made.close()


def ended(found: dict[str, Any]) -> bool:
    return found["ended_ms"] > 0


def test_a_group_is_replayed_in_two_steps(site: InboxSite) -> None:
    """The first step counts the letters and changes nothing. The second shows this count, and replays exactly these
    letters.
    """
    site.bury(30)
    site.bury(2, "b", print_="bbbb")
    preview = site.preview("start-replay", **NAMES)
    assert preview["count"] == 30
    assert "the operation first counts the exact number" in preview["warning"]
    operation_id = site.start_replay(**NAMES, max_replays="2")
    assert site.store.counts().total("dead") == 32
    confirmed = site.preview("confirm-operation", id=operation_id)
    assert (confirmed["count"], len(confirmed["samples"])) == (30, 5)
    assert "exactly 30" in confirmed["words"]
    assert site.do("confirm-operation", id=operation_id)["done"] == 30
    done = site.until(operation_id, ended)
    assert (done["state"], done["done"], done["left"], done["handled"]) == ("done", 30, {}, 30)
    assert (done["arguments"]["max_replays"], done["who"], done["confirmed_by"]) == ("2", "ada", "ada")
    assert (site.store.counts().total("dead"), site.store.counts().total("due")) == (2, 30)


def test_the_end_of_an_operation_is_in_the_audit_log(site: InboxSite) -> None:
    site.bury(3)
    operation_id = site.start_replay(**NAMES)
    site.do("confirm-operation", id=operation_id)
    site.until(operation_id, ended)
    runner_of(site.app.dashboard).close()  # the runner writes the audit entry after the operation's end
    entries = site.client.get("/api/v1/audit").json()["entries"]
    outcomes = {one["action"]: one["outcome"] for one in entries}
    assert outcomes["replay-dead-letters"] == "done: 3 of 3"
    assert outcomes["start-replay"].startswith(f"operation {operation_id} counts")


def test_the_pages_follow_an_operation(site: InboxSite) -> None:
    """A counted operation can be confirmed, a running one can be paused, and an ended one shows its result."""
    site.bury(3, error="<b>{}</b>")
    operation_id = site.start_replay(**NAMES)
    ready = site.page(f"/operations/{operation_id}")
    assert "/actions/confirm-operation" in ready
    assert "&lt;b&gt;" in ready
    assert "<b>0" not in ready
    assert "/dead-letters/orders/aaaa" in ready
    assert "/actions/confirm-operation" in site.page("/operations")
    site.do("confirm-operation", id=operation_id)
    site.until(operation_id, ended)
    shown = words(site.page(f"/operations/{operation_id}"))
    assert "replay dead letters of orders, group aaaa done" in shown
    assert "Letters that failed again are in their group" in shown
    assert "/actions/" not in site.page("/operations")
    assert [one["id"] for one in site.call("/operations")["operations"]] == [operation_id]
    assert "No operation" in InboxSite(open_store("memory:")).page("/operations")
    site.page("/operations/none", 404)


def test_an_operation_can_be_paused_resumed_and_cancelled(site: InboxSite) -> None:
    site.bury(50)
    operation_id = site.start_replay(**NAMES, rate="5")
    site.do("confirm-operation", id=operation_id)
    site.until(operation_id, lambda found: found["done"] >= 5)
    site.do("pause-operation", id=operation_id)
    site.until(operation_id, lambda found: found["state"] == "paused" and found["done"] % 5 == 0)
    assert "/actions/resume-operation" in site.page(f"/operations/{operation_id}")
    assert "it must be running" in site.refused("pause-operation/preview", 409, id=operation_id)
    site.do("resume-operation", id=operation_id)
    site.do("cancel-operation", id=operation_id)
    found = site.until(operation_id, ended)
    assert found["state"] == "cancelled"
    assert found["done"] + found["left"]["not reached"] == 50
    assert site.store.counts().total("dead") == 50 - found["done"]


def test_a_deletion_needs_the_right_to_delete_for_both_steps(store: DelayStore) -> None:
    site, operator = InboxSite(store), InboxSite(store, "operate")
    site.bury(4)
    operation_id = site.do("delete-group", **NAMES)["link"].rpartition("/")[2]
    site.until(operation_id, lambda found: found["state"] == "ready")
    assert "may only operate" in operator.refused("confirm-delete/preview", 403, id=operation_id)
    assert "another kind" in operator.refused("confirm-operation/preview", 409, id=operation_id)
    assert "/actions/confirm" not in operator.page("/operations")
    assert "cannot be brought back" in site.preview("confirm-delete", id=operation_id)["warning"]
    site.do("confirm-delete", id=operation_id)
    assert site.until(operation_id, ended)["done"] == 4
    assert store.counts().total("dead") == 0
    assert "All its letters have left" in site.page("/dead-letters/orders/aaaa")
    site.close()
    operator.close()


def test_a_paused_deletion_is_resumed_with_the_right_to_delete(store: DelayStore) -> None:
    """A visitor with the right to operate can pause a deletion, but cannot resume it."""
    site = InboxSite(store)
    site.bury(50)
    operation_id = site.do("delete-group", **NAMES)["link"].rpartition("/")[2]
    site.until(operation_id, lambda found: found["state"] == "ready")
    site.close()
    book = OperationBook(store)  # no runner works now, so the deletion is paused before its first batch
    counted = book.get(operation_id)
    assert counted is not None
    book.confirm(operation_id, "anna", counted.version)
    book.pause(operation_id)
    operator = InboxSite(store, "operate")
    assert "may only operate" in operator.refused("resume-delete/preview", 403, id=operation_id)
    assert "another kind" in operator.refused("resume-operation/preview", 409, id=operation_id)
    assert "/actions/resume" not in operator.page(f"/operations/{operation_id}")
    operator.close()
    again = InboxSite(store)
    assert "/actions/resume-delete" in again.page(f"/operations/{operation_id}")
    again.do("resume-delete", id=operation_id)
    assert again.until(operation_id, ended)["done"] == 50
    again.close()


def test_a_search_can_be_replayed(site: InboxSite) -> None:
    """Durations in the search become instants, so the search means the same letters while the operation runs."""
    site.bury(12)
    operation_id = site.start_replay(search='died<1d "text of 1"')
    found = site.call(f"/operations/{operation_id}", "/operations/{id}")
    assert found["matched"] == 3
    assert "1d" not in found["arguments"]["search"]
    site.do("confirm-operation", id=operation_id)
    assert site.until(operation_id, ended)["done"] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "x"},
        {"rate": "0"},
        {"rate": "nan"},
        {"rate": "1", "spread": "1m"},
        {"spread": "x"},
        {"max_replays": "0"},
        {"max_replays": "1000"},
        {"search": "topic:orders"},
    ],
)
def test_wrong_arguments_are_refused(site: InboxSite, wrong: dict[str, str]) -> None:
    site.bury(1)
    assert "nothing was changed" in site.refused("start-replay/preview", 400, **NAMES, **wrong)
    assert site.call("/operations")["operations"] == []


def test_a_wrong_search_is_refused_and_an_unknown_group_not_found(site: InboxSite) -> None:
    assert "nothing was changed" in site.refused("start-replay/preview", 400, search="state:due")
    site.refused("start-replay/preview", 400, search="topc:x")
    site.refused("start-replay/preview", 404, topic="orders", group="none")
    site.refused("confirm-operation/preview", 404, id="none")


def test_deaths_after_the_preview_do_not_spoil_it(site: InboxSite) -> None:
    """If more letters die after the preview, the action is not refused: the operation counts its letters later."""
    site.bury(3)
    token = site.preview("start-replay", **NAMES)["token"]
    site.bury(2, "more")
    answer = site.post("start-replay", {**NAMES, "token": token})
    assert answer.status_code == 200
    operation_id = answer.json()["link"].rpartition("/")[2]
    assert site.until(operation_id, lambda found: found["state"] == "ready")["matched"] == 5


def test_a_confirmed_count_cannot_be_confirmed_again(site: InboxSite) -> None:
    site.bury(3)
    operation_id = site.start_replay(**NAMES)
    token = site.preview("confirm-operation", id=operation_id)["token"]
    assert site.post("confirm-operation", {"id": operation_id, "token": token}).status_code == 200
    assert site.post("confirm-operation", {"id": operation_id, "token": token}).status_code >= 400
    assert site.until(operation_id, ended)["done"] == 3


def test_letters_that_die_during_a_replay_are_not_replayed_again(site: InboxSite) -> None:
    """Every replayed message fails again at once. Each letter is replayed once, and is dead again afterwards."""
    site.bury(20)
    operation_id = site.start_replay(**NAMES, rate="40")
    site.do("confirm-operation", id=operation_id)

    def fail_again(found: dict[str, Any]) -> bool:
        waiting = site.store.list_items("due", limit=500).found
        if waiting:
            site.store.cancel([one.id for one in waiting])
            site.bury(len(waiting), f"again-{waiting[0].id}-")
        return ended(found) and not waiting

    done = site.until(operation_id, fail_again)
    assert (done["done"], done["left"]) == (20, {})
    assert site.store.counts().total("dead") == 20
    assert site.store.counts().happened("requeued") == 20


def test_a_served_dashboard_goes_on_with_the_operations_of_a_dead_one(site: InboxSite) -> None:
    """The thread that runs operations starts with the server, before anybody opens a page."""
    site.bury(3)
    operation_id = site.start_replay(**NAMES)
    site.close()
    book = OperationBook(site.store)
    found = book.get(operation_id)
    assert found is not None
    book.confirm(operation_id, "bob", found.version)
    second = InboxSite(site.store)
    with TestClient(second.app, base_url="http://localhost"):
        assert second.until(operation_id, ended)["done"] == 3


def test_a_failed_operation_says_why(site: InboxSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.bury(3)

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("<i>broken</i>\x1b[31m")

    monkeypatch.setattr(ReplayDeadLetters, "perform", broken)
    operation_id = site.start_replay(**NAMES)
    site.do("confirm-operation", id=operation_id)
    found = site.until(operation_id, ended)
    assert (found["state"], found["left"]) == ("failed", {"in the batch that failed": 3})
    page = site.page(f"/operations/{operation_id}")
    assert "&lt;i&gt;broken" in page
    assert "\x1b" not in page
