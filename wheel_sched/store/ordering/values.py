"""Values of ordering keys: owners of scopes, closed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_HEAD = "?"  # of a key that was rebuilt from a backup


class ScopeOwnership(NamedTuple):
    """Who owns a scope. `epoch` fences the calls of its holder, 0 = another holds it; the lease ends in `for_ms`."""

    epoch: int
    for_ms: int


class ClosedKey(NamedTuple):
    """A closed key: since when, its label for people, the id base of its head, and how many messages are parked.

    `released`: the head was parked before; it did not close the key itself.
    """

    lock: str
    since_ms: int
    label: str
    head: str
    released: bool
    parked: int

    @property
    def gate(self) -> str:
        """The lock, under the name that callers still use."""
        return self.lock


@dataclass(frozen=True, slots=True)
class Owner:
    """The reader that closes and parks, and the epoch in which it owns the scope."""

    scope: str
    holder: str
    epoch: int
