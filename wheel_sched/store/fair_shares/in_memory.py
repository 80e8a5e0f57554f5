"""FairSharesInMemory: the fair topics of one shard in memory, as the core and the verbs of fair.lua use them."""

from __future__ import annotations

from collections.abc import Container, Sequence

from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.sorted_set import SortedSet
from wheel_sched.store.fair_shares.rings_in_memory import NONE, Rings, StoredShares, key_of, name_of
from wheel_sched.store.fair_shares.taking_in_memory import Taking

SOON_MS = 60_000  # as in prelude_finding.lua


class FairSharesInMemory(Rings):
    """The fair topics of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        super().__init__(shard)
        self._taking = Taking(self)

    # What the core calls.

    def add_waiting(self, item: MemoryItem, due_ms: int) -> bool:
        """Let a new item wait in `ready`, if its topic is fair and it is due soon. Returns whether it does."""
        if item.topic not in self.settings or due_ms > self.shard.now_ms + SOON_MS:
            return False
        self.wakes_at(name_of(item.topic, self.enqueue(item, due_ms)), due_ms)
        return True

    def dropped(self, item: MemoryItem, due_ms: int) -> None:
        """Remove an item that waited in `ready` from the queue of its key."""
        if item.topic in self.queues:
            self.queues[item.topic].discard(b"%s\0%016d%s" % (key_of(item.refs), due_ms, item.key))

    def take(self, limit: int, until_ms: int) -> list[tuple[int, MemoryItem]]:
        self.wake(limit)
        return self._taking.take(limit, until_ms)

    def prepare(self) -> bool:
        """Find overdue items, as each claim does first. Returns whether the next call is likely to find more."""
        self.wake(0)
        return self._taking.prepare(self.shard.now_ms)

    def head(self, head_ms: int) -> int:
        """When the next item may be claimed: `head_ms` (of `due`), or earlier, when a key may go on. -1: never."""
        now_ms = self.shard.now_ms
        if len(self.turns):
            return min(head_ms, now_ms) if head_ms >= 0 else now_ms
        waits = (self.wait, self.until, self.next)
        return min((first for first in (head_ms, *(one.first_score() for one in waits)) if first >= 0), default=-1)

    def ended(self, keys: Sequence[bytes], published: Container[bytes]) -> None:
        """Free the places of items whose claim has ended. A published item may keep its place until `finish`."""
        self.free([key for key in keys if key in self.places and not self._stays(key, published)])

    def _stays(self, key: bytes, published: Container[bytes]) -> bool:
        return self.places[key][0] == "r" and key in published

    def renamed(self, key: bytes, other: bytes) -> None:
        if key in self.places:
            self.places[other] = self.places.pop(key)
            self.until.add(other, self.until.score(key) or 0)
            self.until.discard(key)

    # Verbs of fair.lua.

    def configure(self, topic: str, settings: StoredShares | None, costs: dict[bytes, int]) -> int:
        """Make a topic fair, or end its fair shares. Returns the number of fair topics."""
        self.costs.pop(topic, None)
        if settings is None:
            self.settings.pop(topic, None)
        else:
            self.settings[topic] = settings
            if costs:
                self.costs[topic] = costs
        if self.settings or len(self.shard.ready) or self.places:
            self.shard.shares = self
        else:
            self.shard.shares = None
            self.turn = self.rest = 0
            self._taking.at = None
        self.shard.wake_claimers(self.shard.due.first_score())
        return len(self.settings)

    def finish(self, keys: Sequence[bytes]) -> int:
        """Free the places of these ids. Returns how many had one."""
        if self.shard.shares is None:
            return 0
        found = sum(key in self.places for key in keys)
        if self.free(keys):
            self.shard.wake_claimers(self.shard.now_ms)
        return found

    def carry(self, key: bytes, other: bytes) -> bool:
        """Give the place of an id to another id, or to the same id for longer. Returns whether the id had one."""
        if key not in self.places or (key != other and other in self.places):
            return False
        if key != other:
            self.renamed(key, other)
        settings = self.settings.get(self.places[other][1])
        if settings is not None:
            self.until.add(other, self.shard.now_ms + settings.ttl_ms)
        return True

    def look(self, topic: str, limit: int) -> tuple[int, int, list[tuple[bytes, int, int, int, int, int]]]:
        """How many items wait in the queues, how many keys may go on, and rows of keys (see fair.lua)."""
        ring, queue = self.rings.get(topic, SortedSet()), self.queues.get(topic, SortedSet())
        settings = self.settings.get(topic, NONE)
        wanted = [(key, time) for time, key in ring.by_rank(0, limit)]
        if settings.cap > 0 and limit > 0:
            start = name_of(topic, b"")
            names = [name for name, count in self.busy.items() if name.startswith(start) and count >= settings.cap]
            wanted += [(key, -1) for name in names if ring.score(key := name[len(start) :]) is None]
        rows = []
        for key, time in wanted:
            first = queue.rank_behind(0, key)
            end = queue.rank_behind(0, b"%s\0%016d" % (key, self.shard.now_ms + 1))
            entry = queue.by_rank(first, 1)[0][1] if end > first else b""
            due_ms = int(entry[len(key) + 1 : len(key) + 17]) if entry else -1
            cost = self.costs.get(topic, {}).get(key, settings.cost)
            rows.append((key, time, end - first, self.busy.get(name_of(topic, key), 0), due_ms, cost))
        return len(queue), len(ring), rows
