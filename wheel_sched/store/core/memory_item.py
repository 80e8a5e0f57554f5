"""The items of a store in memory, and what rooms decide about an item that is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from wheel_sched.store.core.items import State, decode_text, encode_text

_CODE = re.compile(rb"[A-Za-z0-9_-]+")


def plain(text: str) -> str:
    """The text after it was encoded and decoded. It can differ: surrogate escapes may form valid UTF-8 together."""
    return text if text.isascii() else decode_text(encode_text(text))


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


class Verdict(NamedTuple):
    """What a room decides about an item that a call wants to store.

    Args:
        stores: whether the item is stored.
        other: the item that is stored in its place, or whose place it takes. Defaults to None: no other item.
        due_ms: its due time, if it is stored. Defaults to None: none.
    """

    stores: bool
    other: str | None = None
    due_ms: int | None = None
