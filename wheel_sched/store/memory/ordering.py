"""Ordering keys in memory: the state behind `gate.lua`, and its verbs.

What is given up elsewhere gives way in `MemoryShard.give_way`, as in the prelude of the scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wheel_sched.store.items import Item, Outcome
from wheel_sched.store.operations import bounded_reason
from wheel_sched.store.operations.ordering import (
    UNKNOWN_HEAD,
    ClosedKey,
    CloseKeys,
    CountParked,
    ListKeys,
    LookAtHeads,
    Owner,
    OwnScope,
    ParkItems,
    PassHeads,
    ScopeOwnership,
)
from wheel_sched.store.record import encode_text

if TYPE_CHECKING:
    from wheel_sched.store.memory.shard import MemoryShard

_ENDED_FOR_MS = 86_400_000  # as in the prelude


@dataclass(slots=True)
class Gate:
    """A closed key; `line` maps ids to when they were parked, in order."""

    since_ms: int
    label: str
    head: str
    released: bool
    line: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class Gates:
    """The closed keys of a shard, their owners, and what has succeeded or was given up lately."""

    closed: dict[str, Gate] = field(default_factory=dict)
    owners: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # scope -> (epoch, until in ms, holder)
    done: dict[str, int] = field(default_factory=dict)  # stem -> until in ms
    gave_up: dict[str, int] = field(default_factory=dict)

    def is_head(self, gate: str, item_id: str) -> bool:
        found = self.closed.get(gate)
        return found is not None and item_id.startswith(f"{found.head}.")

    def first_in_line(self, gate: str) -> bytes | None:
        found = self.closed.get(gate)
        return None if found is None else next(iter(found.line), None)

    def leave_line(self, gate: str, key: bytes) -> None:
        if gate in self.closed:
            self.closed[gate].line.pop(key, None)

    def promote(self, gate: str, head: str, now_ms: int) -> None:
        found = self.closed[gate]
        found.head, found.since_ms, found.released = head, now_ms, True

    def open(self, gate: str) -> None:
        self.closed.pop(gate, None)

    def rebuild(self, gate: str, key: bytes, score_ms: int, now_ms: int) -> None:
        found = self.closed.setdefault(gate, Gate(now_ms, "", UNKNOWN_HEAD, released=True))
        found.line[key] = score_ms
        found.line = dict(sorted(found.line.items(), key=lambda pair: (pair[1], pair[0])))

    def end(self, ended: dict[str, int], stem: str, now_ms: int) -> None:
        """A message is through, or given up: for a day its stem is known."""
        for old in [old for old, until_ms in ended.items() if until_ms <= now_ms]:
            del ended[old]
        ended[stem] = now_ms + _ENDED_FOR_MS

    def stale(self, owner: Owner) -> bool:
        epoch, _, holder = self.owners.get(owner.scope, (0, 0, ""))
        return (epoch, holder) != (owner.epoch, owner.holder)


def gate(
    shard: MemoryShard, call: OwnScope | CloseKeys | ParkItems | LookAtHeads | PassHeads | ListKeys | CountParked
) -> object:
    """Perform one verb of `gate.lua`."""
    match call:
        case OwnScope():
            return _own(shard, call)
        case CloseKeys():
            return _close(shard, call)
        case ParkItems():
            return _park(shard, call)
        case LookAtHeads():
            return [_look(shard, gate, stem) for gate, stem in call.rows]
        case PassHeads():
            return [_pass(shard, call.how, gate, stem) for gate, stem in call.rows]
        case ListKeys():
            return "0", [_told(name, gate) for name, gate in shard.gates.closed.items() if name.startswith(call.scope)]
        case CountParked():
            return len(shard.gates.closed), _count(shard, call.topics)


def _told(name: str, gate: Gate) -> ClosedKey:
    return ClosedKey(name, gate.since_ms, gate.label, gate.head, gate.released, len(gate.line))


def _count(shard: MemoryShard, topics: Sequence[str]) -> dict[str, int]:
    return {topic: len(shard.held_index.get((b"ordered", topic), ())) for topic in topics}


def _own(shard: MemoryShard, call: OwnScope) -> ScopeOwnership:
    epoch, until_ms, holder = shard.gates.owners.get(call.scope, (0, 0, ""))
    if call.lease_ms == 0:
        if holder == call.holder:
            shard.gates.owners[call.scope] = epoch, 0, ""
        return ScopeOwnership(epoch, 0)
    lapsed = until_ms <= shard.now_ms
    if not lapsed and holder != call.holder:
        return ScopeOwnership(0, until_ms - shard.now_ms)
    epoch += lapsed or holder != call.holder
    shard.gates.owners[call.scope] = epoch, shard.now_ms + call.lease_ms, call.holder
    return ScopeOwnership(epoch, call.lease_ms)


def _close(shard: MemoryShard, call: CloseKeys) -> list[Outcome]:
    if shard.gates.stale(call.owner):
        return [Outcome.STALE] * len(call.rows)
    outcomes = []
    for name, stem, placed, label in call.rows:
        found = shard.gates.closed.get(name)
        if (found is None or found.head != stem) and _ended(shard, stem, placed):
            outcomes.append(Outcome.DUPLICATE)
            continue
        if found is None:
            found = shard.gates.closed[name] = Gate(shard.now_ms, label, stem, released=False)
        elif found.head == UNKNOWN_HEAD:
            found.since_ms, found.label, found.head, found.released = shard.now_ms, label, stem, False
        outcomes.append(Outcome.DONE if found.head == stem else Outcome.WRONG_STATE)
    return outcomes


def _succeeded(shard: MemoryShard, stem: str) -> bool:
    return shard.gates.done.get(stem, 0) > shard.now_ms


def _ended(shard: MemoryShard, stem: str, placed: bool) -> bool:
    return _succeeded(shard, stem) or (placed and shard.gates.gave_up.get(stem, 0) > shard.now_ms)


def _look(shard: MemoryShard, name: str, stem: str) -> Outcome:
    found = shard.gates.closed.get(name)
    if found is not None and found.head in (stem, UNKNOWN_HEAD):
        return Outcome.DONE
    return Outcome.DUPLICATE if _succeeded(shard, stem) else Outcome.ABSENT


def _pass(shard: MemoryShard, how: str, name: str, stem: str) -> Outcome:
    found = shard.gates.closed.get(name)
    if found is None or not (found.head in (stem, UNKNOWN_HEAD) or how == "*"):
        return Outcome.ABSENT
    if how != "*":
        shard.gates.end(shard.gates.done if how == "s" else shard.gates.gave_up, stem, shard.now_ms)
    shard.next_of_key(name)
    return Outcome.DONE


def _park(shard: MemoryShard, call: ParkItems) -> list[Outcome]:
    if shard.gates.stale(call.owner):
        return [Outcome.STALE] * len(call.rows)
    shard.seq += 1
    return [_parked(shard, *row, call.cap) for row in call.rows]


def _parked(shard: MemoryShard, name: str, stem: str, placed: bool, given: Item, cap: int) -> Outcome:
    found = shard.gates.closed.get(name)
    key = encode_text(given.id)
    if found is not None and found.head == stem:
        return Outcome.DUPLICATE if found.released else Outcome.DONE
    if _ended(shard, stem, placed) or key in shard.items:
        return Outcome.DUPLICATE
    if found is None:
        return Outcome.ABSENT
    if len(found.line) >= cap:
        return Outcome.WRONG_STATE
    last_ms = found.line[next(reversed(found.line))] if found.line else -1
    score_ms = max(shard.now_ms, last_ms + 1)
    shard.store_parked(given, key, score_ms, bounded_reason(f"ordered: key {name}"))
    found.line[key] = score_ms
    return Outcome.HELD
