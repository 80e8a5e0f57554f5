"""Pause and resume a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation
from wheel_sched.store.core.items import MAX_BATCH, encode_text
from wheel_sched.store.core.memory_item import plain
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Pause(Operation[tuple[int, int]]):
    """Pause or resume a topic in one shard, a page of items a call.

    Returns (number of moved items, `start` of the next call). The next `start` is -1 when all pages are finished.
    """

    script = "pause"
    writes = True
    verb: str
    topic: str
    start: int = 0
    spread_ms: int = 0
    total: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.verb, encode_text(self.topic), self.start, self.spread_ms, self.total]

    def parse(self, reply: Any, shard: int) -> tuple[int, int]:
        return reply[0], reply[1]

    def in_memory(self, shard: MemoryShard) -> tuple[int, int]:
        """Do in memory what pause.lua does."""
        topic = plain(self.topic)
        if self.verb == "resume":
            return _resume(shard, self, topic)
        shard.paused.setdefault(topic, shard.now_ms)
        place, before = shard.due, 0
        if shard.shares is not None and self.start >= len(shard.due):  # the ranks of `ready` follow those of `due`
            place, before = shard.ready, len(shard.due)
        found = place.by_rank(self.start - before, MAX_BATCH)
        moved = 0
        for due_ms, key in found:
            item = shard.items[key]
            if item.topic == topic:
                place.discard(key)
                shard.moves(topic, "due", shard.put_held(item, due_ms, b"paused"))
                moved += 1
        return moved, self.start + len(found) - moved if found else -1


def _resume(shard: MemoryShard, call: Pause, topic: str) -> tuple[int, int]:
    shard.paused.pop(topic, None)
    index = shard.held_index.get((b"paused", topic))
    found = index.by_rank(0, MAX_BATCH) if index else []
    total = max(call.total, 1)
    for rank, (due_ms, key) in enumerate(found, call.start):
        overdue = due_ms <= shard.now_ms and call.spread_ms > 0
        spread_to_ms = shard.now_ms + call.spread_ms * min(rank, total) // total
        item = shard.items[key]
        shard.drop_held(item)
        shard.moves(topic, "held", shard.put_due(item, spread_to_ms if overdue else due_ms))
    return len(found), call.start + len(found) if found else -1
