"""Ordering keys in a backup. All other cases are in the public conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wheel_sched.store import DelayStore
from wheel_sched.store.maintenance.backup import write_backup
from wheel_sched.store.maintenance.restoring import restore_backup
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.ordering import UNKNOWN_HEAD, OrderedKeys
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.testing.store_conformance import Bench
from wheel_sched.testing.store_conformance.ordering import LOCK, Parking

if TYPE_CHECKING:
    from wheel_sched.store.redis.round_trips import Dialect


@pytest.fixture(
    params=[("memory", 3), ("fake", 1), pytest.param(("real", 3), marks=pytest.mark.real)],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
)
def parking(request: pytest.FixtureRequest) -> Parking:
    """A test bench for parked messages, on each kind of store."""
    kind, shards = request.param
    if kind == "memory":
        return Parking(Bench(MemoryBackend(shards, clock="test"), shards))
    client = request.getfixturevalue("shared_fake" if kind == "fake" else "shared_client")
    dialect: Dialect = request.getfixturevalue("dialect")
    return Parking(Bench(RedisBackend(client, dialect), shards))


def test_a_backup_keeps_parked_messages(parking: Parking, tmp_path: Path) -> None:
    """After a restore, parked messages are parked again. The head of the key is unknown, so the next message that
    succeeds counts as the head."""
    parking.close("a")
    parking.park("b", "c")
    write_backup(parking.store, tmp_path / "file", namespace="n")
    for found in parking.store.list_items("held").found:
        parking.store.cancel([found.id], route=found.route)
    parking.keys.pass_by_hand([LOCK])
    assert parking.head is None
    target = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: parking.clock.now_ms).open()
    restore_backup(target, tmp_path / "file")
    keys = OrderedKeys(target)
    assert [(key.head, key.parked) for key in keys.closed()] == [(UNKNOWN_HEAD, 2)]
    keys.succeeded([(LOCK, "a")])
    assert [found.id for found in target.claim().items] == ["b.0"]
