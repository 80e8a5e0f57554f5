"""`TakeoverStep`: the worker's bootstep that wraps its consumer's strategies, so that it can store ETA messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import bootsteps

from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.takeover.store_calls import StoreClock
from wheel_sched_celery.takeover.takeover import Strategy, Takeover
from wheel_sched_celery.wheel import wheel_of


class Strategies(dict[str, Strategy]):
    """A consumer's strategies, which handle the messages of a task, by task name.

    Wraps each strategy that Celery adds, also when Celery loads tasks again later.
    """

    def __init__(self, takeover: Takeover, strategies: Iterable[tuple[str, Strategy]]) -> None:
        super().__init__()
        self._takeover = takeover
        for name, strategy in strategies:
            self[name] = strategy

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        super().__setitem__(name, self._takeover.wrap(strategy))


class TakeoverStep(bootsteps.StartStopStep):
    """Wraps the strategies of a consumer at each connect (see `Takeover.wrap`), after Celery has made them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self._takeover: Takeover | None = None
        self._clock: StoreClock | None = None
        super().__init__(c, **kwargs)

    def include_if(self, c: Any) -> bool:
        wheel = wheel_of(c.app)
        return wheel is not None and wheel.settings.holds and wheel.settings.takeover

    def start(self, c: Any) -> None:
        wheel = c.app.wheel
        if self._clock is None:
            preload(wheel)
            self._clock = StoreClock(wheel)
        self._takeover = Takeover(wheel, c, self._clock)
        c.strategies = Strategies(self._takeover, c.strategies.items())

    def stop(self, c: Any) -> None:
        takeover, self._takeover = self._takeover, None
        if takeover is not None:
            takeover.end()
            c.strategies = {}  # Celery makes new ones before the next start

    terminate = stop
    shutdown = stop
