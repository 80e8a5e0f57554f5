"""Calls in two halves: the caller sends them, works while the server does, and asks for the answers later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class SentCalls(Protocol):
    """Calls that were sent. The caller that sent them asks for the answers, once."""

    def answers(self) -> list[Any]:
        """Wait for the answers: a value or an exception for each call, in order, as from `execute`."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedCalls:
    """Calls that have their answers already."""

    values: list[Any]

    def answers(self) -> list[Any]:
        return self.values
