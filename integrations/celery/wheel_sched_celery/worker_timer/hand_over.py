"""`HandOverStep`: a task that falls due goes to an idle pool process at once, and not behind the sockets.

A turn of the worker's event loop runs the timers, then reads what has come on every socket (a message of Redis costs a
round trip), and writes to the pool's processes last. So a due task would wait for the messages of tasks that are due a
second later. The step does the pool's writes of the turn between the two, by the pool's own functions.

Other pools than prefork run due tasks without the loop's help, and are left alone.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.concurrency.asynpool import AsynPool

from wheel_sched_celery.wheel import wheel_of


class HandOverStep(bootsteps.StartStopStep):
    """Writes to idle pool processes before the loop looks at its sockets."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, w: Any, **kwargs: Any) -> None:
        self._worker = w
        self._hub: Any = None
        super().__init__(w, **kwargs)

    def include_if(self, w: Any) -> bool:
        """Not where `install` was told to leave everything to stock (`horizon=None`)."""
        wheel = wheel_of(w.app)
        return bool(w.use_eventloop) and (wheel is None or wheel.settings.horizon is not None)

    def create(self, w: Any) -> HandOverStep:
        return self

    def start(self, w: Any) -> None:
        """Nothing: the event loop is not there yet."""

    def stop(self, w: Any) -> None:
        if self._hub is not None:
            self._hub.on_tick.discard(self.hand_over)

    terminate = stop

    def register_with_event_loop(self, w: Any, hub: Any) -> None:
        """At each (re)connect; Celery calls it."""
        self._hub = hub
        hub.on_tick.add(self.hand_over)  # a set

    def hand_over(self) -> None:
        """Write what waits for a process to those that are idle; they take it as if the poller had named them."""
        pool, hub = getattr(self._worker.pool, "_pool", None), self._hub
        if not (isinstance(pool, AsynPool) and pool.outbound_buffer):
            return
        pool.on_poll_start()  # registers the processes that may be written to
        idle = [fd for fd in hub.consolidate if hub.writers.get(fd) is None]
        if idle:
            hub.consolidate_callback(idle)
