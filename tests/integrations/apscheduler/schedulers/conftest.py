"""Fixtures: our schedulers over each jobstore that needs no server, and a recorder of a scheduler's events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import pytest
from apscheduler.events import EVENT_ALL
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.base import STATE_STOPPED
from wheel_sched_apscheduler import WheelBackgroundScheduler, WheelJobStore

PATIENCE_S = 30.0


class Witness:
    """Records the events of a scheduler. `wait` returns when `count` events of a kind have arrived."""

    def __init__(self, scheduler: Any, mask: int = EVENT_ALL) -> None:
        self.events: list[Any] = []
        self._changed = threading.Condition()
        scheduler.add_listener(self._note, mask)

    def _note(self, event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, code: int) -> list[Any]:
        with self._changed:
            return [event for event in self.events if event.code & code]

    def ids(self, code: int) -> list[str]:
        return [event.job_id for event in self.of(code)]

    def wait(self, code: int, count: int = 1) -> list[Any]:
        with self._changed:
            came = self._changed.wait_for(
                lambda: sum(bool(event.code & code) for event in self.events) >= count, PATIENCE_S
            )
        assert came, f"waited in vain for {count} events of {code}: {self.events}"
        return self.of(code)


Make = Callable[..., WheelBackgroundScheduler]


@pytest.fixture(params=["memory", "wheel"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """The class of a jobstore in memory: APScheduler's or ours. Both accept jobs with any callable, such as a
    lambda."""
    return {"memory": MemoryJobStore, "wheel": WheelJobStore}[request.param]


@pytest.fixture
def make(make_store: Callable[[], Any]) -> Iterator[Make]:
    """Makes background schedulers and starts them. Each is shut down at the end of the test."""
    made: list[WheelBackgroundScheduler] = []

    def factory(paused: bool = False, **options: Any) -> WheelBackgroundScheduler:
        options = {"jobstores": {"default": make_store()}, "timezone": UTC, **options}
        scheduler = WheelBackgroundScheduler(**options)
        made.append(scheduler)
        scheduler.start(paused=paused)
        return scheduler

    yield factory
    for scheduler in made:
        if scheduler.state != STATE_STOPPED and not scheduler.closing:
            scheduler.shutdown()


@pytest.fixture
def witness_of() -> type[Witness]:
    """`witness_of(scheduler, mask)` records the scheduler's events."""
    return Witness
