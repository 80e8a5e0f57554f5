"""The event history: each shard keeps a bounded stream of entries for people and reports. No store call depends on it.

The caller decides the content of an entry. For example, `retry_topic.history` writes the attempt history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Operation, Plan
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, decode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.shard import MemoryShard


def append_history(plans: Plans, entries: Sequence[tuple[str, bytes]], *, keep: int) -> Plan[int]:
    """Append rows (route, entry), and keep about `keep` entries over all shards. Returns how many were appended.

    Raises:
        Rejected: `keep` is below 1; nothing was appended.
    """
    if not entries:
        return 0
    if keep < 1:
        raise Rejected(f"expected keep to be at least 1, got: {keep!r}; nothing was logged")
    per_shard = max(1, keep // plans.shards)
    calls, _ = plans.batched(
        entries, lambda entry: entry[0], lambda part, _: Log([text for _, text in part], per_shard), ""
    )
    return sum((yield calls))


def read_history(plans: Plans, shard: int, last: str = "", limit: int = 1_000) -> Plan[Logged]:
    """Read a page of a shard's history behind the position `last` ("" = from the start), oldest entry first."""
    return plans.one(shard, ReadLog(last, limit))


def read_newest_history(plans: Plans, shard: int, last: str = "", limit: int = 1_000) -> Plan[Logged]:
    """Read a page of a shard's history before the position `last` ("" = from the end), newest entry first."""
    return plans.one(shard, ReadNewestLog(last, limit))


class History(Capability):
    """The event history of a store: appends entries to it and reads them. See the module's docstring."""

    append = blocking(append_history)
    read = blocking(read_history)
    newest = blocking(read_newest_history)


class AsyncHistory(AsyncCapability):
    """The asyncio twin of `History`."""

    append = awaited(append_history)
    read = awaited(read_history)
    newest = awaited(read_newest_history)


class Logged(NamedTuple):
    """A page of a history: the position of its last entry ("" = the page is empty), and its entries in order."""

    last: str
    entries: list[bytes]


class HistoryInMemory:
    """The event history of one shard, for a store in memory: the entries that `Log` has appended."""

    def __init__(self, shard: MemoryShard) -> None:
        self.entries: deque[tuple[int, bytes]] = deque()  # (number, entry)


@dataclass(slots=True)
class Log(Operation[int]):
    """Append entries to a shard's history, and keep about `keep` entries there. Returns how many were appended."""

    script = "log"
    writes = True
    entries: Sequence[bytes]
    keep: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.keep, *self.entries]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        history = shard.room(HistoryInMemory).entries
        number = history[-1][0] if history else 0
        history.extend((number + place, entry) for place, entry in enumerate(self.entries, 1))
        while len(history) > self.keep:
            history.popleft()
        return len(self.entries)


@dataclass(slots=True)
class ReadLog(Operation[Logged]):
    """Read a page of a shard's history, behind the position `last` ("" = from the start)."""

    script = "logged"
    reads = True
    writes = False
    last: str = ""
    limit: int = 1_000
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.last, self.limit]

    def parse(self, reply: Any, shard: int) -> Logged:
        _, places, entries = reply
        return Logged(decode_text(places[-1]) if places else "", list(entries))

    def in_memory(self, shard: MemoryShard) -> Logged:
        history = shard.room(HistoryInMemory).entries
        after = int(self.last) if self.last else 0
        page = list(
            islice(((number, entry) for number, entry in history if number > after), min(self.limit, 2 * MAX_BATCH))
        )
        return Logged(str(page[-1][0]) if page else "", [entry for _, entry in page])


@dataclass(slots=True)
class ReadNewestLog(ReadLog):
    """Read a page of a shard's history, before the position `last` ("" = from the end), newest entry first."""

    script = "newest_logged"

    def in_memory(self, shard: MemoryShard) -> Logged:
        history = shard.room(HistoryInMemory).entries
        older = ((number, entry) for number, entry in reversed(history) if not self.last or number < int(self.last))
        page = list(islice(older, min(self.limit, 2 * MAX_BATCH)))
        return Logged(str(page[-1][0]) if page else "", [entry for _, entry in page])
