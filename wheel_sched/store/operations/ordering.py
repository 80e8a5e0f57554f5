"""Operations on ordering keys: who reads, which keys are closed, who stands in line; the verbs of gate.lua.

All rows of one call lie in one shard, which the gate's scope decides (see `wheel_sched.store.key_gates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from wheel_sched.store.items import Item, Outcome
from wheel_sched.store.operations.call import Argument, outcomes_of
from wheel_sched.store.record import decode_text, encode_text, make_tail

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


@dataclass(slots=True)
class OwnScope:
    """Take or renew a scope, or give it up with a lease of 0."""

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = False
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


@dataclass(slots=True)
class CloseKeys:
    """Close keys with their heads: (gate, stem, placed, label).

    `placed`: the stem is made of the place the message was read at, so that no other message has it.

    DONE; WRONG_STATE: another head is there; DUPLICATE: it has succeeded before, or, being placed, was given up, and
    closes nothing; STALE: not the owner.
    """

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = True
    owner: Owner
    rows: Sequence[tuple[str, str, bool, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        owner = self.owner
        args: list[Argument] = ["close", owner.scope, owner.holder, owner.epoch]
        for gate, stem, placed, label in self.rows:
            args += [gate, encode_text(stem), int(placed), encode_text(label)]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


@dataclass(slots=True)
class ParkItems:
    """Put items in line behind their closed keys: (gate, stem, placed, item); `placed` as in `CloseKeys`.

    HELD: parked; ABSENT: the key is open; DONE: it is the head that closed the key; DUPLICATE: it was parked or has
    succeeded before, or, being placed, was given up; WRONG_STATE: `cap` stand in line already; STALE: not the owner.
    """

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = True
    owner: Owner
    cap: int
    rows: Sequence[tuple[str, str, bool, Item]]
    token: str = ""

    def argv(self) -> list[Argument]:
        owner = self.owner
        args: list[Argument] = ["park", owner.scope, owner.holder, owner.epoch, self.cap]
        for gate, stem, placed, item in self.rows:
            tail = make_tail(item.topic, item.route, item.refs, item.body)
            args += [gate, encode_text(stem), int(placed), encode_text(item.id), tail]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


@dataclass(slots=True)
class LookAtHeads:
    """What (gate, stem) is: DONE the head, DUPLICATE it has succeeded before, ABSENT outside the order."""

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = False
    rows: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["look", *(encode_text(part) for row in self.rows for part in row)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


@dataclass(slots=True)
class PassHeads:
    """The heads (gate, stem) are through: the next ones are due. `how`: "s" succeeded, "d" given up, "*" by hand.

    DONE, or ABSENT: it was not the head.
    """

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = True
    how: str
    rows: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["pass", self.how, *(encode_text(part) for row in self.rows for part in row)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


@dataclass(slots=True)
class ListKeys:
    """One page of closed keys of a scope ("" = of all), in no order: (next cursor, "0" = that was all; keys)."""

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = False
    scope: str = ""
    cursor: str = "0"
    count: int = 500
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["list", self.scope, self.cursor, self.count]

    def parse(self, reply: Any, shard: int) -> tuple[str, list[ClosedKey]]:
        keys = [closed_key(decode_text(reply[at]), reply[at + 1], reply[at + 2]) for at in range(1, len(reply), 3)]
        return decode_text(reply[0]), keys


def closed_key(gate: str, value: bytes, parked: int) -> ClosedKey:
    """A gate's value taken apart."""
    kind, since, length, rest = value.split(b":", 3)
    stop = int(length)
    return ClosedKey(gate, int(since), decode_text(rest[:stop]), decode_text(rest[stop:]), kind == b"r", int(parked))


@dataclass(slots=True)
class CountParked:
    """How many keys are closed, and how many items of each topic stand in line."""

    script: ClassVar[str] = "gate"
    writes: ClassVar[bool] = False
    topics: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["count", *(encode_text(topic) for topic in self.topics)]

    def parse(self, reply: Any, shard: int) -> tuple[int, dict[str, int]]:
        return int(reply[0]), {topic: int(count) for topic, count in zip(self.topics, reply[1:], strict=True)}
