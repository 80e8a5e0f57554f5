"""The errors of a call to a simulated server, and the units and the start of true time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


class Lost(Exception):
    """A call was lost. `performed`: the server performed the call, and only the reply was lost."""

    def __init__(self, performed: bool) -> None:
        super().__init__("the reply was lost" if performed else "the request was lost")
        self.performed = performed


class ConnectionRefused(Exception):
    """The server refused the connection, so it has not seen the call."""


def once(perform: Callable[[], T]) -> Callable[[], T]:
    """Wrap a request so that the server performs it once, however often it arrives."""
    answers: list[T] = []

    def perform_once() -> T:
        if not answers:
            answers.append(perform())
        return answers[0]

    return perform_once
