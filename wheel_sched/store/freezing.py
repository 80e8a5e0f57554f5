"""Operations of maintenance: freeze a shard, move what it holds, read its attempt records.

They work in a frozen namespace, where every other write is refused, and each may be repeated. Nothing but `backup`
and `reshard` uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wheel_sched.store.operations import Argument, new_token
from wheel_sched.store.record import decode_text, encode_text


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a maintenance call says of its shard; `frozen` is the reason, None when it is not."""

    claims: int
    frozen: str | None
    shards: int


@dataclass(slots=True)
class Freeze:
    """One verb of freeze.lua on a shard."""

    script: ClassVar[str] = "freeze"
    writes: ClassVar[bool] = True
    verb: str
    arguments: Sequence[str | int] = ()
    token: str = field(default_factory=new_token)  # every verb may be repeated; a token says so to the backends

    def argv(self) -> list[Argument]:
        return [self.verb, *(encode_text(a) if isinstance(a, str) else a for a in self.arguments)]

    def parse(self, reply: Any, shard: int) -> ShardState:
        claims, frozen, shards = reply
        return ShardState(int(claims), decode_text(frozen) or None, int(shards or 0))


@dataclass(slots=True)
class Move:
    """One verb of move.lua on a shard; answers how much changed."""

    script: ClassVar[str] = "move"
    writes: ClassVar[bool] = True
    verb: str
    arguments: Sequence[str | int] = ()
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.verb, *(encode_text(a) if isinstance(a, str) else a for a in self.arguments)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt record: how often something was tried, and until when that is remembered."""

    key: str
    attempts: int
    expiry_ms: int

    @property
    def score(self) -> int:
        """The record as one number, as the server keeps it (see remember.lua)."""
        return self.expiry_ms // 1000 * 1000 + self.attempts


@dataclass(slots=True)
class ListTries:
    """One page of attempt records from a rank on."""

    script: ClassVar[str] = "tries"
    writes: ClassVar[bool] = False
    start: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.start]

    def parse(self, reply: Any, shard: int) -> list[Tried]:
        return [
            Tried(decode_text(reply[at]), reply[at + 1] % 1000, reply[at + 1] // 1000 * 1000)
            for at in range(0, len(reply), 2)
        ]
