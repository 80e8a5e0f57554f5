"""A question that is not waited for longer than so long, and not asked a second time while it is open.

A page that waits for a server that hangs is no page: a scraper gives up on it, and learns nothing of what is known.
Cost: a thread for each question. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """See the module.

    Args:
        ask: the question.
        within_s: how long its answer is waited for.
    """

    def __init__(self, ask: Callable[[], T], within_s: float) -> None:
        self._ask = ask
        self._within_s = within_s
        self._lock = threading.Lock()
        self._open: _Question[T] | None = None

    def answer(self) -> T:
        """The answer; while one is under way, that one.

        Raises:
            TimeoutError: there is none yet.
            BaseException: whatever the question raised.
        """
        with self._lock:
            question = self._open
            if question is None or question.done.is_set():
                question = self._open = _Question(self._ask)
                threading.Thread(target=question.run, name="wheel-sched-question", daemon=True).start()
        if not question.done.wait(self._within_s):
            raise TimeoutError(f"no answer within {self._within_s:g} s")
        if question.error is not None:
            raise question.error
        return question.found[0]


class _Question(Generic[T]):
    """One question, and what came of it."""

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
