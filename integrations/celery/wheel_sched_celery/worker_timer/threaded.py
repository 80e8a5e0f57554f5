"""`ThreadedWheelTimer`: the timer of workers without an event loop (gevent, eventlet, and transports that only block).

It is Celery's `timer2.Timer` over a `WheelTimer`. It runs in a thread, or in a greenlet under gevent and eventlet. It
differs from stock Celery in two ways:

- It waits on a condition, so a new entry that is due earlier runs on time. Stock Celery sleeps up to
  `worker_timer_precision`, and so runs such an entry late.
- In the green pools one greenlet waits for all entries. Stock Celery keeps a greenlet for each entry. Each due entry
  still runs in its own greenlet. So an entry that waits for a place in a full pool does not block heartbeats.

Threads: any thread may call any method. Callbacks run in the timer's thread, or in greenlets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from celery.utils import timer2

from wheel_sched_celery.worker_timer.timer import AT_ONCE_S, WheelTimer

GREEN_SPAWN: Final = {"gevent": "gevent:spawn", "eventlet": "eventlet:spawn_n"}  # by the name of the pool's module


class ThreadedWheelTimer(timer2.Timer):
    """Celery's threaded timer over a `WheelTimer`.

    Args:
        spawn: for green pools; starts a function with one argument in a greenlet. Defaults to None: entries run in
            the timer's own thread, one after the other.
        options: further arguments of `celery.utils.timer2.Timer`.
    """

    Schedule = WheelTimer

    def __init__(self, *, spawn: Callable[..., Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._spawn = spawn
        self._ending = threading.Event()

    def run(self) -> None:
        """Run due entries until `stop`. The timer's thread calls this."""
        self.running = True
        try:
            while not self._ending.is_set():
                entry = self.schedule.next_due(batch=self._spawn is None)
                if entry is None:
                    self._wait()
                elif self._spawn is None:
                    self.schedule.apply_entry(entry)
                else:
                    self._spawn(self.schedule.apply_entry, entry)
        finally:
            self.running = False

    def _next_entry(self) -> float | None:
        """Run an entry that is due. When none is due, return the seconds to wait."""
        entry: Any = self.schedule.next_due()
        if entry is None:
            delay_s: float | None = self.schedule.wait_s()
            return delay_s
        self.schedule.apply_entry(entry)
        return None

    __next__ = next = _next_entry

    def stop(self) -> None:
        """End the thread and wait for it. Entries that wait do not run. Idempotent; may be called before the start."""
        self._ending.set()
        with self.not_empty:
            self.not_empty.notify_all()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    def _wait(self) -> None:
        with self.not_empty:  # `enter` takes this lock too: no entry comes between `wait_s` and `wait`
            delay_s = self.schedule.wait_s()
            if self._ending.is_set() or (delay_s is not None and delay_s <= AT_ONCE_S):
                return
            if delay_s is not None and self.on_tick:
                self.on_tick(delay_s)
            self.not_empty.wait(delay_s)
