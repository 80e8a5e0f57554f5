"""Cases in which stock Celery loses or doubles tasks, in each pool: a killed worker, a visibility timeout, an outage.

There is one test for a pool of processes and one for greenlets, because workers start slowly. `test_pools` and
`test_shutdowns` run in every pool. `test_workers_lost`, `test_seen_from_outside` and `test_outages` test each case
alone, and in more detail. The simulated world `celery` kills workers and servers at every call.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import redis

if TYPE_CHECKING:
    from conftest import Stage, Stages, Worker

    from tests.servers.valkey import TemporaryServer

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(240)]

POOLS = ["prefork", "gevent"]


@pytest.mark.parametrize("pool", POOLS)
def test_what_waits_survives_and_runs_once(stages: Stages, pool: str) -> None:
    """No task of a producer with the integration or with stock Celery is lost, early or doubled, and no worker's
    prefetch count grows."""
    broker, results = stages.server(fsync="always"), stages.server()
    stage = stages.stage(server=results, broker_url=broker.tcp_url, store_url=broker.tcp_url)
    doomed, other = stage.worker(pool=pool), stage.worker(pool=pool)
    doomed.wait_ready()
    other.wait_ready()
    prefetch = _prefetch(stage, 2)
    with redis.Redis.from_url(broker.tcp_url) as queue:
        names = _hold(stage, queue, "killed")
        assert _prefetch(stage, 2) == prefetch
        doomed.kill()
        stage.bring_forward(1.5)
        stage.assert_once(names)
        names += _hold(stage, queue, "restored")
        stage.restore_all()
        assert queue.llen("celery") == 0
        stage.bring_forward(1.5)
        stage.assert_once(names)
        names += _hold(stage, queue, "away")
        _be_away_while_due(stage, broker, other)
        stage.assert_once(names)


def _hold(stage: Stage, queue: redis.Redis, what: str) -> list[str]:
    """Send tasks from both producers, and wait until all are held and none is in a worker."""
    ours, theirs = [f"{what} {i}" for i in range(20)], [f"{what} {i} of stock" for i in range(20)]
    for name in ours:
        stage.app.send_task("note", (name,), countdown=600)
    for name in theirs:
        stage.stock.send_task("note", (name,), countdown=600)
    stage.wait_held(len(ours) + len(theirs))
    stage.wait_until(lambda: not queue.hlen("unacked"), "all were acknowledged")
    return [*ours, *theirs]


def _prefetch(stage: Stage, workers: int) -> dict[str, int]:
    """The prefetch count of each worker, once this many workers have answered."""
    counts: dict[str, int] = {}

    def answered() -> bool:
        replies = stage.app.control.inspect(timeout=5, limit=workers).stats() or {}
        counts.update({name: reply["prefetch_count"] for name, reply in replies.items()})
        return len(replies) == workers

    stage.wait_until(answered, "all workers answered")
    return counts


def _be_away_while_due(stage: Stage, broker: TemporaryServer, worker: Worker) -> None:
    """Broker and store die before the tasks are due, and are back three seconds after that."""
    worker.send_all(signal.SIGSTOP)  # so that no task is sent before the broker is gone
    stage.bring_forward(1)
    broker.sigkill()
    worker.send_all(signal.SIGCONT)
    stage.wait_until(lambda: stage.past(4), "the tasks were due")
    broker.restart()
