"""Producers and workers with and without the integration in one system, and the removal of the integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu import Exchange
from wheel_sched_celery import drain

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(150)]


@pytest.mark.parametrize("workers", [("installed",), ("installed", "stock"), ("stock",)], ids="+".join)
def test_every_pairing_runs_each_task_once(stage: Stage, workers: tuple[str, ...]) -> None:
    """Some producers and workers run stock Celery. If all workers do, held tasks wait for the first worker with the
    integration."""
    for kind in workers:
        stage.worker(installed=kind == "installed").wait_ready()
    ours, theirs = [f"ours {i}" for i in range(30)], [f"theirs {i}" for i in range(30)]
    for i in range(30):
        stage.app.send_task("note", (ours[i],), countdown=3 + i * 0.02)
        stage.stock.send_task("note", (theirs[i],), countdown=3 + i * 0.02)
    if workers == ("stock",):
        stage.wait_runs(len(theirs))
        assert stage.held() == len(ours)
        stage.worker(installed=True).wait_ready()
    stage.assert_once([*ours, *theirs])


@pytest.mark.parametrize("apart", [True, False], ids=["store apart", "one server"])
def test_a_worker_with_a_shorter_horizon_takes_nothing_back(stages: Stages, apart: bool) -> None:
    """A held task reaches the worker a second before it is due, which is twice the worker's horizon.
    The task's item is mostly still in flight then, so the worker must not take the task over.
    """
    stage = stages.stage(store_url=stages.server().tcp_url if apart else None)
    stage.worker(SETTINGS='{"wheel_horizon": "500ms"}').wait_ready()
    names = [f"task {i}" for i in range(60)]
    for name in names:
        stage.app.send_task("note", (name,), countdown=600)
    stage.bring_forward(1.5)
    stage.assert_once(names)
    assert stage.store.counts().happened("accepted") == len(names)


def test_a_message_of_a_topic_exchange_returns_to_its_own_queue_alone(stage: Stage) -> None:
    """Two queues are bound to the exchange. Each queue's copy runs once, so the task runs twice and not four times."""
    stage.worker("-Q", "left").wait_ready()
    stage.worker("-Q", "right").wait_ready()
    stage.stock.send_task("note", ("wide",), queue="left", routing_key="a.b", countdown=600)
    stage.wait_held(2)
    stage.bring_forward(1.5)
    stage.wait_runs(2)
    stage.app.send_task("note", ("last",), queue="left", countdown=2.5)
    stage.assert_once(["wide", "wide", "last", "last"])


def test_a_broadcast_reaches_every_worker_once_and_is_never_held(stage: Stage) -> None:
    """Each worker has its own copy, which stays in the worker's timer."""
    for worker in [stage.worker(), stage.worker()]:
        worker.wait_ready()
    everybody = Exchange("everybody", type="fanout")
    for app in (stage.stock, stage.app):
        app.send_task(
            "note",
            ("all",),
            exchange="everybody",
            exchange_type="fanout",
            routing_key="celery",
            declare=[everybody],
            countdown=3,
        )
    assert stage.held() == 0
    stage.wait_runs(4)
    assert stage.held() == 0
    stage.assert_once(["all"] * 4)


def test_without_a_horizon_everything_is_stock(stages: Stages) -> None:
    """With `horizon=None` no task is held. Tasks that were held before are still released."""
    stage = stages.stage()
    stage.app.send_task("note", ("held before",), countdown=2.5)
    plain = stage.producer(horizon=None)
    plain.send_task("note", ("plain",), countdown=3)
    assert (stage.held(), stage.queued()) == (1, 1)
    stage.worker(SETTINGS='{"wheel_horizon": null}').wait_ready()
    stage.assert_once(["held before", "plain"])


def test_a_drain_leaves_everything_to_stock_workers(stage: Stage) -> None:
    """All held tasks are sent to the broker with their ETA, even if they are due much later."""
    names = [f"task {i}" for i in range(250)]
    for name in names[:-1]:
        stage.app.send_task("note", (name,), countdown=5)
    stage.app.send_task("note", (names[-1],), countdown=5, queue="left", routing_key="a.b")
    stage.app.send_task("note", ("far",), countdown=86_400)
    counts: list[int] = []
    drained = drain(stage.app, progress=counts.append)
    assert (drained.published, drained.kept, counts[-1]) == (len(names) + 1, {}, len(names) + 1)
    assert stage.held() == 0
    stage.worker("-Q", "celery,left", installed=False).wait_ready()
    stage.assert_once(names)
    assert drain(stage.app).published == 0


@pytest.mark.parametrize("apart", [True, False], ids=["store apart", "one server"])
def test_a_drain_beside_installed_workers_loses_nothing(stages: Stages, apart: bool) -> None:
    """Drained tasks are due in ten minutes. Workers with the integration do not take them over again: the tasks wait in
    the workers' memory."""
    stage = stages.stage(store_url=stages.server().tcp_url if apart else None)
    stage.worker().wait_ready()
    ids = {stage.app.send_task("note", countdown=600).id for _ in range(60)}
    drained = drain(stage.app)
    assert (drained.published, drained.kept) == (len(ids), {})
    stage.wait_until(lambda: _in_memory(stage) == ids, "all waited in the worker")
    counts = stage.store.counts()
    assert (counts.total("due"), counts.happened("accepted")) == (0, len(ids))


def _in_memory(stage: Stage) -> set[str]:
    replies = stage.stock.control.inspect(timeout=5, limit=1).scheduled() or {}
    return {row["request"]["id"] for rows in replies.values() for row in rows}
