"""Deterministic threads: every thread of a simulated process is a task of the scheduler.

The classes of this module replace those of `threading` (see `substitution`). A thread runs until it waits for a lock,
a condition, an event, a queue, a sleep, or a call to a server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wheel_sched.simulation.locks import SimulatedEvent
from wheel_sched.simulation.scheduler import Task, running


class SimulatedThread:
    """A simulated `threading.Thread`. It belongs to the process of the task that starts it."""

    _count = 0

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._task: Task | None = None
        self._over = SimulatedEvent()

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        scheduler = running.scheduler
        self._task = task = scheduler.spawn(scheduler.process, self.name, self._run)
        task.thread = self

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._over.set()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and self._task.process.alive and not self._over.is_set()

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    native_id = ident


class SimulatedTimer(SimulatedThread):
    """A simulated `threading.Timer`."""

    def __init__(
        self,
        interval: float,
        function: Callable[..., object],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(target=function, args=args, kwargs=kwargs)
        self._interval = interval
        self._finished = SimulatedEvent()

    def cancel(self) -> None:
        self._finished.set()

    def run(self) -> None:
        if not self._finished.wait(self._interval):
            super().run()
        self._finished.set()


class _Outside:
    """What `current_thread` returns when no task runs: a main thread."""

    name = "MainThread"
    ident = 1
    daemon = False

    def is_alive(self) -> bool:
        return True


_outside = _Outside()


def current_thread() -> Any:
    """A simulated `threading.current_thread`."""
    task = running.scheduler.current
    if task is None:
        return _outside
    return task if task.thread is None else task.thread


def get_ident() -> int:
    """A simulated `threading.get_ident`."""
    task = running.scheduler.current
    return 1 if task is None else id(task)


class SimulatedLocal:
    """A simulated `threading.local`."""

    def __init__(self) -> None:
        object.__setattr__(self, "_of", {})

    def _mine(self) -> dict[str, Any]:
        found: dict[str, Any] = object.__getattribute__(self, "_of").setdefault(running.scheduler.current, {})
        return found

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return object.__getattribute__(self, "_mine")()
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None
