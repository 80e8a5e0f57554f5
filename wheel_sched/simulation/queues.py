"""Queues and a thread pool of simulated threads.

They replace the classes of `queue` and `concurrent.futures` (see `substitution`). They are not thread-safe, because
only one task runs at a time, in one real thread.
"""

from __future__ import annotations

import queue as real_queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from wheel_sched.simulation.locks import timeout_ns_of
from wheel_sched.simulation.scheduler import Task, running
from wheel_sched.simulation.threads import SimulatedThread


class SimulatedSimpleQueue:
    """A simulated `queue.SimpleQueue`, or with `maxsize` above 0 a simulated `queue.Queue`."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._most = maxsize
        self._getting: deque[Task] = deque()
        self._putting: deque[Task] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self._most and not self._wait(self._putting, self._has_room, timeout if block else 0):
            raise real_queue.Full
        self._items.append(item)
        self._wake(self._getting)

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and not self._wait(self._getting, self._items.__len__, timeout if block else 0):
            raise real_queue.Empty
        item = self._items.popleft()
        self._wake(self._putting)
        return item

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def _has_room(self) -> bool:
        return len(self._items) < self._most

    @staticmethod
    def _wait(waiting: deque[Task], ready: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait until `ready` is true. Returns False if the timeout passes first."""
        scheduler = running.scheduler
        timeout_ns = timeout_ns_of(timeout_s)
        until_ns = None if timeout_ns is None else scheduler.now_ns + timeout_ns
        while not ready():
            left_ns = None if until_ns is None else until_ns - scheduler.now_ns
            if timeout_s == 0 or (left_ns is not None and left_ns <= 0):
                return False
            task = scheduler.running_task()
            waiting.append(task)
            if not scheduler.block(left_ns):
                waiting.remove(task)
        return True

    @staticmethod
    def _wake(waiting: deque[Task]) -> None:
        while waiting:
            task = waiting.popleft()
            if task.process.alive:
                running.scheduler.wake(task)
                return

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return bool(self._most) and len(self._items) >= self._most

    def qsize(self) -> int:
        return len(self._items)


class SimulatedThreadPoolExecutor:
    """A simulated `concurrent.futures.ThreadPoolExecutor`.

    It returns real futures. Callbacks of a future work, and its result can be read once it is done. A task must not
    wait for a future: that would block the real thread in which all tasks run.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._max_workers = max_workers or 4
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
        if self._idle < self._jobs.qsize() and len(self._threads) < self._max_workers:
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
