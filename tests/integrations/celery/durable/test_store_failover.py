"""The store's primary dies, and a replica is promoted. No acknowledged task is lost, and all run once, on time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis
from redis.sentinel import Sentinel

from tests.servers.topologies import temporary_sentinel
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import StoreError

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(180)]


class Pair(NamedTuple):
    """A primary, its replica, and the port of the Sentinel that watches both."""

    primary: TemporaryServer
    replica: TemporaryServer
    sentinel: int


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(temporary_server(tcp=True))
        replica = stack.enter_context(temporary_server(tcp=True, replica_of=primary))
        yield Pair(primary, replica, stack.enter_context(temporary_sentinel(primary, tmp_path)))


def test_a_promoted_replica_has_all_and_every_task_runs_once(stages: Stages, pair: Pair) -> None:
    """Producer and worker find the new primary by themselves. The replica had confirmed each hold."""
    watcher = Sentinel([("127.0.0.1", pair.sentinel)])
    place: Any = watcher.master_for("main", socket_timeout=5, socket_connect_timeout=5)
    stage = stages.stage(store=place)
    stage.worker(STORE=f"sentinel:{pair.sentinel}:main", SETTINGS='{"wheel_durability": "replicated"}').wait_ready()
    app = stage.producer(durability="replicated")
    ours, theirs = [f"ours {i}" for i in range(50)], [f"theirs {i}" for i in range(20)]
    for name in ours:
        app.send_task("note", (name,), countdown=600)
    for name in theirs:
        stage.stock.send_task("note", (name,), countdown=600)
    stage.wait_held(len(ours) + len(theirs))
    with redis.Redis(port=pair.sentinel) as sentinel:
        stage.wait_until(lambda: _known_replicas(sentinel) == [pair.replica.port], "the Sentinel knows the replica")
        pair.primary.sigkill()
        sentinel.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", 200)
        stage.wait_until(lambda: _primary(sentinel) == pair.replica.port, "the replica was promoted")
    stage.wait_until(lambda: _held(stage) == len(ours) + len(theirs), "nothing is missing")
    stage.bring_forward(1.5)
    stage.assert_once([*ours, *theirs])
    app.send_task("note", ("after",), countdown=2.5)
    stage.assert_once([*ours, *theirs, "after"])
    watcher.sentinels[0].close()
    place.close()


def test_no_occurrence_of_beat_is_lost_with_the_primary(stages: Stages, pair: Pair) -> None:
    """The replica had confirmed each tick. Broker and store are two servers here, so a message may be published again
    when the primary dies between the publish and its record: then it has the same id."""
    watcher = Sentinel([("127.0.0.1", pair.sentinel)])
    place: Any = watcher.master_for("main", socket_timeout=5, socket_connect_timeout=5)
    stage = stages.stage(store=place)
    every_s = 0.5
    schedule = {"tick": {"task": "tick", "schedule": every_s, "catch_up": "all", "catch_up_limit": 1000}}
    settings = {"wheel_durability": "replicated", "wheel_beat": True, "beat_schedule": schedule}
    stage.worker(STORE=f"sentinel:{pair.sentinel}:main", SETTINGS=json.dumps(settings)).wait_ready()
    stage.wait_runs(4)
    with redis.Redis(port=pair.sentinel) as sentinel:
        stage.wait_until(lambda: _known_replicas(sentinel) == [pair.replica.port], "the Sentinel knows the replica")
        pair.primary.sigkill()
        sentinel.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", 200)
        stage.wait_until(lambda: _primary(sentinel) == pair.replica.port, "the replica was promoted")
    stage.wait_runs(len(stage.runs()) + 12)
    ids: dict[int, set[str]] = {}
    for due, task_id in (run.name for run in stage.runs()):
        ids.setdefault(stage.ms_of(due), set()).add(task_id)
    dues = sorted(ids)
    assert [later - due for due, later in pairwise(dues) if later - due != every_s * 1000] == []
    assert [due for due in dues if len(ids[due]) > 1] == []
    watcher.sentinels[0].close()
    place.close()


def _known_replicas(sentinel: Any) -> list[int]:
    return [int(each["port"]) for each in sentinel.sentinel_slaves("main")]


def _primary(sentinel: Any) -> int:
    return int(sentinel.sentinel_get_master_addr_by_name("main")[1])


def _held(stage: Stage) -> int | None:
    """The number of held tasks; None while the new primary cannot be reached."""
    try:
        return stage.held()
    except StoreError:
        return None
