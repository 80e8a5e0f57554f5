"""A query with a time limit, which is not started again while it is still running.

A metrics page must not wait for a server that hangs: otherwise the scraper gives up and gets no metrics at all. Each
query runs in its own thread. Threads: any thread may call `answer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedQuery(Generic[T]):
    """Calls a function, and waits only a limited time for its result.

    Args:
        ask: the function, which asks a server.
        within_s: how many seconds `answer` waits.
    """

    def __init__(self, ask: Callable[[], T], within_s: float) -> None:
        self._ask = ask
        self._within_s = within_s
        self._lock = threading.Lock()
        self._running: Future[T] | None = None

    def answer(self) -> T:
        """Call the function, or join the call that is running, and wait for the result.

        Raises:
            TimeoutError: after `within_s` seconds there is no result; the call continues.
            BaseException: the error of the function.
        """
        with self._lock:
            call = self._running
            if call is None or call.done():
                call = self._running = Future()
                threading.Thread(target=self._run, args=(call,), name="wheel-sched-query", daemon=True).start()
        if not wait([call], self._within_s).done:
            raise TimeoutError(f"no answer within {self._within_s:g} s")
        return call.result()

    def _run(self, call: Future[T]) -> None:
        try:
            call.set_result(self._ask())
        except BaseException as error:
            call.set_exception(error)
