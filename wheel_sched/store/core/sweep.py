"""End expired leases, remove dead letters that are too many or too old, and report steps of the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.burying import trim_dead, trim_dead_above
from wheel_sched.store.core.call import Argument, Operation, head_of
from wheel_sched.store.core.items import MAX_BATCH
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Swept:
    """How many expired leases a sweep of a shard ended, and the shard's earliest due time and lease end."""

    shard: int
    now_us: int
    epoch: int
    due_head_ms: int | None
    lease_head_ms: int | None
    recovered: int


@dataclass(slots=True)
class Sweep(Operation[Swept]):
    """End expired leases, remove the oldest dead letters above `dead_cap` and those older than `dead_age_ms`.

    Then call the hooks that other capabilities have added. One call does a bounded amount of work. A limit of 0 removes
    no dead letters.
    """

    script = "sweep"
    writes = False
    dead_cap: int = 0
    dead_age_ms: int = 0
    lapse_cap: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.dead_cap, self.dead_age_ms, self.lapse_cap]

    def parse(self, reply: Any, shard: int) -> Swept:
        now_us, epoch, due_head, lease_head, recovered = reply
        return Swept(shard, now_us, epoch, head_of(due_head), head_of(lease_head), recovered)

    def in_memory(self, shard: MemoryShard) -> Swept:
        recovered = shard.recover(MAX_BATCH, self.lapse_cap)
        trim_dead_above(shard, self.dead_cap, MAX_BATCH)
        if self.dead_age_ms > 0:
            trim_dead(shard, [key for _, key in shard.dead.up_to(shard.now_ms - self.dead_age_ms, MAX_BATCH)])
        for hook in shard.on_sweep:
            hook()
        return Swept(shard.number, shard.now_us, shard.epoch, *shard.heads(), recovered)


@dataclass(slots=True)
class ReportJump(Operation[int]):
    """Record a step of the server's clock and raise the epoch. Only the first report of an epoch counts."""

    script = "jump"
    writes = False
    epoch: int
    step_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.epoch, self.step_ms]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply[1])

    def in_memory(self, shard: MemoryShard) -> int:
        if self.epoch == shard.epoch:
            shard.jumped(self.step_ms)
        return shard.epoch
