"""Operations on ordering keys, one for each verb of key_lock.lua.

All rows of one call lie in one shard, which the scope decides (see `face.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, outcomes_of
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.record import decode_text, encode_text, make_tail
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.ordering.memory import (
    close_keys,
    closed_keys,
    count_parked,
    look_at,
    own_scope,
    park_items,
    pass_head,
)
from wheel_sched.store.ordering.values import ClosedKey, Owner, ScopeOwnership


@dataclass(slots=True)
class OwnScope(Operation[ScopeOwnership]):
    """Acquire or extend a scope; a lease of 0 releases it."""

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
        return ScopeOwnership(int(reply[0]), int(reply[1]))

    def in_memory(self, shard: MemoryShard) -> ScopeOwnership:
        return own_scope(shard, self.scope, self.holder, self.lease_ms)


@dataclass(slots=True)
class CloseKeys(Operation[list[Outcome]]):
    """Close keys with their heads: (lock, id base, position derived, label).

    Position derived: the id base comes from the position of the message, so no other message has this id base.

    DONE: closed with this head. WRONG_STATE: the key has another head. DUPLICATE: the message has ended before and
    closes nothing; a message that was given up counts only when its id base is position derived. STALE: not the owner.
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
        return close_keys(shard, self.owner, self.rows)


@dataclass(slots=True)
class ParkItems(Operation[list[Outcome]]):
    """Park items behind their closed keys: (lock, id base, position derived, item); see `CloseKeys`.

    HELD: parked. ABSENT: the key is open. DONE: the item is the head that closed the key. DUPLICATE: it was parked
    before, or has ended before. WRONG_STATE: `cap` items are parked already. STALE: not the owner.
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
        return park_items(shard, self.owner, self.cap, self.rows)


@dataclass(slots=True)
class LookAtHeads(Operation[list[Outcome]]):
    """Look up (lock, id base). DONE: it is the head. DUPLICATE: it has succeeded before. ABSENT: neither."""

    script = "key_lock"
    writes = False
    rows: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look", *(encode_text(part) for row in self.rows for part in row)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        return [look_at(shard, *row) for row in self.rows]


@dataclass(slots=True)
class PassHeads(Operation[list[Outcome]]):
    """The heads (lock, id base) have ended: the next ones are due. `how`: "s" succeeded, "d" given up, "*" any head.

    DONE, or ABSENT: it was not the head.
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
        return [pass_head(shard, self.how, *row) for row in self.rows]


@dataclass(slots=True)
class ListKeys(Operation[tuple[str, list[ClosedKey]]]):
    """One page of closed keys of a scope ("" = of all), in no order: (next cursor, "0" = finished; keys)."""

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
        return "0", closed_keys(shard, self.scope)


def closed_key(lock: str, value: bytes, parked: int) -> ClosedKey:
    """Parse the value of a lock."""
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
        return count_parked(shard, self.topics)
