"""The errors of a call to a simulated server, and the constants of the simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

START_NS = 1_700_000_000_000_000_000  # when each history starts, in nanoseconds since 1970
MS = 1_000_000  # nanoseconds


class Lost(Exception):
    """The caller gets no reply. `performed`: whether the server performed the call before the reply was lost."""

    def __init__(self, performed: bool) -> None:
        super().__init__("the reply was lost" if performed else "the request was lost")
        self.performed = performed


class ConnectionRefused(Exception):
    """The server refused the connection, so it has not seen the call."""


def once(perform: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `perform` once, at its first call, and always returns the result of `perform`."""
    answers: list[T] = []

    def perform_once() -> T:
        if not answers:
            answers.append(perform())
        return answers[0]

    return perform_once
