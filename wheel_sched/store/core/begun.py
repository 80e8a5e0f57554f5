"""Calls in two halves: sent now, heard later, so that the caller works while the server does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Begun(Protocol):
    """Calls that are on their way. Whoever began them asks for the answers once; others leave it alone."""

    def answers(self) -> list[Any]:
        """Wait for them; a value or an exception for each call, in order, as `execute` would have answered."""
        ...


@dataclass(frozen=True, slots=True)
class Performed:
    """Calls that were through before anybody asked."""

    values: list[Any]

    def answers(self) -> list[Any]:
        return self.values
