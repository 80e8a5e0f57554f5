"""The Python API for held tasks, on a real store without a worker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery
from kombu.utils.json import loads
from wheel_sched_celery import wheel_of
from wheel_sched_celery.management import HeldTasks, TaskFilter
from wheel_sched_celery.message.held_task import REVOKED, release_ms

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import ServerPush
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.plans import shard_of

pytestmark = [
    pytest.mark.usefixtures("real_server"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

HOUR_MS = 3_600_000


def selected(tasks: HeldTasks, **selection: Any) -> list[str]:
    return [waiting.id for waiting in tasks.select(TaskFilter(**selection))]


def messages(app: Celery, queue: str) -> list[dict[str, Any]]:
    """All messages in a queue of the broker."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        return [loads(raw) for raw in channel.client.lrange(queue, 0, -1)]


def test_tasks_are_listed_in_order_of_their_eta(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """The order holds over all shards. The ETA is read from each message."""
    found = list(tasks.select())
    assert [each.id for each in found] == [ids["one"], ids["two"], ids["three"], ids["bill"]]
    assert [each.name for each in found] == ["mail.send"] * 3 + ["bill.write"]
    third = found[2].as_dict()
    assert third["queue"] == "other"
    assert third["priority"] == 7
    assert third["expires"] is not None
    assert third["args"] == "(3,)"
    assert third["eta_ms"] == pytest.approx(time.time() * 1000 + 3 * HOUR_MS, abs=60_000)


def test_each_condition_of_a_selection_narrows_it(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """The conditions are id, name, queue, time of ETA, state and a limit."""
    now_ms = tasks.now_ms()
    assert selected(tasks, ids=(ids["two"],)) == [ids["two"]]
    assert selected(tasks, name="bill.*") == [ids["bill"]]
    assert selected(tasks, queue="other") == [ids["three"]]
    assert selected(tasks, since_ms=now_ms + HOUR_MS + 60_000, until_ms=now_ms + 4 * HOUR_MS) == [
        ids["two"],
        ids["three"],
    ]
    assert selected(tasks, name="mail.*", queue="other", until_ms=now_ms + HOUR_MS) == []
    assert selected(tasks, states=("dead",)) == []
    assert len(list(tasks.select(limit=2))) == 2


def test_the_bounds_of_a_time_range_are_those_of_the_eta(tasks: HeldTasks, app: Celery) -> None:
    """A time range selects by ETA. The time of release, which is earlier by the lead, does not matter. The first bound
    is included, the last is not.
    """
    (waiting,) = [tasks.get(app.tasks["mail.send"].apply_async((1,), countdown=100).id)[0]]
    eta_ms = waiting.eta_ms
    assert eta_ms is not None
    assert selected(tasks, since_ms=eta_ms, until_ms=eta_ms + 1) == [waiting.id]
    assert selected(tasks, since_ms=eta_ms + 1) == []
    assert selected(tasks, until_ms=eta_ms) == []


def test_a_task_is_found_by_its_id_and_by_its_items(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """A look-up of an unknown id returns nothing and raises no error."""
    (waiting,) = tasks.get(ids["one"])
    assert tasks.get(waiting.found.id) == [waiting]
    assert tasks.get("unknown") == []
    assert tasks.get("unknown:0:1:0") == []


def test_cancel_removes_tasks_and_marks_them_revoked(tasks: HeldTasks, app: Celery, ids: dict[str, str]) -> None:
    """`cancel` removes tasks from the store. Then `AsyncResult` shows the state REVOKED."""
    changed = tasks.cancel(tasks.select(TaskFilter(name="mail.*")))
    assert sorted(each.id for each in changed.done) == sorted([ids["one"], ids["two"], ids["three"]])
    assert changed.left == []
    assert selected(tasks) == [ids["bill"]]
    assert app.AsyncResult(ids["one"]).state == "REVOKED"
    assert app.AsyncResult(ids["bill"]).state == "PENDING"


def test_purge_removes_tasks_and_leaves_their_results(tasks: HeldTasks, app: Celery, ids: dict[str, str]) -> None:
    """Purged tasks are not marked as revoked. `celery purge` leaves results alone too."""
    assert len(tasks.purge(tasks.select()).done) == 4
    assert selected(tasks) == []
    assert app.AsyncResult(ids["one"]).state == "PENDING"


def test_reschedule_moves_the_task_and_the_eta_in_its_message(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """`reschedule` changes only the ETA of the message."""
    (before,) = tasks.get(ids["three"])
    eta_ms = tasks.now_ms() + 10 * HOUR_MS
    assert [each.id for each in tasks.reschedule([before], eta_ms).done] == [ids["three"]]
    (after,) = tasks.get(ids["three"])
    assert after.eta_ms == eta_ms
    assert after.found.score_ms == release_ms(eta_ms, tasks.wheel.settings.lead)
    assert after.headers["eta"] != before.headers["eta"]
    assert {**after.headers, "eta": 0} == {**before.headers, "eta": 0}
    assert after.task is not None
    assert before.task is not None
    assert after.task.body == before.task.body
    assert (after.queue, after.task.priority) == ("other", 7)
    assert selected(tasks)[-2:] == [ids["three"], ids["bill"]] or selected(tasks)[-2:] == [ids["bill"], ids["three"]]


def test_run_now_makes_a_task_due(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """`run_now` makes a held task due. The next dispatcher sends it."""
    tasks.run_now(tasks.get(ids["bill"]))
    (waiting,) = tasks.get(ids["bill"])
    assert waiting.found.score_ms <= tasks.now_ms()
    assert waiting.eta_ms is not None
    assert waiting.eta_ms <= tasks.now_ms()
    pushed = ServerPush(tasks.store).push(10, shard=shard_of(waiting.route, tasks.store.shards))
    assert len(pushed.dues_ms) == 1
    assert [message["headers"]["id"] for message in messages(tasks.wheel.app, waiting.queue)] == [ids["bill"]]


def test_what_somebody_changed_meanwhile_is_left_alone(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """A change applies only to the version of the task that was read."""
    (stale,) = tasks.get(ids["one"])
    tasks.reschedule([stale], tasks.now_ms() + 5 * HOUR_MS)
    changed = tasks.reschedule([stale], tasks.now_ms() + 6 * HOUR_MS)
    assert changed.done == []
    assert "changed by another process" in changed.left[0][1]


def test_a_task_in_flight_is_left_to_revoke(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """A dispatcher has claimed the task. The task does not change, and the caller gets the reason."""
    tasks.run_now(tasks.get(ids["one"]))
    (waiting,) = tasks.get(ids["one"])
    tasks.store.claim(10, shard=shard_of(waiting.route, tasks.store.shards))
    assert tasks.get(ids["one"])[0].found.state == "leased"
    assert "on its way" in tasks.reschedule([waiting], tasks.now_ms() + HOUR_MS).left[0][1]
    changed = tasks.cancel([waiting])
    assert changed.done == []
    assert "revoke" in changed.left[0][1]


def test_thousands_are_changed_in_batches(tasks: HeldTasks, app: Celery) -> None:
    """1,100 tasks are rescheduled and cancelled, more than one call can change."""
    mail = app.tasks["mail.send"]
    with app.producer_or_acquire() as producer:
        for number in range(1100):
            mail.apply_async((number,), countdown=5000, producer=producer)
    assert len(tasks.reschedule(tasks.select(), tasks.now_ms() + HOUR_MS).done) == 1100
    assert len(tasks.cancel(tasks.select()).done) == 1100
    assert tasks.counts().total("due") == 0


def test_a_revoked_task_does_not_come_back(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """A task whose revoke could not be announced stays held: neither `run_now` nor `reschedule` lets it run."""
    (one,) = tasks.select(TaskFilter(ids=(ids["one"],)))
    tasks.store.hold([one.found.id], REVOKED, route=one.route)
    (one,) = tasks.select(TaskFilter(ids=(ids["one"],), states=("held",)))
    assert one.revoked
    for changed in (tasks.run_now([one]), tasks.reschedule([one], tasks.now_ms() + HOUR_MS)):
        assert [why for _, why in changed.left] == ["is revoked"]
    assert tasks.why_not_moved(one) == "is revoked"


def test_an_eta_out_of_range_changes_nothing(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """`reschedule` refuses an ETA beyond the year 9999 or before 1970."""
    for eta_ms in (-1, 10**15):
        with pytest.raises(Rejected, match="nothing was changed"):
            tasks.reschedule(tasks.select(), eta_ms)
    assert len(selected(tasks)) == 4


def test_what_cannot_be_read_is_listed_and_can_be_removed(tasks: HeldTasks) -> None:
    """A body in an unknown form has no name and no ETA. `reschedule` says why it does not change such a task."""
    tasks.store.schedule([Item("odd", tasks.now_ms() + HOUR_MS, b"\x00nonsense", "somewhere")])
    (waiting,) = tasks.select()
    assert (waiting.id, waiting.name, waiting.eta_ms, waiting.queue) == ("odd", "", None, "somewhere")
    assert "cannot be read" in tasks.reschedule([waiting], tasks.now_ms()).left[0][1]
    assert len(tasks.purge([waiting]).done) == 1


def test_an_app_without_a_store_is_refused(app: Celery) -> None:
    """An app without a store is refused with an error that says what to do."""
    with pytest.raises(ConfigError, match="install"):
        HeldTasks(Celery("plain", set_as_current=False))
    assert HeldTasks(wheel_of(app)).wheel is app.wheel
