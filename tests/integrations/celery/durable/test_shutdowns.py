"""Warm, soft and cold shutdown with held and in-horizon tasks: the next worker runs each of them once."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

SOFT = {"worker_soft_shutdown_timeout": 1.0, "worker_enable_soft_shutdown_on_idle": True}
HORIZON = "6s"  # wide, so that the worker is down long before what waits in its timer is due


@pytest.mark.parametrize(
    ("number", "settings"),
    [(signal.SIGTERM, {}), (signal.SIGQUIT, {}), (signal.SIGQUIT, SOFT)],
    ids=["warm", "cold", "soft"],
)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_nothing_is_lost_or_doubled(stage: Stage, pool: str, number: signal.Signals, settings: dict[str, Any]) -> None:
    """Tasks within the horizon are in the worker's timer when it is told to stop, the others in the store."""
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
