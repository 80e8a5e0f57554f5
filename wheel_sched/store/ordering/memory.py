"""Ordering keys in memory: the state behind `key_lock.lua` and `prelude.lua`, and the verbs of `key_lock.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wheel_sched.store.core.call import bounded_reason
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.record import encode_text
from wheel_sched.store.core.shard import MemoryItem, MemoryShard
from wheel_sched.store.ordering.values import UNKNOWN_HEAD, ClosedKey, Owner, ScopeOwnership

_ENDED_FOR_MS = 86_400_000  # as in prelude.lua
_PARKED = b"ordered: key "


@dataclass(slots=True)
class KeyLock:
    """A closed key; `parked` maps each parked id to the time of its parking, in order."""

    since_ms: int
    label: str
    head: str
    released: bool
    parked: dict[bytes, int] = field(default_factory=dict)


class OrderingInMemory:
    """The closed keys of a shard, the owners of scopes, and the id bases that ended within the last day."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.closed: dict[str, KeyLock] = {}
        self.owners: dict[str, tuple[int, int, str]] = {}  # scope -> (epoch, until in ms, holder)
        self.done: dict[str, int] = {}  # id base -> until in ms
        self.gave_up: dict[str, int] = {}
        shard.on_given_up.append(self.give_way)
        shard.on_restored.append(self.rebuild)

    def is_head(self, lock: str, item_id: str) -> bool:
        found = self.closed.get(lock)
        return found is not None and item_id.startswith(f"{found.head}.")

    def first_parked(self, lock: str) -> bytes | None:
        found = self.closed.get(lock)
        return None if found is None else next(iter(found.parked), None)

    def unpark(self, lock: str, key: bytes) -> None:
        if lock in self.closed:
            self.closed[lock].parked.pop(key, None)

    def promote(self, lock: str, head: str, now_ms: int) -> None:
        found = self.closed[lock]
        found.head, found.since_ms, found.released = head, now_ms, True

    def open(self, lock: str) -> None:
        self.closed.pop(lock, None)

    def rebuild(self, item: MemoryItem, score_ms: int) -> None:
        """Park an item again that was put back; the head of its key is then unknown."""
        if not item.reason.startswith(_PARKED):
            return
        lock = item.reason.removeprefix(_PARKED).decode()
        found = self.closed.setdefault(lock, KeyLock(self._shard.now_ms, "", UNKNOWN_HEAD, released=True))
        found.parked[item.key] = score_ms
        found.parked = dict(sorted(found.parked.items(), key=lambda pair: (pair[1], pair[0])))

    def end(self, ended: dict[str, int], base: str, now_ms: int) -> None:
        """Remember for a day the id base of a message that has succeeded or was given up."""
        for old in [old for old, until_ms in ended.items() if until_ms <= now_ms]:
            del ended[old]
        ended[base] = now_ms + _ENDED_FOR_MS

    def give_way(self, item: MemoryItem) -> None:
        """An item is given up: when it is the head of its ordering key, the next parked id becomes the head."""
        for ref in item.refs:
            if ref.startswith("gate:"):
                lock = ref.removeprefix("gate:")
                self.end(self.gave_up, item.id.rpartition(".")[0] or item.id, self._shard.now_ms)
                self.unpark(lock, item.key)
                if self.is_head(lock, item.id):
                    self.next_of_key(lock)
                return

    def next_of_key(self, lock: str) -> None:
        """The next parked id of a key becomes its head, due at once. Without a parked id the key opens."""
        shard, reason = self._shard, _PARKED + lock.encode()
        while (key := self.first_parked(lock)) is not None:
            self.unpark(lock, key)
            item = shard.items.get(key)
            if item is not None and item.state == "held" and item.reason == reason:
                shard.drop_held(item)
                shard.moves(item.topic, "held", shard.put_waiting(item, shard.now_ms))
                self.promote(lock, item.id.rpartition(".")[0] or item.id, shard.now_ms)
                return
        self.open(lock)

    def stale(self, owner: Owner) -> bool:
        epoch, _, holder = self.owners.get(owner.scope, (0, 0, ""))
        return (epoch, holder) != (owner.epoch, owner.holder)


def closed_keys(shard: MemoryShard, scope: str) -> list[ClosedKey]:
    return [
        ClosedKey(name, lock.since_ms, lock.label, lock.head, lock.released, len(lock.parked))
        for name, lock in shard.room(OrderingInMemory).closed.items()
        if name.startswith(scope)
    ]


