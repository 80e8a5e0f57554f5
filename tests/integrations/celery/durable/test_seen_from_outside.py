"""What monitors and brokers see: events, `inspect scheduled`, and the visibility timeout."""

from __future__ import annotations

import json
import signal
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from wheel_sched_celery.management import HeldTasks

from wheel_sched.store import Members

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(150),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]


class Events:
    """All events of an app, as Flower receives them, and the state that Celery computes from them."""

    def __init__(self, stage: Stage) -> None:
        self.seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.state = stage.app.events.State()
        self.ready = threading.Event()
        self._over = threading.Event()
        self._stage = stage
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        with self._stage.app.connection_for_read() as connection:
            receiver = self._stage.app.events.Receiver(connection, handlers={"*": self._take})
            with receiver.consumer_context() as (listening, _, _):
                self.ready.set()
                while not self._over.is_set():
                    try:
                        listening.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    def _take(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        if "uuid" in event:
            self.seen[event["uuid"]].append(event)

    def types(self, task_id: str) -> list[str]:
        return [event["type"] for event in list(self.seen[task_id])]

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def test_events_tell_of_held_tasks_and_their_state_ends_as_in_stock(stage: Stage) -> None:
    """Monitors get `task-sent` and `task-revoked` at once, `task-scheduled` at a takeover, and `task-received` when the
    task is due."""
    stage.app.conf.task_send_sent_event = stage.stock.conf.task_send_sent_event = True
    stage.worker("-E").wait_ready()
    events = Events(stage)
    try:
        stage.wait_until(events.ready.is_set, "the receiver listens")
        ours = stage.app.send_task("note", ("ours",), countdown=600)
        theirs = stage.stock.send_task("note", ("theirs",), countdown=600)
        gone = [stage.app.send_task("note", ("gone",), countdown=600).id for _ in range(2)]
        stage.wait_held(4)
        stage.app.control.revoke(gone[0])
        assert len(HeldTasks(stage.app).cancel(HeldTasks(stage.app).get(gone[1])).done) == 1
        stage.wait_until(lambda: all("task-revoked" in events.types(each) for each in gone), "revoked was told")
        stage.wait_held(2)
        stage.bring_forward(1.5)
        stage.assert_once(["ours", "theirs"])
        for task_id in (ours.id, theirs.id):
            stage.wait_until(lambda t=task_id: "task-succeeded" in events.types(t), "success was told")
    finally:
        events.close()
    assert events.types(ours.id) == ["task-sent", "task-received", "task-started", "task-succeeded"]
    assert events.types(theirs.id) == [
        "task-sent", "task-scheduled", "task-received", "task-started", "task-succeeded"
    ]  # fmt: skip
    for task_id in gone:
        assert events.types(task_id) == ["task-sent", "task-revoked"]
        assert events.state.tasks[task_id].state == "REVOKED"
    for task_id in (ours.id, theirs.id):
        received = next(event for event in events.seen[task_id] if event["type"] == "task-received")
        assert received["eta"] is not None
        assert events.state.tasks[task_id].state == "SUCCESS"
    scheduled = next(event for event in events.seen[theirs.id] if event["type"] == "task-scheduled")
    assert (scheduled["name"], scheduled["queue"]) == ("note", "celery")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_is_a_live_member_until_it_stops(stage: Stage, pool: str) -> None:
    """`wheel-sched ps` reads this list. The worker has one entry, whatever its pool, and leaves the list at a warm
    shutdown."""
    live = Members(stage.store).live
    worker = stage.worker(pool=pool).wait_ready()
    stage.wait_until(lambda: len(live()) == 1, "it was announced")
    (found,) = live()
    assert (found.member.kind, found.member.name) == ("celery-worker", f"{worker.name}@test")
    assert found.member.pid == worker.process.pid
    assert set(found.member.topics) >= {"celery", "left", "right"}
    assert found.member.releases
    stage.app.send_task("note", ("it works",))
    stage.wait_runs(1)
    assert len(live()) == 1
    worker.send(signal.SIGTERM)
    worker.wait_ended()
    assert live() == []


def test_one_of_several_workers_lists_what_is_held(stage: Stage) -> None:
    """The first worker by name lists all held tasks in `inspect scheduled`, and the others list none. Each worker can
    remove a revoked task."""
    for worker in [stage.worker(), stage.worker()]:
        worker.wait_ready()
    task = stage.app.send_task("note", ("far",), countdown=600)
    stage.wait_until(lambda: len(_rows(stage)) == 2 and sum(_rows(stage).values()) == 1, "one worker answered for all")
    stage.app.control.revoke(task.id)
    stage.wait_until(lambda: stage.held() == 0, "it was removed")
    stage.app.control.revoke("no such task")
    stage.wait_until(lambda: len(_rows(stage)) == 2, "both workers are well")


def _rows(stage: Stage) -> dict[str, int]:
    replies = stage.app.control.inspect(timeout=2).scheduled() or {}
    return {name: len(rows) for name, rows in replies.items()}


def test_a_visibility_timeout_finds_nothing_of_a_held_task_to_repeat(stage: Stage) -> None:
    """The message of a held task is acknowledged, so the broker does not deliver it again after the visibility timeout.
    Stock Celery would run the task once more after each timeout."""
    for worker in [stage.worker(), stage.worker()]:
        worker.wait_ready()
    names = [f"task {i}" for i in range(20)]
    for name in names:
        stage.stock.send_task("note", (name,), countdown=600)
    stage.wait_held(len(names))
    stage.wait_until(lambda: not stage.client.hlen("unacked"), "all were acknowledged")
    stage.restore_all()
    assert stage.queued() == 0
    stage.bring_forward(1.5)
    stage.assert_once(names)
    stage.app.send_task("note", ("last",), countdown=2.5)
    stage.assert_once([*names, "last"])


def test_a_copy_that_was_restored_before_the_acknowledgement_is_no_second_task(stage: Stage) -> None:
    """The broker restores messages after the visibility timeout, and a worker gets the copies. Each task runs once."""
    names = [f"task {i}" for i in range(20)]
    for name in names:
        stage.stock.send_task("note", (name,), countdown=600)
    copies = [_restored(raw) for raw in stage.client.lrange("celery", 0, -1)]
    for worker in [stage.worker(), stage.worker()]:
        worker.wait_ready()
    stage.wait_held(len(names))
    stage.client.lpush("celery", *copies)
    stage.wait_until(lambda: not stage.queued() and not stage.client.hlen("unacked"), "the copies were taken over")
    assert stage.held() == len(names)
    stage.bring_forward(1.5)
    stage.assert_once(names)
    stage.app.send_task("note", ("last",), countdown=2.5)
    stage.assert_once([*names, "last"])


def _restored(raw: bytes) -> bytes:
    """A message as kombu restores it: marked as redelivered."""
    message = json.loads(raw)
    message["headers"]["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
    return json.dumps(message).encode()
