"""How a call to a simulated server can end, and the units and the start of true time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


class Lost(Exception):
    """A call was lost. `performed`: the server performed it, only the reply was lost."""

    def __init__(self, performed: bool) -> None:
        super().__init__("the reply was lost" if performed else "the request was lost")
        self.performed = performed


class ConnectionRefused(Exception):
    """The server is away: the connection was refused, so it has not seen the call."""


def once(perform: Callable[[], T]) -> Callable[[], T]:
    """A request that its server performs once, however often it arrives."""
    answers: list[T] = []

    def perform_once() -> T:
        if not answers:
            answers.append(perform())
        return answers[0]

    return perform_once
