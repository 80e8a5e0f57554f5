"""Revokes reach a worker while the store does not answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker import state as worker_state
from celery.worker.control import Panel
from wheel_sched_celery import HeldTasks
from wheel_sched_celery.remote_control import commands

from wheel_sched.errors import StoreUnavailable

if TYPE_CHECKING:
    import pytest
    from conftest import InstalledApp


def test_only_the_first_revoke_waits_for_a_store_that_hangs(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three revokes arrive while the store hangs, and only the first asks the store. When the store is back, the next
    revoke removes the held task."""
    asked: list[str] = []
    find = installed.store.find

    def hangs(ref: str, **_: Any) -> list[str]:
        asked.append(ref)
        raise StoreUnavailable("no answer from the server (Timeout reading from socket)")

    installed.app.log.already_setup = True
    consumer = SimpleNamespace(event_dispatcher=None, pool=None, gossip=None)
    state = SimpleNamespace(app=installed.app, hostname="w@test", consumer=consumer)
    task_id = installed.send(countdown=60).id
    monkeypatch.setattr(installed.store, "find", hangs)
    try:
        for _ in range(3):
            Panel.data["revoke"](state, task_id)
        assert commands.revoking_thread.finish(60) == 0
        assert len(asked) == 1
        assert caplog.text.count("celery.not_cancelled") == 3
        monkeypatch.setattr(installed.store, "find", find)
        installed.wheel._away_until_s = 0.0
        Panel.data["revoke"](state, task_id)
        assert commands.revoking_thread.finish(60) == 0
    finally:
        worker_state.revoked.discard(task_id)
    assert list(HeldTasks(installed.app).select()) == []


def test_a_worker_that_stops_does_not_wait_for_a_queue_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker stops. Revokes that have not begun in time are dropped, and the log has their number."""
    monkeypatch.setattr(commands, "STOP_S", 0.01)
    begun, over = threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        over.wait(60)

    commands.revoking_thread.submit(hangs)
    assert begun.wait(60)
    for _ in range(40):
        commands.revoking_thread.submit(int)
    signals.worker_shutdown.send(sender=None)
    over.set()
    assert "celery.not_cancelled: 40 revokes, because this worker stops" in caplog.text
    assert commands.revoking_thread.finish(60) == 0
