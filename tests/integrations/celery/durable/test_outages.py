"""Store and broker away, before, while and after tasks are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from wheel_sched_celery import HoldRefused

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]


def test_with_the_store_away_tasks_go_the_stock_way(stages: Stages) -> None:
    """What was held before runs after the store is back; what is sent meanwhile waits in a worker as ever."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    stage.worker().wait_ready()
    stage.app.send_task("note", ("before",), countdown=4)
    assert stage.held() == 1
    store.stop()
    stage.app.send_task("note", ("meanwhile",), countdown=3)
    stage.stock.send_task("note", ("foreign",), countdown=3)
    stage.app.send_task("again", ("again", 3, 1))
    runs = stage.wait_runs(4)
    assert sorted(run.name for run in runs) == ["again", "again", "foreign", "meanwhile"]
    store.restart()
    stage.assert_once(["meanwhile", "foreign", "again", "again", "before"])
    stage.wait_until(lambda: _holds(stage), "tasks are held again")


def _holds(stage: Stage) -> bool:
    stage.app.send_task("note", ("later",), countdown=600)
    return stage.held() > 0


def test_an_app_that_refuses_says_so_and_sends_nothing(stages: Stages) -> None:
    """`on_outage="refuse"`: an error that callers catch for a broker that is away."""
    store = stages.server()
    stage = stages.stage(store_url=store.tcp_url)
    app = stage.producer(on_outage="refuse")
    store.stop()
    with pytest.raises(HoldRefused, match="was not sent"):
        app.send_task("note", ("refused",), countdown=30)
    assert stage.queued() == 0
    app.send_task("note", ("at once",))
    assert stage.queued() == 1


@pytest.mark.parametrize("together", [True, False], ids=["one server", "two servers"])
def test_a_broker_outage_over_the_due_times_loses_nothing(stages: Stages, together: bool) -> None:
    """The broker is down from before the tasks are due until after; each runs once, none early."""
    broker, results = stages.server(), stages.server()
    store_url = broker.tcp_url if together else results.tcp_url
    stage = stages.stage(server=results, broker_url=broker.tcp_url, store_url=store_url)
    stage.worker(pool="prefork").wait_ready()
    names = [f"task {i}" for i in range(100)]
    for i, name in enumerate(names):
        stage.app.send_task("note", (name,), countdown=2.5 + i * 0.01)
    if not together:
        stage.wait_until(lambda: stage.held() == len(names), "all were held")
    broker.stop()
    stage.wait_until(lambda: stage.server.alive and _past(stage, 4), "the tasks were due")
    broker.restart()
    stage.assert_once(names)


def _past(stage: Stage, seconds: float) -> bool:
    """Whether so much time has gone since this was first asked, by the clock of the results' server."""
    now_s, micros = stage.client.time()
    start = stage.client.set(f"{stage.list}-start", now_s + micros / 1e6, nx=True, get=True)
    return start is not None and now_s + micros / 1e6 - float(start) >= seconds


def test_a_worker_that_starts_before_the_store_finds_it_later(stages: Stages) -> None:
    """It consumes meanwhile, and releases what is held once the store is there."""
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
