"""MemoryItem: an item in a shard in memory. FairTaking: what a shard asks of the room of fair shares."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from wheel_sched.store.core.items import State

_CODE = re.compile(rb"[A-Za-z0-9_-]+")


def indexed(refs: Sequence[str]) -> list[str]:
    """The refs without the fair key, which has no index."""
    return [ref for ref in refs if not ref.startswith("fair:")]


def reason_code(reason: bytes) -> bytes:
    """The first word of a reason. `held_index` groups held items by it."""
    found = _CODE.match(reason)
    return found[0] if found else b"other"


@dataclass(slots=True, eq=False)
class MemoryItem:
    """An item in the shard. `claim` to `cancelled` are for items in flight, `reason` is for held and dead items."""

    key: bytes
    id: str
    version: int
    topic: str
    route: str | None
    refs: tuple[str, ...]
    body: bytes
    state: State = "due"
    lapses: int = 0
    claim: int = 0
    claimed_due_ms: int = 0
    cancelled: bool = False
    reason: bytes = b""
    mark: int = 0  # of a dead item: what a hook of `on_died` has answered


class FairTaking(Protocol):
    """What a shard asks of the room `fair_shares` while a topic is fair: the functions `shares` of `prelude.lua`."""

    def take(self, limit: int, until_ms: int) -> list[tuple[int, MemoryItem]]: ...

    def head(self, head_ms: int) -> int: ...

    def ended(self, keys: Sequence[bytes], published: Container[bytes]) -> None: ...

    def renamed(self, key: bytes, other: bytes) -> None: ...
