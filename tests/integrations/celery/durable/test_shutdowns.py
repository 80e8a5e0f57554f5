"""Warm, soft and cold shutdown of a worker. The next worker runs each task once, held or within the horizon."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(150)]

SOFT = {"worker_soft_shutdown_timeout": 1.0, "worker_enable_soft_shutdown_on_idle": True}
HORIZON = "6s"  # wide, so that the worker is down long before what waits in its timer is due


WAYS: dict[str, tuple[signal.Signals, dict[str, Any]]] = {
    "warm": (signal.SIGTERM, {}),
    "cold": (signal.SIGQUIT, {}),
    "soft": (signal.SIGQUIT, SOFT),
}
CASES = [(pool, way) for pool in ("prefork", "threads") for way in WAYS]
CASES += [(pool, "warm") for pool in ("solo", "gevent", "eventlet")]


@pytest.mark.parametrize(("pool", "way"), CASES)
def test_nothing_is_lost_or_doubled(stage: Stage, pool: str, way: str) -> None:
    """At the shutdown, tasks within the horizon are in the worker's timer, and all others in the store. The next worker
    runs each task once."""
    number, settings = WAYS[way]
    worker = stage.worker(pool=pool, SETTINGS=json.dumps({**settings, "wheel_horizon": HORIZON})).wait_ready()
    app = stage.producer(horizon=HORIZON)
    soon, later = [f"soon {i}" for i in range(6)], [f"later {i}" for i in range(50)]
    for name in later:
        app.send_task("note", (name,), countdown=600)
    for name in soon:
        app.send_task("note", (name,), countdown=5)
    worker.send(number)
    worker.wait_ended()
    stage.worker(pool=pool).wait_ready()
    stage.bring_forward(1.5)
    stage.assert_once([*soon, *later])
