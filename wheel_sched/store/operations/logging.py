"""The shard's log: a bounded stream of what happened, which nothing in the store depends on.

What an entry says is up to who writes it; `retry_topic.history` keeps attempts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from wheel_sched.store.operations.call import Argument
from wheel_sched.store.record import decode_text


class Logged(NamedTuple):
    """A page of a log: the place to go on behind ("" = nothing was there), and the entries, oldest first."""

    last: str
    entries: list[bytes]


@dataclass(slots=True)
class Log:
    """Append entries and keep about `keep` of them; answers how many were appended."""

    script: ClassVar[str] = "log"
    writes: ClassVar[bool] = True
    entries: Sequence[bytes]
    keep: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.keep, *self.entries]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)


@dataclass(slots=True)
class ReadLog:
    """One page of the log, behind `last`."""

    script: ClassVar[str] = "logged"
    writes: ClassVar[bool] = False
    last: str = ""
    limit: int = 1_000
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.last, self.limit]

    def parse(self, reply: Any, shard: int) -> Logged:
        _, places, entries = reply
        return Logged(decode_text(places[-1]) if places else "", list(entries))
