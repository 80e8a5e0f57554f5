"""Operations of a shard's one owner, and of readers of logs: for brokers that keep an account of what went out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wheel_sched.store.items import Ownership, Resolved
from wheel_sched.store.operations.call import Argument, head_of
from wheel_sched.store.record import decode_text, encode_text


@dataclass(slots=True)
class Own:
    """Own the shard for `lease_ms` from now (0 = give it up); a new owner raises the epoch."""

    script: ClassVar[str] = "own"
    writes: ClassVar[bool] = False
    owner: str
    lease_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.owner), self.lease_ms]

    def parse(self, reply: Any, shard: int) -> Ownership:
        mine, epoch, owner, until_ms, now_us, new, claims = reply
        return Ownership(bool(mine), epoch, decode_text(owner), until_ms, now_us, bool(new), claims)


@dataclass(slots=True)
class Resolve:
    """End the open claims by the number their broker knows (None: nobody knows, they are held as in doubt)."""

    script: ClassVar[str] = "resolve"
    writes: ClassVar[bool] = True
    epoch: int
    committed: int | None
    spared: int | None = None
    lapse_cap: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        committed = "" if self.committed is None else self.committed
        return [self.epoch, committed, "" if self.spared is None else self.spared, self.lapse_cap]

    def parse(self, reply: Any, shard: int) -> Resolved:
        completed, released, held, more, now_us, due_head, fly_head = reply
        return Resolved(completed, released, held, bool(more), now_us, head_of(due_head), head_of(fly_head))


@dataclass(slots=True)
class Positions:
    """How far the logs of sources were taken in; None: nothing of it was."""

    script: ClassVar[str] = "positions"
    writes: ClassVar[bool] = False
    sources: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.sources)]

    def parse(self, reply: Any, shard: int) -> list[int | None]:
        return [int(position) if position else None for position in reply]
