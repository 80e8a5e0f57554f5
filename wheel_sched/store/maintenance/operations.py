"""Operations of maintenance: freeze a shard, remove ids that another shard has now, find and repair damage.

`Freeze` and `Lift` work in a frozen namespace, as `Restore` and `MoveCounts` do. A frozen namespace refuses every other
write. Each of these operations may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.store.core.call import Argument, Operation, new_token, outcomes_of
from wheel_sched.store.core.items import Outcome, decode_text, encode_text
from wheel_sched.store.core.shard import MemoryShard


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard: items in flight, the reason of its freeze (None: not frozen), and the number of shards."""

    claims: int
    frozen: str | None
    shards: int


@dataclass(slots=True)
class Freeze(Operation[ShardState]):
    """Execute a verb of freeze.lua on a shard: look, wake, freeze, adopt, thaw or drop. The script explains each."""

    script = "freeze"
    writes = True
    while_frozen = True
    verb: str
    arguments: Sequence[str | int] = ()
    token: str = field(default_factory=new_token)  # tells the backends that every verb may be repeated

    def argv(self) -> list[Argument]:
        return [self.verb, *(encode_text(a) if isinstance(a, str) else a for a in self.arguments)]

    def parse(self, reply: Any, shard: int) -> ShardState:
        claims, frozen, shards = reply
        return ShardState(int(claims), decode_text(frozen) or None, int(shards or 0))

    def in_memory(self, shard: MemoryShard) -> ShardState:
        raise StoreError("a memory store cannot be frozen or resharded: nothing was frozen or moved")


@dataclass(slots=True)
class Lift(Operation[int]):
    """Remove ids from a frozen shard, as if the shard had never accepted them. Returns how many were removed."""

    script = "lift"
    writes = True
    while_frozen = True
    ids: Sequence[str]
    token: str = field(default_factory=new_token)  # tells the backends that the call may be repeated

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        raise StoreError("a memory store cannot be frozen or resharded: nothing was frozen or moved")


@dataclass(slots=True)
class Mend(Operation[list[Outcome]]):
    """Repair damaged ids; mend.lua says what counts as damage.

    DONE: repaired. WRONG_STATE: not damaged. OTHER_VERSION: the id has two different records, one of a dead
    letter, so a person must decide.
    """

    script = "mend"
    writes = True
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


@dataclass(slots=True)
class Inspect(Operation[tuple[str, list[str]]]):
    """Search a part of the records for ids that are in no state. Returns (next cursor, these ids).

    The cursor "0" means: the search has finished.
    """

    script = "inspect"
    reads = True
    writes = False
    hash: str  # "body" or "deadbody"
    cursor: str = "0"
    count: int = 500
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.hash, self.cursor, self.count]

    def parse(self, reply: Any, shard: int) -> tuple[str, list[str]]:
        return decode_text(reply[0]), [decode_text(raw) for raw in reply[1]]
