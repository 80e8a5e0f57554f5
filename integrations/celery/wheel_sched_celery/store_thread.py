"""The worker's thread for calls on the store. The worker's loop waits at most `PATIENCE_S` for an answer.

The thread starts with the first job. So it does not run yet when the worker forks its first processes.

Threads: any thread may call any method. Jobs run in the thread of this module.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from wheel_sched.errors import StoreUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("wheel_sched.celery")

T = TypeVar("T")

PATIENCE_S: Final = 1.0  # how long the loop waits for an answer; Celery's `inspect` waits as long
STUCK_S: Final = 0.5  # after this time a call counts as stuck, and other calls do not wait for it


class StoreThread:
    """Runs jobs in one thread, one after the other.

    Args:
        name: the name of the thread. Defaults to "wheel-sched-celery-store".
    """

    def __init__(self, name: str = "wheel-sched-celery-store") -> None:
        self._name = name
        self._jobs: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None  # when the running job began

    @property
    def stuck(self) -> bool:
        """Whether the running job takes so long that a new one would have to wait."""
        since_s = self._since_s
        return since_s is not None and time.monotonic() - since_s > STUCK_S

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job` in the thread, after all earlier jobs. Does not wait."""
        self.start()
        self._jobs.put(job)

    def start(self) -> None:
        """Start the thread. Idempotent."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def ask(self, question: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """Run `question` in the thread, and wait at most `patience_s`. Returns its result, or raises its error.

        Raises:
            StoreUnavailable: there is no answer in time, or the thread is stuck. A stuck thread gets no question, and
                the caller does not wait. A question that has begun is not stopped.
        """
        if self.stuck:
            raise StoreUnavailable("the delay store has not answered for a while: nothing was sent to it")
        future: Future[T] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question())
                except BaseException as error:
                    future.set_exception(error)

        self.submit(job)
        try:
            return future.result(patience_s)
        except TimeoutError as error:
            if future.cancel():
                raise StoreUnavailable("the delay store is slow: nothing was sent to it") from error
            raise StoreUnavailable(
                f"the delay store has not answered within {patience_s:g} s: the call may still be done",
                in_doubt=True,
            ) from error

    def finish(self, patience_s: float) -> int:
        """Wait up to `patience_s` for all jobs. Then drop the jobs that have not begun, and return their number.

        A job that runs longer ends with the process.
        """
        done = threading.Event()
        self.submit(done.set)
        if done.wait(patience_s):
            return 0
        dropped = -1  # `done.set` does not count
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
                dropped += 1
        return max(0, dropped)

    def step(self, *, wait: bool = True) -> bool:
        """Run the next job in the calling thread. Returns False if no job waits and `wait` is False, else True."""
        try:
            job = self._jobs.get(wait)
        except queue.Empty:
            return False
        self._since_s = time.monotonic()
        try:
            job()
        except Exception:  # the thread must survive
            logger.exception("celery.store_thread")
        self._since_s = None
        return True

    def _work(self) -> None:
        while True:
            self.step()
