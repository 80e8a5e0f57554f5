"""Store new items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, new_token, outcomes_of
from wheel_sched.store.core.items import Item, Outcome, encode_text, make_tail
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
    """Arguments for the scripts that store items: for each item its id, due time ("" = none) and tail of the record."""
    args: list[Argument] = []
    for item in items:
        args.append(encode_text(item.id))
        args.append("" if item.due_ms is None else item.due_ms)
        args.append(make_tail(item.topic, item.route, item.refs, item.body))
    return args


class StoringOperation(Operation[Stored]):
    """Base of the operations that store new items. A repeat under the same token gets the first answer."""

    __slots__ = ()
    writes = True
    items: Sequence[Item]

    def parse(self, reply: Any, shard: int) -> Stored:
        return Stored(outcomes_of(reply[0]), reply[1])

    def in_memory(self, shard: MemoryShard) -> Stored:
        outcomes = shard.recall(self.token)
        if outcomes is None:
            check_batch(len(self.items))
            outcomes = self.store(shard)
            shard.record_answer(self.token, outcomes)
        return Stored(list(outcomes), shard.now_us)

    def store(self, shard: MemoryShard) -> list[Outcome]:
        """Store the items in a shard of a store in memory. Returns their outcomes."""
        raise NotImplementedError


@dataclass(slots=True)
class Schedule(StoringOperation):
    """Store new items. An id that exists in the shard, in any state, is not changed (DUPLICATE)."""

    script = "schedule"
    items: Sequence[Item]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return triples_of(self.items)

    def store(self, shard: MemoryShard) -> list[Outcome]:
        return shard.store_new(self.items)
