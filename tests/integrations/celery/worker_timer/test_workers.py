"""The worker's timers that use the timing wheel, in real workers of every pool, without a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TIMERS = {
    "solo": "WheelTimer",
    "threads": "WheelTimer",
    "prefork": "WheelTimer",
    "gevent": "ThreadedWheelTimer",
    "eventlet": "ThreadedWheelTimer",
}


@pytest.mark.parametrize("pool", TIMERS)
def test_eta_tasks_run_once_and_never_early_in_every_pool(pool: str, timed_worker: Callable[..., Any]) -> None:
    """Fifty tasks are due at one instant and fifty at different ones. All reach the worker before they are due."""
    worker = timed_worker(pool)
    assert worker.timers() == {TIMERS[pool]}
    start_s = time.time() + 1.5
    worker.send_all([(number, start_s if number < 50 else start_s + 0.01 * number) for number in range(100)])
    worker.wait_for("100 tasks", lambda: len(worker.ran()) >= 100)
    ran = worker.ran()
    assert sorted(number for number, _ in ran) == list(range(100))
    assert min(late_s for _, late_s in ran) >= 0


def test_a_burst_does_not_put_the_solo_pool_to_sleep(timed_worker: Callable[..., Any]) -> None:
    """With kombu's timer a worker runs ten entries and then polls for a second, so 400 would take 20 s or more.
    `test_timer` counts the turns of the loop. Here the tasks only have to run.
    """
    worker = timed_worker("solo")
    worker.timers()
    start_s = time.time() + 2
    worker.send_all([(number, start_s) for number in range(400)])
    worker.wait_for("400 tasks", lambda: len(worker.ran()) >= 400)
    assert min(late_s for _, late_s in worker.ran()) >= 0


def test_a_transport_without_an_event_loop_gets_the_threaded_timer(
    timed_worker: Callable[..., Any], tmp_path: Path
) -> None:
    """A filesystem transport has no event loop. ETA tasks run once with it too, and none early."""
    folder = tmp_path / "queues"
    folder.mkdir()
    worker = timed_worker("solo", folder=folder)
    assert worker.timers() == {"ThreadedWheelTimer"}
    start_s = time.time() + 1
    worker.send_all([(number, start_s) for number in range(5)])
    worker.wait_for("5 tasks", lambda: len(worker.ran()) >= 5)
    ran = worker.ran()
    assert sorted(number for number, _ in ran) == list(range(5))
    assert min(late_s for _, late_s in ran) >= 0


def test_inspect_scheduled_shows_what_waits_in_the_wheel(timed_worker: Callable[..., Any]) -> None:
    """`inspect scheduled` shows the tasks in the timer in the form of stock Celery, because it reads the timer's
    queue."""
    worker = timed_worker("threads")
    worker.timers()
    worker.send(1, time.time() + 3600)
    inspect = worker.app.control.inspect(timeout=5, destination=[f"{worker.queue}@here"])
    shown = worker.wait_for(
        "the scheduled task", lambda: [row for rows in (inspect.scheduled() or {}).values() for row in rows]
    )
    assert shown[0]["priority"] == 6
    assert shown[0]["request"]["name"] == "note"
    worker.send(2, time.time() + 0.2)
    worker.wait_for("the task that is due", worker.ran)
    assert [number for number, _ in worker.ran()] == [2]
