"""Held tasks are revoked by remote control and by `cancel`: effects on results, chords and signals."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chord, group, signals
from celery.exceptions import ChordError
from celery.worker.control import Panel
from wheel_sched_celery.management import HeldTasks, TaskFilter
from wheel_sched_celery.remote_control import commands

pytestmark = [
    pytest.mark.usefixtures("real_server"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

FAR: dict[str, Any] = {"countdown": 3600}
Revoke = Callable[[Celery, list[str]], None]


def state_of(app: Celery) -> Any:
    """The parts of a worker that remote control uses."""
    app.log.already_setup = True
    consumer = SimpleNamespace(event_dispatcher=None, pool=None, gossip=None)
    return SimpleNamespace(app=app, hostname="w@test", consumer=consumer)


def command(app: Celery, name: str, *arguments: Any, **options: Any) -> None:
    """Run a command of remote control as a worker does."""
    Panel.data[name](state_of(app), *arguments, **options)
    assert commands.revoking_thread.finish(60) == 0


def by_revoke(app: Celery, ids: list[str]) -> None:
    command(app, "revoke", ids)


def by_terminate(app: Celery, ids: list[str]) -> None:
    command(app, "terminate", "TERM", ids)


def by_cancel(app: Celery, ids: list[str]) -> None:
    assert len(HeldTasks(app).cancel(HeldTasks(app).select(TaskFilter(ids=tuple(ids)))).done) == len(ids)


@pytest.mark.parametrize("revoke", [by_revoke, by_terminate, by_cancel])
def test_a_chord_fails_when_parts_of_its_header_are_revoked(app: Celery, revoke: Revoke) -> None:
    """The chord fails with the same ChordError as in stock Celery, and calls its errback."""
    send, write = app.tasks["mail.send"], app.tasks["bill.write"]
    body = write.s().on_error(app.signature("report", queue="errors", immutable=True))
    parts = chord([send.s(1).set(**FAR), send.s(2).set(**FAR)], body, app=app).apply_async()
    assert parts.parent is not None
    revoke(app, [part.id for part in parts.parent.results])
    assert [part.state for part in parts.parent.results] == ["REVOKED", "REVOKED"]
    assert parts.state == "FAILURE"
    assert isinstance(parts.result, ChordError)
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("errors").get(timeout=10)
        message.ack()
    assert message.headers["task"] == "report"


@pytest.mark.parametrize("revoke", [by_revoke, by_cancel])
def test_each_part_of_a_group_is_revoked_and_announced_once(app: Celery, revoke: Revoke) -> None:
    """The signal `task_revoked` is sent once for each task, with the request as a worker has it."""
    send = app.tasks["mail.send"]
    parts = group(send.s(number).set(**FAR) for number in (1, 2)).apply_async()
    heard: list[Any] = []

    def hear(sender: Any, request: Any, **details: Any) -> None:
        heard.append((sender.name, request.id, request.args, details["terminated"], details["expired"]))

    signals.task_revoked.connect(hear)
    try:
        revoke(app, [part.id for part in parts.results])
        by_revoke(app, [part.id for part in parts.results])  # each worker hears of it
    finally:
        signals.task_revoked.disconnect(hear)
    assert heard == [("mail.send", part.id, [number], False, False) for number, part in enumerate(parts.results, 1)]
    assert [part.state for part in parts.results] == ["REVOKED", "REVOKED"]
    assert HeldTasks(app).counts().total("due") == HeldTasks(app).counts().total("held") == 0


def test_stamps_find_what_is_held_and_nothing_else(app: Celery) -> None:
    """A revoke by stamps removes held tasks at once. A worker that starts later would not know the revoked stamps."""
    send, tasks = app.tasks["mail.send"], HeldTasks(app)
    stamped = {}
    for tenant in ("gone", ["here", "gone"], "here", 7):
        call = send.si(1)
        call.stamp(tenant=tenant)
        stamped[str(tenant)] = call.apply_async(**FAR)
    plain = send.apply_async((1,), **FAR)
    command(app, "revoke_by_stamped_headers", {"tenant": ["gone"]})
    assert sorted(waiting.id for waiting in tasks.select()) == sorted([stamped["here"].id, stamped["7"].id, plain.id])
    command(app, "revoke_by_stamped_headers", ["tenant=here"])
    command(app, "revoke_by_stamped_headers", {"tenant": "7"})  # another value than the number
    assert sorted(waiting.id for waiting in tasks.select()) == sorted([stamped["7"].id, plain.id])
    assert stamped["gone"].state == "REVOKED"


def test_a_revoked_task_waits_for_its_result_backend(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result backend is away when a task is cancelled. The store keeps the task, but never releases it. A second
    cancel removes the task."""
    tasks, result = HeldTasks(app), app.tasks["mail.send"].apply_async((1,), **FAR)

    def away(*_: Any, **__: Any) -> None:
        raise OSError("backend away")

    with monkeypatch.context() as patch:
        patch.setattr(app.backend, "mark_as_revoked", away)
        changed = tasks.cancel(tasks.get(result.id))
    assert (changed.done, "backend away" in changed.left[0][1]) == ([], True)
    (waiting,) = tasks.get(result.id)
    assert (waiting.found.state, waiting.revoked, result.state) == ("held", True, "PENDING")
    assert len(tasks.cancel(tasks.select()).done) == 1
    assert (tasks.get(result.id), result.state) == ([], "REVOKED")


def test_a_task_that_this_process_does_not_know_is_revoked_all_the_same(app: Celery) -> None:
    """`cancel` does not need the task's code. The process of the command line has often imported none of the tasks."""
    tasks, result = HeldTasks(app), app.send_task("elsewhere", (1,), **FAR)
    assert len(tasks.cancel(tasks.get(result.id)).done) == 1
    assert app.AsyncResult(result.id).state == "REVOKED"


def test_an_ignored_result_stays_ignored(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the results of a task are ignored, `cancel` stores no REVOKED for it. A worker that drops a revoked task does
    the same."""
    monkeypatch.setattr(app.tasks["mail.send"], "ignore_result", True)
    tasks, result = HeldTasks(app), app.tasks["mail.send"].apply_async((1,), **FAR)
    assert len(tasks.cancel(tasks.get(result.id)).done) == 1
    assert app.AsyncResult(result.id).state == "PENDING"
