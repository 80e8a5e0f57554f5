"""Which item waits under a key: the twin of `prelude.lua` for the store in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheel_sched.store.core.items import Item, encode_text
from wheel_sched.store.core.memory_item import MemoryItem, StoringVerdict, plain
from wheel_sched.store.core.shard import MemoryShard

COLLAPSE, DEBOUNCE = "wheel:collapse:", "wheel:debounce:"
CHECK_MS = 60_000
_DEBOUNCE = re.compile(r"wheel:debounce:([0-9]+):(.*)", re.DOTALL)

Name = tuple[str, str]  # topic, key


class Mark(NamedTuple):
    """What the refs of an item say: whether it collapses or debounces, its greatest wait (0 = no bound), its key."""

    collapses: bool
    max_wait_ms: int
    key: str


def mark_of(refs: Sequence[str]) -> Mark | None:
    """The mark in the refs of an item; None without one."""
    for ref in refs:
        if ref.startswith(COLLAPSE):
            return Mark(True, 0, ref.removeprefix(COLLAPSE))
        if found := _DEBOUNCE.fullmatch(ref):
            return Mark(False, int(found[1]), found[2])
    return None


@dataclass(slots=True)
class _Newest:
    """The newest item of a key in a call: its number and id, when the key's first item was stored, and the stored item
    that it replaces."""

    at: int
    id: str
    first_ms: int
    there: MemoryItem | None


class OncePerKeyInMemory:
    """The items that wait under keys, of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self._waiting: dict[Name, tuple[bytes, int]] = {}  # -> (id, when the key's first item was stored)
        shard.on_storing.append(self._decide)
        shard.on_put_back.append(self._put_back)
        shard.on_died.append(self._died)
        shard.on_sweep.append(self._clean)

    def __len__(self) -> int:
        return len(self._waiting)

    def _decide(
        self, items: Sequence[Item], start: int, exists: Callable[[bytes, Item], bool]
    ) -> dict[int, StoringVerdict]:
        shard = self._shard
        verdicts: dict[int, StoringVerdict] = {}
        newest: dict[Name, _Newest] = {}
        seen: set[bytes] = set()
        for at in range(start, len(items)):
            given = items[at]
            key, mark = encode_text(given.id), mark_of(given.refs)
            if key in seen or exists(key, given):
                continue
            seen.add(key)
            if mark is None:
                continue
            name = plain(given.topic), plain(mark.key)
            earlier = newest.get(name)
            there, first_ms = (earlier.there, earlier.first_ms) if earlier else self._find(name)
            if mark.collapses and (earlier or there):
                verdicts[at] = StoringVerdict(False, earlier.id if earlier else there.id if there else "")
                shard.event("dropped", name[0])
                continue
            if earlier:
                verdicts[earlier.at] = StoringVerdict(False, plain(given.id))
                shard.event("accepted", name[0])  # counted as if each item had come in a call of its own
            if earlier or there:
                shard.event("replaced", name[0])
            due_ms = given.due_ms
            if due_ms is not None and mark.max_wait_ms:
                due_ms = min(due_ms, first_ms + mark.max_wait_ms)
            verdicts[at] = StoringVerdict(True, there.id if there else None, due_ms)
            newest[name] = _Newest(at, plain(given.id), first_ms, there)
        for name, one in newest.items():
            if one.there is not None:
                self._take_out(one.there)
            self._waiting[name] = encode_text(one.id), one.first_ms
        return verdicts

    def _find(self, name: Name) -> tuple[MemoryItem | None, int]:
        """The item that waits under a topic and key, and when the key's first item was stored: now if none waits."""
        key, first_ms = self._waiting.get(name, (b"", 0))
        item = self._shard.items.get(key)
        mark = None if item is None or item.topic != name[0] else mark_of(item.refs)
        if item is None or mark is None or mark.key != name[1]:
            return None, self._shard.now_ms
        waits = item.state == "due" or (item.state == "held" and item.reason == b"paused")
        return (item, first_ms) if waits else (None, self._shard.now_ms)

    def _take_out(self, item: MemoryItem) -> None:
        shard = self._shard
        if item.state == "due":
            shard.drop_due(item.key)
        else:
            shard.drop_held(item)
        del shard.items[item.key]
        shard.drop_refs(item)
        shard.moves(item.topic, item.state, None)

    def _put_back(self, item: MemoryItem) -> None:
        if (mark := mark_of(item.refs)) is not None:
            self._waiting[item.topic, mark.key] = item.key, self._shard.now_ms

    def _died(self, item: MemoryItem, _died_ms: int) -> int:
        mark = mark_of(item.refs)
        if mark is not None and self._waiting.get((item.topic, mark.key), (b"", 0))[0] == item.key:
            del self._waiting[item.topic, mark.key]
        return 0

    def _clean(self) -> None:
        """Forget the keys whose items have left."""
        items = self._shard.items
        for name in [name for name, (key, _) in self._waiting.items() if key not in items]:
            del self._waiting[name]
