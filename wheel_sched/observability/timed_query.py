"""A query with a time limit, which is not started again while it is still running.

A metrics page must not wait for a server that hangs: a scraper gives up on the page and gets none of its metrics.
Each query has its own thread. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedQuery(Generic[T]):
    """A function whose result is awaited for a limited time.

    Args:
        ask: the function.
        within_s: how many seconds `answer` waits.
    """

    def __init__(self, ask: Callable[[], T], within_s: float) -> None:
        self._ask = ask
        self._within_s = within_s
        self._lock = threading.Lock()
        self._running: _Call[T] | None = None

    def answer(self) -> T:
        """Call the function, or join the call that is running, and wait for the result.

        Raises:
            TimeoutError: there is no result yet.
            BaseException: the error of the function.
        """
        with self._lock:
            call = self._running
            if call is None or call.done.is_set():
                call = self._running = _Call(self._ask)
                threading.Thread(target=call.run, name="wheel-sched-query", daemon=True).start()
        if not call.done.wait(self._within_s):
            raise TimeoutError(f"no answer within {self._within_s:g} s")
        if call.error is not None:
            raise call.error
        return call.found[0]


class _Call(Generic[T]):
    """One call of the function, and its result."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self.done = threading.Event()
        self.found: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.found.append(self._ask())
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()
