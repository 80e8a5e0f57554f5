"""The store, the broker or both are away before, while and after tasks are due."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis
from wheel_sched_celery import HoldRefused

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(150)]


def test_with_the_store_away_tasks_go_the_stock_way(stages: Stages) -> None:
    """Tasks held before the outage run when the store is back. Tasks sent meanwhile wait in a worker, as in stock
    Celery."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    stage.worker().wait_ready()
    stage.app.send_task("note", ("before",), countdown=600)
    assert stage.held() == 1
    store.stop()
    stage.app.send_task("note", ("meanwhile",), countdown=3)
    stage.stock.send_task("note", ("foreign",), countdown=3)
    stage.app.send_task("again", ("again", 3, 1))
    failing = stage.app.send_task("auto", ("auto",))  # `autoretry_for`; reaches max_retries in the outage
    alone = ["again", "again", "auto", "auto", "foreign", "meanwhile"]
    runs = stage.wait_runs(len(alone))
    assert sorted(run.name for run in runs) == alone
    failing.get(timeout=60, propagate=False)
    assert failing.state == "FAILURE"
    store.restart()
    stage.wait_until(lambda: _holds(stage), "tasks are held again")
    stage.bring_forward(1.5)
    stage.wait_until(lambda: "before" in _ran(stage), "what was held before ran")
    assert sorted(_ran(stage)) == sorted(["before", *alone])


def _holds(stage: Stage) -> bool:
    stage.app.send_task("note", ("later",), countdown=600)
    return stage.held() > 1


def _ran(stage: Stage) -> list[str]:
    return [run.name for run in stage.runs() if run.name != "later"]


def test_a_connection_that_died_meanwhile_costs_nothing(stages: Stages) -> None:
    """The store's server has restarted since the last task, so the connections to it are dead. The next task is held as
    usual, also from another thread."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    app = stage.producer(on_outage="refuse")
    for _ in range(2):
        app.send_task("note", ("far",), countdown=600)
        sender = threading.Thread(target=app.send_task, args=("note", ("far",)), kwargs={"countdown": 600})
        sender.start()
        sender.join()
        store.restart()
    app.send_task("note", ("far",), countdown=600)
    assert (stage.held(), stage.queued()) == (5, 0)


def test_an_app_that_refuses_says_so_and_sends_nothing(stages: Stages) -> None:
    """The store is away. With `on_outage="refuse"` an ETA task is not sent, and the caller gets an error. A task
    without an ETA is sent."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    app = stage.producer(on_outage="refuse")
    store.stop()
    with pytest.raises(HoldRefused, match=r"not sent|in doubt"):
        app.send_task("note", ("refused",), countdown=30)
    assert stage.queued() == 0
    app.send_task("note", ("at once",))
    assert stage.queued() == 1


def test_an_outage_over_the_due_times_loses_nothing(stages: Stages) -> None:
    """Broker and store die before the tasks are due, and come back later. Each task runs once, none early.

    The servers had written everything to disk, so this does not test what `everysec` may lose. The simulated world
    `celery` has outages of the store alone and of the broker alone (invariants `lost` and `early`).
    """
    broker, results = stages.server(fsync="always"), stages.server()
    store = stages.server(fsync="always")
    stage = stages.stage(server=results, broker_url=broker.tcp_url, store_url=store.tcp_url)
    worker = stage.worker(pool="prefork").wait_ready()
    names = [f"task {i}" for i in range(100)]
    for name in names:
        stage.app.send_task("note", (name,), countdown=600)
    assert stage.held() == len(names)
    worker.send_all(signal.SIGSTOP)  # so that no task is sent before the broker is gone
    stage.bring_forward(1)
    for server in (broker, store):
        server.sigkill()
    worker.send_all(signal.SIGCONT)
    stage.wait_until(lambda: stage.past(3), "the tasks were due")
    for server in (broker, store):
        server.restart()
    stage.assert_once(names)


def test_a_worker_that_starts_before_the_store_finds_it_later(stages: Stages) -> None:
    """The worker consumes without the store, and releases held tasks once the store answers."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    stage.app.send_task("note", ("held",), countdown=2.5)
    assert stage.held() == 1
    store.stop()
    worker = stage.worker().wait_ready()
    stage.app.send_task("note", ("at once",))
    stage.wait_runs(1)
    stage.wait_until(lambda: "dispatcher_waits" in worker.log, "the worker said that it waits")
    store.restart()
    stage.assert_once(["held", "at once"])


def test_a_store_that_hangs_delays_no_immediate_task(stages: Stages) -> None:
    """ETA messages arrive while the store hangs. The worker's loop still runs, and so do revoke and inspect."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    stage.worker().wait_ready()
    stage.stock.send_task("note", ("taken over",), countdown=600)
    stage.wait_held(1)
    os.kill(store.pid, signal.SIGSTOP)
    try:
        began_s = time.time()
        for i in range(10):
            stage.stock.send_task("note", (f"far {i}",), countdown=600)
            stage.stock.send_task("note", (i,))
        stage.stock.control.revoke("no such task")
        runs = stage.wait_runs(10)
        asked_s = time.time()
        assert stage.stock.control.inspect(timeout=10, limit=1).scheduled()
        assert time.time() - asked_s < 4
    finally:
        os.kill(store.pid, signal.SIGCONT)
    assert max(run.at_s for run in runs) - began_s < 4  # each call on the store took 15 s


def test_a_store_of_another_schema_is_left_alone_and_said(stages: Stages) -> None:
    """A store with another schema is neither read nor written, and a log line says so. Tasks go to the broker."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    stage.app.send_task("note", ("held",), countdown=600)
    assert stage.held() == 1
    with redis.Redis.from_url(store.tcp_url) as client:
        schema = client.hget("{celery:0}:meta", "schema")
        assert schema is not None
        client.hset("{celery:0}:meta", "schema", 99)
        worker = stage.worker().wait_ready()
        refusing, falling_back = stage.producer(on_outage="refuse"), stage.producer()
        with pytest.raises(HoldRefused, match="has schema 99"):
            refusing.send_task("note", ("refused",), countdown=600)
        falling_back.send_task("note", ("stock",), countdown=3)
        stage.assert_once(["stock"])
        stage.wait_until(lambda: "has schema 99" in worker.log, "the worker said what is wrong")
        client.hset("{celery:0}:meta", "schema", schema)
    stage.bring_forward(1.5)
    stage.assert_once(["stock", "held"])