def count_parked(shard: MemoryShard, topics: Sequence[str]) -> tuple[int, dict[str, int]]:
    return len(shard.room(OrderingInMemory).closed), {
        topic: len(shard.held_index.get((b"ordered", topic), ())) for topic in topics
    }


def own_scope(shard: MemoryShard, scope: str, holder: str, lease_ms: int) -> ScopeOwnership:
    epoch, until_ms, there = shard.room(OrderingInMemory).owners.get(scope, (0, 0, ""))
    if lease_ms == 0:
        if there == holder:
            shard.room(OrderingInMemory).owners[scope] = epoch, 0, ""
        return ScopeOwnership(epoch, 0)
    lapsed = until_ms <= shard.now_ms
    if not lapsed and there != holder:
        return ScopeOwnership(0, until_ms - shard.now_ms)
    epoch += lapsed or there != holder
    shard.room(OrderingInMemory).owners[scope] = epoch, shard.now_ms + lease_ms, holder
    return ScopeOwnership(epoch, lease_ms)


def close_keys(shard: MemoryShard, owner: Owner, rows: Sequence[tuple[str, str, bool, str]]) -> list[Outcome]:
    if shard.room(OrderingInMemory).stale(owner):
        return [Outcome.STALE] * len(rows)
    outcomes = []
    for name, base, position_derived, label in rows:
        found = shard.room(OrderingInMemory).closed.get(name)
        if (found is None or found.head != base) and _ended(shard, base, position_derived):
            outcomes.append(Outcome.DUPLICATE)
            continue
        if found is None:
            found = shard.room(OrderingInMemory).closed[name] = KeyLock(shard.now_ms, label, base, released=False)
        elif found.head == UNKNOWN_HEAD:
            found.since_ms, found.label, found.head, found.released = shard.now_ms, label, base, False
        outcomes.append(Outcome.DONE if found.head == base else Outcome.WRONG_STATE)
    return outcomes


def _succeeded(shard: MemoryShard, base: str) -> bool:
    return shard.room(OrderingInMemory).done.get(base, 0) > shard.now_ms


def _ended(shard: MemoryShard, base: str, position_derived: bool) -> bool:
    return _succeeded(shard, base) or (
        position_derived and shard.room(OrderingInMemory).gave_up.get(base, 0) > shard.now_ms
    )


def look_at(shard: MemoryShard, name: str, base: str) -> Outcome:
    found = shard.room(OrderingInMemory).closed.get(name)
    if found is not None and found.head in (base, UNKNOWN_HEAD):
        return Outcome.DONE
    return Outcome.DUPLICATE if _succeeded(shard, base) else Outcome.ABSENT


def pass_head(shard: MemoryShard, how: str, name: str, base: str) -> Outcome:
    found = shard.room(OrderingInMemory).closed.get(name)
    if found is None or not (found.head in (base, UNKNOWN_HEAD) or how == "*"):
        return Outcome.ABSENT
    if how != "*":
        shard.room(OrderingInMemory).end(
            shard.room(OrderingInMemory).done if how == "s" else shard.room(OrderingInMemory).gave_up,
            base,
            shard.now_ms,
        )
    shard.room(OrderingInMemory).next_of_key(name)
    return Outcome.DONE


def park_items(
    shard: MemoryShard, owner: Owner, cap: int, rows: Sequence[tuple[str, str, bool, Item]]
) -> list[Outcome]:
    if shard.room(OrderingInMemory).stale(owner):
        return [Outcome.STALE] * len(rows)
    shard.seq += 1
    return [_parked(shard, *row, cap) for row in rows]


def _parked(shard: MemoryShard, name: str, base: str, position_derived: bool, given: Item, cap: int) -> Outcome:
    found = shard.room(OrderingInMemory).closed.get(name)
    key = encode_text(given.id)
    if found is not None and found.head == base:
        return Outcome.DUPLICATE if found.released else Outcome.DONE
    if _ended(shard, base, position_derived) or key in shard.items:
        return Outcome.DUPLICATE
    if found is None:
        return Outcome.ABSENT
    if len(found.parked) >= cap:
        return Outcome.WRONG_STATE
    last_ms = found.parked[next(reversed(found.parked))] if found.parked else -1
    score_ms = max(shard.now_ms, last_ms + 1)
    item = shard.new_item(given)
    shard.moves(item.topic, None, shard.put_held(item, score_ms, bounded_reason(f"ordered: key {name}")))
    shard.event("accepted", item.topic)
    found.parked[key] = score_ms
    return Outcome.HELD
