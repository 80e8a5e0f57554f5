"""Store new items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, new_token, outcomes_of
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.record import encode_text, make_tail
from wheel_sched.store.core.shard import MemoryShard, check_batch


@dataclass(slots=True)
class Stored:
    """Outcomes of a `schedule` in the order of its items: STORED, HELD or DUPLICATE."""

    outcomes: list[Outcome]
    now_us: int

    @property
    def accepted(self) -> int:
        return len(self.outcomes) - self.outcomes.count(Outcome.DUPLICATE)


def triples_of(items: Sequence[Item]) -> list[Argument]:
    """Items as the scripts that store them expect: id, due ("" = parked), tail of the record."""
    args: list[Argument] = []
    for item in items:
        args.append(encode_text(item.id))
        args.append("" if item.due_ms is None else item.due_ms)
        args.append(make_tail(item.topic, item.route, item.refs, item.body))
    return args


def stored_of(reply: Any) -> Stored:
    """The answer of a script that stores items."""
    return Stored(outcomes_of(reply[0]), reply[1])


def stored_before(shard: MemoryShard, token: str) -> Stored | None:
    """The first answer under this token, with the time of this call."""
    said = shard.recall(token)
    return None if said is None else Stored(list(said), shard.now_us)


def answer_stored(shard: MemoryShard, token: str, outcomes: list[Outcome]) -> Stored:
    """Remember the answer of a call that stores items, and return it."""
    shard.record_answer(token, tuple(outcomes))
    return Stored(outcomes, shard.now_us)


@dataclass(slots=True)
class Schedule(Operation[Stored]):
    """Store new items. An id that exists anywhere in the shard is not changed (DUPLICATE)."""

    script = "schedule"
    writes = True
    items: Sequence[Item]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return triples_of(self.items)

    def parse(self, reply: Any, shard: int) -> Stored:
        return stored_of(reply)

    def in_memory(self, shard: MemoryShard) -> Stored:
        before = stored_before(shard, self.token)
        if before is not None:
            return before
        check_batch(len(self.items))
        return answer_stored(shard, self.token, shard.store_new(self.items))
