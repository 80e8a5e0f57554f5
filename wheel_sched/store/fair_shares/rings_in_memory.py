"""Rings: the keys of the fair topics of one shard in memory, with their queues and limits. The twin of `prelude.lua`.

The comments of `prelude.lua` explain the sets and the rules. Names have the same bytes as on a server, because names of
equal score are in the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Self

from wheel_sched.store.core.items import encode_text
from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.sorted_set import SortedSet


class StoredShares(NamedTuple):
    """The settings of a fair topic as the store keeps them; see `settings_of` in prelude.lua."""

    cost: int = 10_000
    cap: int = 0
    ttl_ms: int = 600_000
    mode: Literal["s", "r"] = "s"
    weighted: bool = False
    interval_us: int = 0
    burst: int = 0
    topic_interval_us: int = 0
    topic_burst: int = 0

    def text(self) -> str:
        return " ".join(str(int(value) if isinstance(value, bool) else value) for value in self)

    @classmethod
    def read(cls, text: str) -> Self:
        cost, cap, ttl, mode, weighted, *rates = text.split(" ")
        return cls(int(cost), int(cap), int(ttl), "r" if mode == "r" else "s", weighted == "1", *map(int, rates))


FEW = 100  # as in prelude.lua
NONE = StoredShares()


def key_of(refs: Sequence[str]) -> bytes:
    """The fair key of an item with these refs; empty without one."""
    return next((encode_text(ref)[5:] for ref in refs if ref.startswith("fair:")), b"")


def name_of(topic: str, key: bytes) -> bytes:
    return encode_text(topic) + b"\0" + key


class Rings:
    """The keys of the fair topics of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self.shard = shard
        self.settings: dict[str, StoredShares] = {}
        self.costs: dict[str, dict[bytes, int]] = {}
        self.queues: dict[str, SortedSet] = {}
        self.rings: dict[str, SortedSet] = {}
        self.turns, self.wait, self.until, self.tats = SortedSet(), SortedSet(), SortedSet(), SortedSet()
        self.next = SortedSet()  # when keys join their rings
        self.places: dict[bytes, tuple[str, str, bytes]] = {}  # id -> mode, topic, fair key
        self.busy: dict[bytes, int] = {}
        self.turn = self.rest = 0

    def enqueue(self, item: MemoryItem, due_ms: int) -> bytes:
        """Put an item into `ready` and into the queue of its key. Returns the key."""
        fair_key = key_of(item.refs)
        self.shard.ready.add(item.key, due_ms)
        self.queues.setdefault(item.topic, SortedSet()).add(b"%s\0%016d%s" % (fair_key, due_ms, item.key), 0)
        return fair_key

    def wakes_at(self, name: bytes, due_ms: int) -> None:
        """Let the key of this name (see `name_of`) join its ring at `due_ms`, or earlier if an earlier time is set."""
        before = self.next.score(name)
        self.next.add(name, due_ms if before is None else min(before, due_ms))

    def join(self, topic: str, keys: Iterable[bytes]) -> int:
        """Let keys join the ring of their topic, except those that a limit holds back. Returns how many have joined."""
        settings = self.settings.get(topic, NONE)
        ring = self.rings.get(topic) or SortedSet()
        start, joined, any_free = max(ring.first_score(), 0), 0, False
        for key in keys:
            name = name_of(topic, key)
            if (settings.interval_us and name in self.wait) or 0 < settings.cap <= self.busy.get(name, 0):
                continue
            any_free = True
            if key not in ring:
                ring.add(key, start)
                joined += 1
        if any_free:
            self.rings[topic] = ring
            raw = encode_text(topic)
            if not (settings.topic_interval_us and raw in self.wait) and raw not in self.turns:
                self.turns.add(raw, self.turn)
        return joined

    def free(self, keys: Iterable[bytes]) -> int:
        """Free the places of these ids. Returns how many keys have joined a ring because of it."""
        joined = 0
        for key in keys:
            if key not in self.places:
                continue
            _, topic, fair_key = self.places.pop(key)
            self.until.discard(key)
            name = name_of(topic, fair_key)
            self.busy[name] -= 1
            if self.busy[name] <= 0:
                del self.busy[name]
            if self.queue_page(topic, fair_key, 0, 1):
                joined += self.join(topic, [fair_key])
        return joined

    def occupy(self, item: MemoryItem) -> None:
        """Give an item one of the places of its fair key. An item that has a place already only keeps it longer."""
        settings = self.settings.get(item.topic, NONE)
        if not settings.cap:
            return
        fair_key = key_of(item.refs)
        if item.key not in self.places:
            self.places[item.key] = (settings.mode, item.topic, fair_key)
            name = name_of(item.topic, fair_key)
            self.busy[name] = self.busy.get(name, 0) + 1
        self.until.add(item.key, self.shard.now_ms + settings.ttl_ms)

    def wake(self, wanted: int) -> None:
        """Let keys and topics whose time has come go on, and free places that were taken for too long.

        `wanted`: how many items the call wants. At least as many keys may join, because each may have one item only.
        """
        now_ms = self.shard.now_ms
        topics = {encode_text(topic): topic for topic in (*self.rings, *self.settings, *self.queues)}
        due: dict[str, list[bytes]] = {}
        for _, name in self.next.up_to(now_ms, max(FEW, wanted)):
            self.next.discard(name)
            raw, _, key = name.partition(b"\0")
            if (topic := topics.get(raw)) is not None:
                due.setdefault(topic, []).append(key)
        for topic, keys in due.items():
            self.join(topic, keys)
        names = [name for _, name in self.wait.up_to(now_ms, FEW)]
        for name in names:
            self.wait.discard(name)
        for name in names:
            raw, with_key, key = name.partition(b"\0")
            topic = topics.get(raw)
            if topic is not None and with_key:
                self.join(topic, [key])
            elif topic in self.rings and raw not in self.turns:
                self.turns.add(raw, self.turn)
        self.free([key for _, key in self.until.up_to(now_ms, FEW)])
        for _, name in self.tats.up_to(self.shard.now_us, FEW):
            self.tats.discard(name)

    def queue_page(self, topic: str, key: bytes, start: int, count: int) -> list[bytes]:
        """Entries of the queue of a key, `count` at most, after the first `start` ones."""
        queue = self.queues.get(topic)
        if queue is None:
            return []
        first, last = queue.rank_behind(0, key), queue.rank_behind(0, key + b"\0" + b"\xff" * 600)
        count = min(count, last - first - start)
        return [member for _, member in queue.by_rank(first + start, count)] if count > 0 else []
