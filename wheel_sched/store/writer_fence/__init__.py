"""Writer fences: each item of a writer's epoch is stored once, however often the writer repeats the epoch.

The store forgets the ids of an open epoch a week after the last call in it. A reshard does not move fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Operation, Plan, new_token
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import Item, Outcome, check_name, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored, StoringOperation, triples_of
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new


@dataclass(frozen=True, slots=True)
class Fence:
    """A writer and its epoch. A repeat of the epoch within a week, completely or in part, stores no item twice.

    Args:
        writer: a permanent and unique name, at most 249 characters: for example the id of a streaming query or a job.
        epoch: 0 and up. A closed epoch stores nothing more, and neither does an earlier one.

    Raises:
        Rejected: `check` raises it, when the writer or the epoch is malformed.
    """

    writer: str
    epoch: int = 0

    def check(self) -> None:
        check_name(self.writer, "writer")
        if not self.writer or type(self.epoch) is not int or not 0 <= self.epoch < 2**53:
            raise Rejected(f"expected a writer with a name and an epoch from 0 up, got: {self!r}; nothing was stored")


def schedule_fenced(plans: Plans, items: Sequence[Item], fence: Fence, *, token: str | None = None) -> Plan[Stored]:
    """Store items as `DelayStore.schedule` does. An id of an earlier call in the epoch is DUPLICATE.

    Such an id is DUPLICATE also after its item has left the store, for a week after the last call in the epoch. In a
    closed epoch every id is DUPLICATE.

    Raises:
        Rejected: the fence or an item is malformed; nothing was stored.
    """
    fence.check()
    return plans.store_all(items, token, lambda part, part_token: ScheduleFenced(part, fence, part_token))


def close_writer_epoch(plans: Plans, fence: Fence) -> Plan[None]:
    """Close an epoch of a writer and all epochs before it: they store nothing more. Forget the ids of this epoch."""
    fence.check()
    yield plans.everywhere(lambda: CloseEpoch(fence))


class WriterFences(Capability):
    """Stores the items of a writer's epoch once each, and closes epochs. In a closed epoch it stores nothing."""

    schedule = blocking(schedule_fenced)
    close_epoch = blocking(close_writer_epoch)


class AsyncWriterFences(AsyncCapability):
    """The asyncio twin of `WriterFences`."""

    schedule = awaited(schedule_fenced)
    close_epoch = awaited(close_writer_epoch)


class WriterFencesInMemory:
    """The writer fences of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self.closed: dict[str, int] = {}  # writer -> last closed epoch
        self.brought: dict[tuple[str, int], set[bytes]] = {}  # ids of the items of an open epoch


@dataclass(slots=True)
class ScheduleFenced(StoringOperation):
    """Store new items for an epoch of a writer. An id of an earlier call in the epoch is DUPLICATE.

    Such an id is DUPLICATE also after its item has left the store.
    """

    script = "schedule_fenced"
    items: Sequence[Item]
    fence: Fence
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.fence.epoch, encode_text(self.fence.writer), *triples_of(self.items)]

    def store(self, shard: MemoryShard) -> list[Outcome]:
        room, fence = shard.room(WriterFencesInMemory), self.fence
        if fence.epoch <= room.closed.get(fence.writer, -1):
            return store_new(shard, self.items, lambda *_: True)
        brought = room.brought.setdefault((fence.writer, fence.epoch), set())
        outcomes = store_new(shard, self.items, lambda key, _: key in brought)
        brought.update(encode_text(item.id) for item in self.items)
        return outcomes


@dataclass(slots=True)
class CloseEpoch(Operation[int]):
    """Close an epoch of a writer and all epochs before it. Returns the last closed epoch."""

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
