"""The first answers of calls, which a shard in memory keeps for repeats. The twin of `recall` in `prelude.lua`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

ANSWER_TTL_US = 60_000_000  # how long the first answer of a call is kept for repeats of the call
ANSWERS_AT_MOST = 100_000  # in one process no reply is lost, so the oldest answers may be dropped before their time


class FirstAnswers:
    """Keeps the first answer of each call that has a token. Calls of one shard come one after the other.

    Args:
        wall_us: the process's wall clock in microseconds.
    """

    def __init__(self, wall_us: Callable[[], int]) -> None:
        self._wall_us = wall_us
        self._answers: dict[str, Any] = {}
        self._expiries: deque[tuple[int, str]] = deque()

    def recall(self, token: str) -> Any:
        """The first answer under this token; None when there is none, or it is no longer kept."""
        wall_us = self._wall_us()
        while self._expiries and (self._expiries[0][0] <= wall_us or len(self._expiries) > ANSWERS_AT_MOST):
            del self._answers[self._expiries.popleft()[1]]
        return self._answers.get(token)

    def record(self, token: str, answer: Any) -> None:
        """Keep the answer of a call; nothing happens without a token."""
        if token:
            self._answers[token] = answer
            self._expiries.append((self._wall_us() + ANSWER_TTL_US, token))
