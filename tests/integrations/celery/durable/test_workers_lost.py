"""Workers are killed or stopped, or compete. Each held task runs once, in any worker that is alive."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu.utils.json import loads
from wheel_sched_celery.hold.producing import record
from wheel_sched_celery.message.headers import iso_of

from wheel_sched.dispatcher.batch_size import GREATEST
from wheel_sched.errors import StoreError

if TYPE_CHECKING:
    from conftest import Stage, Stages, Worker

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(150)]


def test_a_killed_worker_takes_no_held_task_with_it(stage: Stage) -> None:
    """All tasks are held when one of two workers gets SIGKILL, with its pool. Each task runs once."""
    first, second = stage.worker(pool="prefork"), stage.worker(pool="prefork")
    first.wait_ready()
    second.wait_ready()
    names = [f"task {i}" for i in range(200)]
    for name in names:
        stage.app.send_task("note", (name,), countdown=600)
    assert stage.held() == len(names)
    first.kill()
    stage.bring_forward(1.5)
    stage.assert_once(names)


def test_what_a_killed_worker_had_in_its_timer_is_left_to_the_broker(stage: Stage) -> None:
    """Tasks within the horizon are unacknowledged, so the broker delivers them again. Held tasks run on time."""
    settings = json.dumps({"wheel_horizon": "60s"})
    first = stage.worker(SETTINGS=settings).wait_ready()
    app = stage.producer(horizon="60s")
    soon, later = [f"soon {i}" for i in range(20)], [f"later {i}" for i in range(20)]
    for name in later:
        app.send_task("note", (name,), countdown=600)
    for name in soon:
        app.send_task("note", (name,), countdown=20)
    stage.wait_until(lambda: stage.client.hlen("unacked") == len(soon), "they are in the worker's timer")
    first.kill()
    stage.worker().wait_ready()
    stage.bring_forward(1.5)
    stage.assert_once(later)
    stage.wait_until(lambda: stage.client.hlen("unacked") == len(soon), "what ran was acknowledged")
    stage.restore_all()
    stage.assert_once([*later, *soon])


def test_a_stopped_worker_neither_keeps_nor_doubles_what_is_held(stage: Stage) -> None:
    """A worker gets SIGSTOP before the tasks are due, and SIGCONT after another worker has run all of them. It runs
    none of them again."""
    stopped = stage.worker("-Q", "elsewhere").wait_ready()  # it dispatches and consumes nothing that matters here
    names = [f"task {i}" for i in range(100)]
    for name in names:
        stage.app.send_task("note", (name,), countdown=600)
    stopped.send_all(signal.SIGSTOP)
    stage.worker().wait_ready()
    stage.bring_forward(1.5)
    stage.assert_once(names)
    stopped.send_all(signal.SIGCONT)
    stage.wait_until(lambda: len(_stats(stage)) == 2, "both workers answered")
    stage.assert_once(names)


def test_dispatchers_racing_hand_over_each_task_once(stage: Stage) -> None:
    """20,000 tasks are due at once for two workers. The queue gets each task once, and the workers' counters sum up to
    20,000."""
    count = 20_000
    _park(stage, count, stage.store.now_ms() + 6_000)
    for worker in [stage.worker(), stage.worker()]:
        worker.wait_ready()
    stage.wait_until(lambda: stage.queued("parked") >= count, "all were handed over")
    rows = stage.client.lrange("parked", 0, -1)
    assert Counter(json.loads(row)["headers"]["id"] for row in rows) == Counter(f"id-{i}" for i in range(count))
    assert loads(rows[0])["headers"]["task"] == "note"
    stage.wait_until(lambda: sum(_published(stage)) == count, "both have counted")
    assert stage.held() == 0


def test_a_worker_stopped_beyond_its_lease_while_it_publishes_loses_nothing(stages: Stages) -> None:
    """A worker stops while it publishes, until its lease has ended. Another worker takes over the claimed tasks. Only
    these can be sent twice, because broker and store are two servers."""
    broker, rest = stages.server(), stages.server()
    stage = stages.stage(server=rest, broker_url=broker.tcp_url)
    count = 10_000
    first = stage.worker("-Q", "elsewhere").wait_ready()
    _park(stage, count, stage.store.now_ms() - 1)
    with redis.Redis.from_url(broker.tcp_url) as queue:
        stage.wait_until(
            lambda: queue.llen("parked") and stage.store.counts().sizes["leased"], "it has claimed a batch"
        )
        first.send_all(signal.SIGSTOP)
        counts = stage.store.counts()
        assert counts.sizes["due"], "it was stopped in the middle"
        second = stage.worker("-Q", "elsewhere").wait_ready()
        stage.wait_until(lambda: not stage.store.counts().sizes["body"], "the other one has published all")
        first.send_all(signal.SIGCONT)
        second.kill()
        _park(stage, 1, stage.store.now_ms() - 1, "last")
        stage.wait_until(lambda: queue.llen("last") == 1, "the first is at work again")
        ids = Counter(json.loads(row)["headers"]["id"] for row in queue.lrange("parked", 0, -1))
    assert len(ids) == count
    assert sum(ids.values()) - count <= GREATEST
    assert max(ids.values()) <= 2


@pytest.mark.parametrize("together", [True, False], ids=["one server", "two servers"])
def test_servers_killed_while_it_publishes_lose_nothing(stages: Stages, together: bool) -> None:
    """Broker and store die after some of the tasks were sent. On one server each task is sent once. On two servers,
    tasks of the batch that was being sent can be sent twice.
    """
    broker, rest = stages.server(fsync="always"), stages.server()
    store = broker if together else stages.server(fsync="always")
    stage = stages.stage(server=rest, broker_url=broker.tcp_url, store_url=store.tcp_url)
    count = 5_000
    worker = stage.worker("-Q", "elsewhere").wait_ready()
    with redis.Redis.from_url(broker.tcp_url) as queue:
        _stop_in_the_middle(stage, worker, queue, count)
        for server in {broker, store}:
            server.sigkill()
        worker.send_all(signal.SIGCONT)
        for server in {broker, store}:
            server.restart()
    with redis.Redis.from_url(broker.tcp_url) as queue:
        stage.wait_until(lambda: _empty(stage), "all were handed over")
        ids = Counter(json.loads(row)["headers"]["id"] for row in queue.lrange("parked", 0, -1))
    assert len(ids) == count
    assert sum(ids.values()) - count <= (0 if together else GREATEST)


def _stop_in_the_middle(stage: Stage, worker: Worker, queue: Any, count: int) -> None:
    """Stop a worker that has sent some of the tasks. If it has already sent all, try again with other tasks."""
    while True:
        queue.delete("parked")
        worker.send_all(signal.SIGSTOP)
        _park(stage, count, stage.store.now_ms() - 1)
        worker.send_all(signal.SIGCONT)
        stage.wait_until(lambda: queue.llen("parked"), "it has begun")
        worker.send_all(signal.SIGSTOP)
        if queue.llen("parked") < count:
            return
        worker.send_all(signal.SIGCONT)
        stage.wait_until(lambda: _empty(stage), "it has ended")


def _empty(stage: Stage) -> bool:
    """Whether the store can be reached and is empty."""
    try:
        return not stage.store.counts().sizes["body"]
    except StoreError:
        return False


def _park(stage: Stage, count: int, eta_ms: int, queue: str = "parked") -> None:
    """Hold this number of tasks for a queue that no worker consumes."""
    wheel: Any = stage.app.wheel
    with stage.app.producer_pool.acquire(block=True) as producer:
        message = stage.app.amqp.create_task_message("id", "note", eta=iso_of(eta_ms))
        options = {"headers": message.headers, "exchange": "", "routing_key": queue, "serializer": "json"}
        model = record(producer, message.body, {**options, **message.properties}, eta_ms)
    for at in range(0, count, 500):
        ids = [f"id-{i}" for i in range(at, min(at + 500, count))]
        wheel.schedule([wheel.item_of(replace(model, task_id=i, headers={**model.headers, "id": i})) for i in ids])


def test_children_forked_beside_a_busy_dispatcher_never_hang(stage: Stage) -> None:
    """The pool forks a child for each task while the dispatcher's threads work. Each child sends a retry itself."""
    stage.worker("--max-tasks-per-child", "1", pool="prefork").wait_ready()
    names = [f"task {i}" for i in range(8)]
    for i, name in enumerate(names):
        stage.app.send_task("again", (name, 2.5, 1), countdown=2.2 + i * 0.02)
    runs = stage.wait_runs(2 * len(names))
    assert Counter((run.name, run.retries) for run in runs) == Counter((name, n) for name in names for n in (0, 1))
    assert len({run.pid for run in runs}) > len(names)


def _stats(stage: Stage) -> dict[str, Any]:
    replies = stage.app.control.broadcast("wheel_stats", reply=True, timeout=2)
    return {name: reply for answer in replies or [] for name, reply in answer.items()}


def _published(stage: Stage) -> list[int]:
    return [reply["dispatcher"].get("published", 0) for reply in _stats(stage).values()]
