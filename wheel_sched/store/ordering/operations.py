"""Operations on ordering keys, one for each verb of key_lock.lua, with their values and their twins in memory.

All rows of one call lie in one shard, which the scope decides (see `OrderedKeys`). An *id base* names a message: the
ids of its items are `<id base>.<attempt>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wheel_sched.store.core.call import Argument, Operation, outcomes_of
from wheel_sched.store.core.items import Item, Outcome, decode_text, encode_text, make_tail
from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.shard import MemoryShard

UNKNOWN_HEAD = "?"  # the head of a key that was rebuilt from a backup


class ScopeOwnership(NamedTuple):
    """The answer to `acquire`. `epoch`: the store refuses later calls with another epoch or holder.

    Epoch 0 means that another holder owns the scope. The lease of the owner ends in `for_ms`. `released`: the
    previous holder had released the scope before the caller acquired it.
    """

    epoch: int
    for_ms: int
    released: bool = False


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


@dataclass(frozen=True, slots=True)
class Owner:
    """The reader (holder) that closes keys and parks items, and the epoch in which it owns the scope."""

    scope: str
    holder: str
    epoch: int


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
        self.given_up: dict[str, int] = {}
        shard.on_given_up.append(self.give_way)
        shard.on_restored.append(self.rebuild)

    def stale(self, owner: Owner) -> bool:
        """Whether `owner` no longer owns its scope."""
        epoch, _, holder = self.owners.get(owner.scope, (0, 0, ""))
        return (epoch, holder) != (owner.epoch, owner.holder)

    def has_ended(self, base: str, position_derived: bool) -> bool:
        """Whether a message has succeeded, or was given up and has a position-derived id base.

        No other message has a position-derived id base. Any other id base may belong to several messages.
        """
        now_ms = self._shard.now_ms
        return self.done.get(base, 0) > now_ms or (position_derived and self.given_up.get(base, 0) > now_ms)

    def rebuild(self, item: MemoryItem, score_ms: int) -> None:
        """After a restore of a backup, put a parked item back into the queue of its ordering key.

        If the key is not closed yet, close it. Nobody knows which failed message had closed it: the head is
        `UNKNOWN_HEAD`. An item that was not parked stays as it is.
        """
        if not item.reason.startswith(_PARKED):
            return
        lock = item.reason.removeprefix(_PARKED).decode()
        found = self.closed.setdefault(lock, KeyLock(self._shard.now_ms, "", UNKNOWN_HEAD, released=True))
        found.parked[item.key] = score_ms
        found.parked = dict(sorted(found.parked.items(), key=lambda pair: (pair[1], pair[0])))

    def end(self, ended: dict[str, int], base: str) -> None:
        """Remember for a day, in `ended`, that the message with the id base `base` has succeeded or was given up."""
        now_ms = self._shard.now_ms
        for old in [old for old, until_ms in ended.items() if until_ms <= now_ms]:
            del ended[old]
        ended[base] = now_ms + _ENDED_FOR_MS

    def give_way(self, item: MemoryItem) -> None:
        """Called when an item died or was cancelled. If it was a head, the next parked id becomes the head."""
        for ref in item.refs:
            if ref.startswith("lock:"):
                lock = ref.removeprefix("lock:")
                self.end(self.given_up, item.id.rpartition(".")[0] or item.id)
                found = self.closed.get(lock)
                if found is not None:
                    found.parked.pop(item.key, None)
                    if item.id.startswith(f"{found.head}."):
                        self.next_of_key(lock)
                return

    def next_of_key(self, lock: str) -> None:
        """The next parked id of a key becomes its head, due at once. Without a parked id the key opens."""
        shard, found = self._shard, self.closed[lock]
        while found.parked:
            key = next(iter(found.parked))
            del found.parked[key]
            item = shard.items.get(key)
            if item is not None and item.state == "held" and item.reason == _PARKED + lock.encode():
                shard.drop_held(item)
                shard.moves(item.topic, "held", shard.put_waiting(item, shard.now_ms))
                found.head, found.since_ms, found.released = item.id.rpartition(".")[0] or item.id, shard.now_ms, True
                return
        del self.closed[lock]


@dataclass(slots=True)
class OwnScope(Operation[ScopeOwnership]):
    """Acquire a scope or extend its lease; a lease of 0 releases the scope."""

    script = "key_lock"
    writes = False
    scope: str
    holder: str
    lease_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        if self.lease_ms == 0:
            return ["leave", self.scope, self.holder]
        return ["own", self.scope, self.holder, self.lease_ms]

    def parse(self, reply: Any, shard: int) -> ScopeOwnership:
        return ScopeOwnership(int(reply[0]), int(reply[1]), bool(reply[2]))

    def in_memory(self, shard: MemoryShard) -> ScopeOwnership:
        room = shard.room(OrderingInMemory)
        epoch, until_ms, holder = room.owners.get(self.scope, (0, 0, None))
        if self.lease_ms == 0:
            if holder == self.holder:
                room.owners[self.scope] = epoch, 0, ""
            return ScopeOwnership(epoch, 0)
        if until_ms > shard.now_ms and holder != self.holder:
            return ScopeOwnership(0, until_ms - shard.now_ms)
        epoch += holder != self.holder
        room.owners[self.scope] = epoch, shard.now_ms + self.lease_ms, self.holder
        return ScopeOwnership(epoch, self.lease_ms, holder == "")


@dataclass(slots=True)
class CloseKeys(Operation[list[Outcome]]):
    """Close keys. A row is (lock, id base of the head, whether the id base is position-derived, label).

    A position-derived id base comes from the position or the publishing time of the message, and no other message has
    it.

    DONE: closed with this head. WRONG_STATE: the key has another head. DUPLICATE: the message has ended before and
    closes nothing; a message that was given up counts only when its id base is position-derived. STALE: `owner` lost
    the scope.
    """

    script = "key_lock"
    writes = True
    owner: Owner
    rows: Sequence[tuple[str, str, bool, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        owner = self.owner
        args: list[Argument] = ["close", owner.scope, owner.holder, owner.epoch]
        for lock, base, position_derived, label in self.rows:
            args += [lock, encode_text(base), int(position_derived), encode_text(label)]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        room = shard.room(OrderingInMemory)
        if room.stale(self.owner):
            return [Outcome.STALE] * len(self.rows)
        outcomes = []
        for lock, base, position_derived, label in self.rows:
            found = room.closed.get(lock)
            if (found is None or found.head != base) and room.has_ended(base, position_derived):
                outcomes.append(Outcome.DUPLICATE)
                continue
            if found is None or found.head == UNKNOWN_HEAD:
                parked = {} if found is None else found.parked
                found = room.closed[lock] = KeyLock(shard.now_ms, label, base, released=False, parked=parked)
            outcomes.append(Outcome.DONE if found.head == base else Outcome.WRONG_STATE)
        return outcomes


@dataclass(slots=True)
class ParkItems(Operation[list[Outcome]]):
    """Park items behind the heads of closed keys. A row is (lock, id base, position_derived, item); see `CloseKeys`.

    HELD: parked. ABSENT: the key is open. DONE: the item is the head that closed the key. DUPLICATE: it was parked
    before, or has ended before. WRONG_STATE: `cap` items are parked already. STALE: `owner` has lost the scope.
    """

    script = "key_lock"
    writes = True
    owner: Owner
    cap: int
    rows: Sequence[tuple[str, str, bool, Item]]
    token: str = ""

    def argv(self) -> list[Argument]:
        owner = self.owner
        args: list[Argument] = ["park", owner.scope, owner.holder, owner.epoch, self.cap]
        for lock, base, position_derived, item in self.rows:
            tail = make_tail(item.topic, item.route, item.refs, item.body)
            args += [lock, encode_text(base), int(position_derived), encode_text(item.id), tail]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        room = shard.room(OrderingInMemory)
        if room.stale(self.owner):
            return [Outcome.STALE] * len(self.rows)
        shard.seq += 1
        return [self._park(shard, room, *row) for row in self.rows]

    def _park(
        self, shard: MemoryShard, room: OrderingInMemory, lock: str, base: str, position_derived: bool, given: Item
    ) -> Outcome:
        found, key = room.closed.get(lock), encode_text(given.id)
        if found is not None and found.head == base:
            return Outcome.DUPLICATE if found.released else Outcome.DONE
        if room.has_ended(base, position_derived) or key in shard.items:
            return Outcome.DUPLICATE
        if found is None:
            return Outcome.ABSENT
        if len(found.parked) >= self.cap:
            return Outcome.WRONG_STATE
        last_ms = found.parked[next(reversed(found.parked))] if found.parked else -1
        score_ms = max(shard.now_ms, last_ms + 1)
        item = shard.new_item(given)
        shard.moves(item.topic, None, shard.put_held(item, score_ms, _PARKED + lock.encode()))
        shard.event("accepted", item.topic)
        found.parked[key] = score_ms
        return Outcome.HELD


@dataclass(slots=True)
class LookAtHeads(Operation[list[Outcome]]):
    """Look up (lock, id base). DONE: the head, or the head is unknown. DUPLICATE: it has succeeded. ABSENT: neither."""

    script = "key_lock"
    writes = False
    rows: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look", *(encode_text(part) for row in self.rows for part in row)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        room, outcomes = shard.room(OrderingInMemory), []
        for lock, base in self.rows:
            found = room.closed.get(lock)
            if found is not None and found.head in (base, UNKNOWN_HEAD):
                outcomes.append(Outcome.DONE)
            else:
                outcomes.append(Outcome.DUPLICATE if room.has_ended(base, False) else Outcome.ABSENT)
        return outcomes


@dataclass(slots=True)
class PassHeads(Operation[list[Outcome]]):
    """Remove the heads (lock, id base), which have ended, and make the next message of each key due.

    `how`: "s" the head has succeeded, "d" the head was given up, "*" any head. The outcome of a row is DONE, or ABSENT
    if the message was not the head. A head that is unknown may be any message.
    """

    script = "key_lock"
    writes = True
    how: str
    rows: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["pass", self.how, *(encode_text(part) for row in self.rows for part in row)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        room, outcomes = shard.room(OrderingInMemory), []
        for lock, base in self.rows:
            found = room.closed.get(lock)
            if found is None or not (found.head in (base, UNKNOWN_HEAD) or self.how == "*"):
                outcomes.append(Outcome.ABSENT)
                continue
            if self.how != "*":
                room.end(room.done if self.how == "s" else room.given_up, base)
            room.next_of_key(lock)
            outcomes.append(Outcome.DONE)
        return outcomes


@dataclass(slots=True)
class ListKeys(Operation[tuple[str, list[ClosedKey]]]):
    """List a page of the closed keys of a scope ("" = of all scopes), in no particular order.

    Returns (cursor of the next page, keys). The cursor "0" means: this page was the last.
    """

    script = "key_lock"
    writes = False
    scope: str = ""
    cursor: str = "0"
    count: int = 500
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["list", self.scope, self.cursor, self.count]

    def parse(self, reply: Any, shard: int) -> tuple[str, list[ClosedKey]]:
        keys = [closed_key(decode_text(reply[at]), reply[at + 1], reply[at + 2]) for at in range(1, len(reply), 3)]
        return decode_text(reply[0]), keys

    def in_memory(self, shard: MemoryShard) -> tuple[str, list[ClosedKey]]:
        return "0", [
            ClosedKey(name, lock.since_ms, lock.label, lock.head, lock.released, len(lock.parked))
            for name, lock in shard.room(OrderingInMemory).closed.items()
            if name.startswith(self.scope)
        ]


def closed_key(lock: str, value: bytes, parked: int) -> ClosedKey:
    """Read a closed key from the value of its lock in Redis (see key_lock.lua)."""
    kind, since, length, rest = value.split(b":", 3)
    stop = int(length)
    return ClosedKey(lock, int(since), decode_text(rest[:stop]), decode_text(rest[stop:]), kind == b"r", int(parked))


@dataclass(slots=True)
class CountParked(Operation[tuple[int, dict[str, int]]]):
    """How many keys are closed, and how many items of each topic are parked."""

    script = "key_lock"
    writes = False
    topics: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["count", *(encode_text(topic) for topic in self.topics)]

    def parse(self, reply: Any, shard: int) -> tuple[int, dict[str, int]]:
        return int(reply[0]), {topic: int(count) for topic, count in zip(self.topics, reply[1:], strict=True)}

    def in_memory(self, shard: MemoryShard) -> tuple[int, dict[str, int]]:
        return len(shard.room(OrderingInMemory).closed), {
            topic: len(shard.held_index.get((b"ordered", topic), ())) for topic in self.topics
        }
