"""Locks, conditions, events and semaphores whose waiting threads are tasks of the scheduler.

These classes replace those of `threading` (see `substitution`). They are not thread-safe: only one task runs at a time,
in one real thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from wheel_sched.simulation.scheduler import Task, running


def timeout_ns_of(timeout_s: float | None) -> int | None:
    """Convert a timeout, in seconds of the calling process's clock, to ns of virtual time. None: no timeout.

    The function adds a microsecond, so that rounding makes no wait too short. The conversion is only approximate: if
    the clock drifts by 1 %, a wait can still be too short by 0.01 % of its timeout.
    """
    if timeout_s is None:
        return None
    timeout_ns = int(timeout_s * 1e9) if timeout_s > 0 else 0
    drift = running.scheduler.running_task().process.drift_ppm
    return timeout_ns + 1_000 - (timeout_ns * drift // 1_000_000 if drift else 0)


class SimulatedLock:
    """A simulated `threading.Lock`."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        scheduler = running.scheduler
        until_ns = None if timeout < 0 else scheduler.now_ns + (timeout_ns_of(timeout) or 0)
        while self._held:
            left_ns = None if until_ns is None else until_ns - scheduler.now_ns
            if left_ns is not None and left_ns <= 0:
                return False
            task = scheduler.running_task()
            self._waiting.append(task)
            if not scheduler.block(left_ns):
                self._waiting.remove(task)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        while self._waiting:
            task = self._waiting.popleft()
            if task.process.alive:
                running.scheduler.wake(task)
                return

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        if self._held:
            return self.acquire()
        self._held = True
        return True

    def __exit__(self, *_: object) -> None:
        if self._waiting:
            self.release()
        else:
            self._held = False


class SimulatedRLock:
    """A simulated `threading.RLock`."""

    def __init__(self) -> None:
        self._lock = SimulatedLock()
        self._owner: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = running.scheduler.current
        if self._count and self._owner is me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if not self._count or self._owner is not running.scheduler.current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner is running.scheduler.current

    def _release_save(self) -> tuple[int, Task | None]:
        saved = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, Task | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved


class SimulatedCondition:
    """A simulated `threading.Condition`."""

    def __init__(self, lock: Any = None) -> None:
        self._lock: Any = SimulatedRLock() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = running.scheduler
        task = scheduler.running_task()
        self._waiting.append(task)
        reentrant = isinstance(self._lock, SimulatedRLock)
        saved = self._lock._release_save() if reentrant else self._lock.release()
        notified = scheduler.block(timeout_ns_of(timeout))
        if not notified and task in self._waiting:
            self._waiting.remove(task)
        if reentrant:
            self._lock._acquire_restore(saved)
        else:
            self._lock.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        scheduler = running.scheduler
        until_ns = None if timeout is None else scheduler.monotonic_ns() + int(timeout * 1e9)
        result = predicate()
        while not result:
            left_s = None if until_ns is None else (until_ns - scheduler.monotonic_ns()) / 1e9
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiting:
            task = self._waiting.pop(0)
            if task.process.alive:
                running.scheduler.wake(task)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimulatedEvent:
    """A simulated `threading.Event`."""

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            running.scheduler.wake(task)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._flag:
            return True
        scheduler = running.scheduler
        task = scheduler.running_task()
        self._waiting.append(task)
        if not scheduler.block(timeout_ns_of(timeout)) and task in self._waiting:
            self._waiting.remove(task)
        return self._flag


class SimulatedSemaphore:
    """A simulated `threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._changed = SimulatedCondition(SimulatedLock())
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: self._value > 0, timeout if blocking else 0):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._changed:
            self._value += n
            self._changed.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
