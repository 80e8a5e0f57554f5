"""The items of a store in memory, and what the core asks of rooms: verdicts on new items, and fair shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import MAX_BATCH, Item, State, decode_text, encode_text

_CODE = re.compile(rb"[A-Za-z0-9_-]+")


def plain(text: str) -> str:
    """The text after it was encoded and decoded. It can differ: surrogate escapes may form valid UTF-8 together."""
    return text if text.isascii() else decode_text(encode_text(text))


def check_batch(count: int) -> None:
    """Refuse a batch that a script would refuse.

    Raises:
        Rejected: the batch is too large.
    """
    if not 0 <= count <= MAX_BATCH:
        raise Rejected(f"at most {MAX_BATCH} items a call, got: {count}; nothing was changed")


def indexed(refs: Sequence[str]) -> list[str]:
    """The refs by which an item can be found: all but the ref of its fair key."""
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
    mark: int = 0  # of a dead item: what a hook of `MemoryShard.on_died` answered, such as that the death is counted


class StoringVerdict(NamedTuple):
    """What a room decides about an item that a call wants to store.

    Args:
        stores: whether the item is stored.
        other: the item that is stored instead of it, or that it replaces. Defaults to None: no other item.
        due_ms: its due time, if it is stored. Defaults to None: none.
    """

    stores: bool
    other: str | None = None
    due_ms: int | None = None


StoringHook = Callable[[Sequence[Item], int, Callable[[bytes, Item], bool]], dict[int, StoringVerdict]]
"""Decides about the items of a call from a number on. The last argument says whether an item exists already."""


def verdicts_of(
    hooks: Iterable[StoringHook], items: Sequence[Item], start: int, exists: Callable[[bytes, Item], bool]
) -> dict[int, StoringVerdict]:
    """What the hooks decide about the items from number `start` on."""
    return {number: verdict for hook in hooks for number, verdict in hook(items, start, exists).items()}


class FairTaking(Protocol):
    """What a shard asks of the room `fair_shares` while a topic is fair: the functions `shares` of `prelude.lua`."""

    def add_waiting(self, item: MemoryItem, due_ms: int) -> bool: ...

    def dropped(self, item: MemoryItem, due_ms: int) -> None: ...

    def take(self, limit: int, until_ms: int) -> list[tuple[int, MemoryItem]]: ...

    def head(self, head_ms: int) -> int: ...

    def ended(self, keys: Sequence[bytes], published: Container[bytes]) -> None: ...

    def renamed(self, key: bytes, other: bytes) -> None: ...
