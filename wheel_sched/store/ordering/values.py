"""Values of ordering keys: owners of scopes, closed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_HEAD = "?"  # the head of a key that was rebuilt from a backup


class ScopeOwnership(NamedTuple):
    """The owner of a scope. `epoch` fences the calls of the owner; 0 = another owns it. The lease ends in `for_ms`."""

    epoch: int
    for_ms: int


class ClosedKey(NamedTuple):
    """A closed key: since when, its label for people, the id base of its head, and how many messages are parked.

    `released`: the head was parked before; the head itself did not close the key.
    """

    lock: str
    since_ms: int
    label: str
    head: str
    released: bool
    parked: int

    @property
    def gate(self) -> str:
        """The key lock, under the name that callers use."""
        return self.lock


@dataclass(frozen=True, slots=True)
class Owner:
    """The reader that closes and parks, and the epoch in which it owns the scope."""

    scope: str
    holder: str
    epoch: int
