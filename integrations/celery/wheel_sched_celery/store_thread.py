"""The thread of a worker that talks to the store: the worker's loop has heartbeats, messages and tasks to see to, and
never waits for a store that hangs. Nor does a worker that stops wait for it longer than it says.

`submit` hands work over; `ask` waits for an answer, not for long, and not at all while the thread is stuck in a call;
`finish` waits for all work, and drops what has not begun in time.
The thread starts with the first work, so that nothing is forked beside it before the worker consumes.

Threads: any; one of its own.
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

PATIENCE_S: Final = 1.0  # of the loop with an answer that it needs now; Celery's `inspect` waits no longer either
STUCK_S: Final = 0.5  # a call under way for so long is given up by others


class StoreThread:
    """Does what it is given, one after the other.

    Args:
        name: of the thread. Defaults to one that says store.
    """

    def __init__(self, name: str = "wheel-sched-celery-store") -> None:
        self._name = name
        self._jobs: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None  # when the job under way was begun

    @property
    def stuck(self) -> bool:
        """Whether whoever hands something over now would have to wait."""
        since_s = self._since_s
        return since_s is not None and time.monotonic() - since_s > STUCK_S

    def submit(self, job: Callable[[], Any]) -> None:
        """Have `job` done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def ask(self, question: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """What `question` gives or raises.

        Raises:
            StoreUnavailable: there is no answer in time. What was begun may still be done.
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
                f"the delay store has not answered within {patience_s:g} s: what it was asked for may still be done",
                in_doubt=True,
            ) from error

    def finish(self, patience_s: float) -> int:
        """Wait until all is done, but no longer than that; how many jobs were dropped then.

        One that is under way ends with the process.
        """
        done = threading.Event()
        self.submit(done.set)
        if done.wait(patience_s):
            return 0
        dropped = -1  # `done.set` is no work
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
                dropped += 1
        return max(0, dropped)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            self._since_s = time.monotonic()
            try:
                job()
            except Exception:  # the thread goes on with the next
                logger.exception("celery.store_thread")
            self._since_s = None
            del job  # else the last one lives on until the next
