"""Deterministic threads: every thread of a simulated process is a task of the scheduler.

The classes of this module replace those of `threading`, `queue` and `concurrent.futures` (`substitution`). A thread
runs until it waits: for a lock, a condition, an event, a queue, a sleep, or a call to a server. They are not
thread-safe: only one task runs at a time, in one real thread.
"""

from __future__ import annotations

import queue as real_queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from wheel_sched.simulation.scheduler import Task, running


def _timeout_ns(timeout_s: float | None) -> int | None:
    """A timeout of the calling process as true time. A wait takes a microsecond more than asked, and never less."""
    if timeout_s is None:
        return None
    timeout_ns = int(max(0.0, timeout_s) * 1e9)
    drift = running.scheduler.process.drift_ppm
    return timeout_ns + 1_000 - (timeout_ns * drift // 1_000_000 if drift else 0)


class SimulatedLock:
    """As `threading.Lock`."""

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
        until_ns = None if timeout < 0 else scheduler.now_ns + (_timeout_ns(timeout) or 0)
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
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedRLock:
    """As `threading.RLock`."""

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
    """As `threading.Condition`."""

    def __init__(self, lock: Any = None) -> None:
        self._lock: Any = SimulatedRLock() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = running.scheduler
        task = scheduler.running_task()
        self._waiting.append(task)
        reentrant = isinstance(self._lock, SimulatedRLock)
        saved = self._lock._release_save() if reentrant else self._lock.release()
        notified = scheduler.block(_timeout_ns(timeout))
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
    """As `threading.Event`."""

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
        if not scheduler.block(_timeout_ns(timeout)) and task in self._waiting:
            self._waiting.remove(task)
        return self._flag


class SimulatedSemaphore:
    """As `threading.Semaphore`."""

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


class SimulatedThread:
    """As `threading.Thread`. It belongs to the process of the task that starts it."""

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
    """As `threading.Timer`."""

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
    """The thread of code that no task runs."""

    name = "MainThread"
    ident = 1
    daemon = False

    def is_alive(self) -> bool:
        return True


_outside = _Outside()


def current_thread() -> Any:
    """As `threading.current_thread`."""
    task = running.scheduler.current
    if task is None:
        return _outside
    return task if task.thread is None else task.thread


def get_ident() -> int:
    """As `threading.get_ident`."""
    task = running.scheduler.current
    return 1 if task is None else id(task)


class SimulatedLocal:
    """As `threading.local`."""

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


class SimulatedSimpleQueue:
    """As `queue.SimpleQueue` and, with a size, as `queue.Queue`."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._most = maxsize
        self._changed = SimulatedCondition(SimulatedLock())

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._changed:
            if self._most and not self._changed.wait_for(
                lambda: len(self._items) < self._most, timeout if block else 0
            ):
                raise real_queue.Full
            self._items.append(item)
            self._changed.notify_all() if self._most else self._changed.notify()

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self._items and not self._most:
            return self._items.popleft()
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout if block else 0):
                raise real_queue.Empty
            item = self._items.popleft()
            if self._most:
                self._changed.notify_all()
            return item

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return bool(self._most) and len(self._items) >= self._most

    def qsize(self) -> int:
        return len(self._items)


class SimulatedThreadPoolExecutor:
    """As `concurrent.futures.ThreadPoolExecutor`; a future is only good for its callbacks and its result when done."""

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._most = max_workers or 4
        self._prefix = thread_name_prefix or "pool"
        self._jobs: SimulatedSimpleQueue = SimulatedSimpleQueue()
        self._threads: list[SimulatedThread] = []
        self._idle = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._jobs.put((future, function, args, kwargs))
        if self._idle < self._jobs.qsize() and len(self._threads) < self._most:
            thread = SimulatedThread(target=self._work, name=f"{self._prefix}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _work(self) -> None:
        while True:
            self._idle += 1
            job = self._jobs.get()
            self._idle -= 1
            if job is None:
                self._jobs.put(None)
                return
            future, function, args, kwargs = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            while self._jobs.qsize():
                job = self._jobs.get_nowait()
                if job is not None:
                    job[0].cancel()
        self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
