"""Open a shard: create it, or read how it was created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation
from wheel_sched.store.core.record import decode_text

SCHEMA = 1  # version of keys and records; releases with the same version can share a namespace


@dataclass(slots=True)
class Open(Operation[tuple[int, int, str, int, int]]):
    """Create the shard, or read how it was created: (schema, shards, clock, epoch, server time in us)."""

    script = "open"
    writes = True
    shards: int
    clock: str
    token: str = ""

    def argv(self) -> list[Argument]:
        return [SCHEMA, self.shards, self.clock]

    def parse(self, reply: Any, shard: int) -> tuple[int, int, str, int, int]:
        schema, shards, clock, epoch, now_us = reply
        return int(schema), int(shards), decode_text(clock), int(epoch), int(now_us)
