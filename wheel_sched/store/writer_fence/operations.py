"""Writer fences: each item of a writer's epoch is stored once, and a closed epoch stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Operation, new_token
from wheel_sched.store.core.items import Item, check_name
from wheel_sched.store.core.record import encode_text
from wheel_sched.store.core.schedule import Stored, answer_stored, stored_before, stored_of, triples_of
from wheel_sched.store.core.shard import MemoryShard, check_batch


@dataclass(frozen=True, slots=True)
class Fence:
    """The writer and its epoch. With them a repeat of the epoch, complete or in part, stores nothing twice.

    Args:
        writer: a permanent and unique name, at most 249 characters: for example the id of a streaming query or a job.
        epoch: 0 and up. A closed epoch stores nothing any more, and neither does an earlier one.

    Raises:
        Rejected: from `check`.
    """

    writer: str
    epoch: int = 0

    def check(self) -> None:
        check_name(self.writer, "writer")
        if not self.writer or type(self.epoch) is not int or not 0 <= self.epoch < 2**53:
            raise Rejected(f"expected a writer with a name and an epoch from 0 up, got: {self!r}; nothing was stored")

    def text(self) -> str:
        return f"{self.epoch}:{self.writer}"


class WriterFencesInMemory:
    """The writers of one shard."""

    def __init__(self, shard: MemoryShard) -> None:
        self.closed: dict[str, int] = {}  # writer -> last closed epoch
        self.brought: dict[tuple[str, int], set[bytes]] = {}  # ids of the items of an open epoch


@dataclass(slots=True)
class ScheduleFenced(Operation[Stored]):
    """Store new items for an epoch of a writer. An id of an earlier call is DUPLICATE, also after it left."""

    script = "schedule_fenced"
    writes = True
    items: Sequence[Item]
    fence: Fence
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.fence.epoch, encode_text(self.fence.writer), *triples_of(self.items)]

    def parse(self, reply: Any, shard: int) -> Stored:
        return stored_of(reply)

    def in_memory(self, shard: MemoryShard) -> Stored:
        before = stored_before(shard, self.token)
        if before is not None:
            return before
        check_batch(len(self.items))
        room, fence = shard.room(WriterFencesInMemory), self.fence
        if fence.epoch <= room.closed.get(fence.writer, -1):
            return answer_stored(shard, self.token, shard.store_new(self.items, lambda *_: True))
        brought = room.brought.setdefault((fence.writer, fence.epoch), set())
        outcomes = shard.store_new(self.items, lambda key, _: key in brought)
        brought.update(encode_text(item.id) for item in self.items)
        return answer_stored(shard, self.token, outcomes)


@dataclass(slots=True)
class CloseEpoch(Operation[int]):
    """Close an epoch of a writer and all epochs before it. Answers the last closed epoch."""

    script = "close_epoch"
    writes = True
    fence: Fence
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.fence.epoch, encode_text(self.fence.writer)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        room, fence = shard.room(WriterFencesInMemory), self.fence
        last = max(fence.epoch, room.closed.get(fence.writer, -1))
        room.closed[fence.writer] = last
        room.brought.pop((fence.writer, fence.epoch), None)
        return last
