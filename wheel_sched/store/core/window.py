"""Read which items a shard releases next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, head_of
from wheel_sched.store.core.record import decode_text
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Window:
    """The items that a shard releases next: ids with their dues, without bodies."""

    shard: int
    now_us: int
    epoch: int
    due_head_ms: int | None
    fly_head_ms: int | None
    mark: bytes
    dues: list[tuple[str, int]]


@dataclass(slots=True)
class Look(Operation[Window]):
    """Read the window: the items due in the next `ahead_ms`, the heads, the epoch and the last marker."""

    script = "window"
    reads = True
    writes = False
    ahead_ms: int
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.ahead_ms, self.limit]

    def parse(self, reply: Any, shard: int) -> Window:
        now_us, epoch, due_head, fly_head, mark = reply[:5]
        dues = [(decode_text(reply[at]), reply[at + 1]) for at in range(5, len(reply), 2)]
        return Window(shard, now_us, epoch, head_of(due_head), head_of(fly_head), mark, dues)

    def in_memory(self, shard: MemoryShard) -> Window:
        found = shard.due.up_to(shard.now_ms + self.ahead_ms, self.limit)
        dues = [(shard.items[key].id, due_ms) for due_ms, key in found]
        return Window(shard.number, shard.now_us, shard.epoch, *shard.heads(), shard.mark.id, dues)
