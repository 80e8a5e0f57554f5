"""Store new items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, new_token, outcomes_of
from wheel_sched.store.core.items import Item, Outcome, decode_text, encode_text, make_tail
from wheel_sched.store.core.memory_item import check_batch
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new


@dataclass(slots=True)
class Stored:
    """Outcomes of a `schedule` in the order of its items: STORED, HELD or DUPLICATE.

    An item of a key (see `wheel_sched.store.once_per_key`) can also be SUPERSEDED (not stored) or REPLACED (stored
    instead of another). `others` has the id of that other item, by the number of the item in the call.
    """

    outcomes: list[Outcome]
    now_us: int
    others: dict[int, str] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        return len(self.outcomes) - self.outcomes.count(Outcome.DUPLICATE) - self.outcomes.count(Outcome.SUPERSEDED)


def triples_of(items: Sequence[Item]) -> list[Argument]:
    """Arguments for the scripts that store items: for each item its id, due time ("" = none) and tail of the record."""
    args: list[Argument] = []
    for item in items:
        args.append(encode_text(item.id))
        args.append("" if item.due_ms is None else item.due_ms)
        args.append(make_tail(item.topic, item.route, item.refs, item.body))
    return args


class StoringOperation(Operation[Stored]):
    """Base of the operations that store new items. A repeat under the same token gets the first answer for a minute."""

    __slots__ = ()
    writes = True
    items: Sequence[Item]

    def parse(self, reply: Any, shard: int) -> Stored:
        codes, line, rest = reply[0].partition(b"\n")
        return Stored(outcomes_of(codes), reply[1], _others(rest) if line else {})

    def in_memory(self, shard: MemoryShard) -> Stored:
        answer = shard.answers.recall(self.token)
        if answer is None:
            check_batch(len(self.items))
            shard.others = {}
            answer = self.store(shard), shard.others
            shard.answers.record(self.token, answer)
        return Stored(list(answer[0]), shard.now_us, dict(answer[1]))

    def store(self, shard: MemoryShard) -> list[Outcome]:
        """Store the items in a shard of a store in memory. Returns their outcomes."""
        raise NotImplementedError


def _others(rest: bytes) -> dict[int, str]:
    """Read the lines behind the codes of a reply, see `finish_storing` in prelude_storing.lua."""
    others: dict[int, str] = {}
    while rest:
        number, length, rest = rest.split(b":", 2)
        end = int(length)
        others[int(number) - 1] = decode_text(rest[:end])
        rest = rest[end + 1 :]
    return others


@dataclass(slots=True)
class Schedule(StoringOperation):
    """Store new items. An id that exists in the shard, in any state, is not changed (DUPLICATE)."""

    script = "schedule"
    items: Sequence[Item]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return triples_of(self.items)

    def store(self, shard: MemoryShard) -> list[Outcome]:
        return store_new(shard, self.items)
