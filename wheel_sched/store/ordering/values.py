"""What ordering keys are told as: owners of scopes, closed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_HEAD = "?"  # of a key that was rebuilt from a backup


class ScopeOwnership(NamedTuple):
    """Who reads a scope: `epoch` fences its holder's calls, 0 = another holds it; `for_ms` until it lapses."""

    epoch: int
    for_ms: int


class ClosedKey(NamedTuple):
    """A closed key: since when, its label for people, the stem of its head's ids, and how many stand in line.

    `released`: the head came from the line, it did not close the key itself.
    """

    gate: str
    since_ms: int
    label: str
    head: str
    released: bool
    parked: int


@dataclass(frozen=True, slots=True)
class Owner:
    """In whose name a reader closes and parks."""

    scope: str
    holder: str
    epoch: int
