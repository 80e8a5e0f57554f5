"""The operations of fair shares: the verbs of fair.lua, with their twins in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wheel_sched.store.core.call import Argument, Operation, head_of
from wheel_sched.store.core.items import decode_text, encode_text
from wheel_sched.store.core.memory_item import check_batch
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.fair_shares.in_memory import FairSharesInMemory
from wheel_sched.store.fair_shares.rings_in_memory import StoredShares


class FairKey(NamedTuple):
    """A fair key with overdue items, or without a free place: its virtual time, and how many are overdue and in flight.

    The virtual time (see prelude.lua) is -1 if the key has no free place.
    """

    key: str
    time: int
    waiting: int
    in_flight: int
    oldest_due_ms: int | None = None
    weight: float = 1.0

    @property
    def capped(self) -> bool:
        """Whether the key waits until one of its items in flight has ended."""
        return self.time < 0

    def plus(self, other: FairKey) -> FairKey:
        """The sum of the numbers of this key in two shards."""
        waiting, in_flight = self.waiting + other.waiting, self.in_flight + other.in_flight
        dues = [due_ms for due_ms in (self.oldest_due_ms, other.oldest_due_ms) if due_ms is not None]
        time = min(self.time, other.time) if not self.capped and not other.capped else max(self.time, other.time)
        return FairKey(self.key, time, waiting, in_flight, min(dues, default=None), self.weight)


def _fair_key(key: bytes, time: int, waiting: int, in_flight: int, due_ms: int, cost: int) -> FairKey:
    oldest = None if due_ms < 0 else due_ms
    return FairKey(decode_text(key), time, waiting, in_flight, oldest, round(10_000 / cost, 4))


@dataclass(frozen=True, slots=True)
class FairTopic:
    """A fair topic.

    Args:
        topic: its name.
        settings: its settings, as the store keeps them.
        waiting: how many items wait in the queues of its keys, overdue or not.
        active: how many keys have overdue items and may go on.
        keys: some of these keys, in the order of their turns, and keys that wait for a place.
    """

    topic: str
    settings: StoredShares
    waiting: int
    active: int
    keys: list[FairKey]


@dataclass(slots=True)
class ConfigureTopic(Operation[int]):
    """Make a topic fair, with these settings and costs of keys; None: not fair. Returns how many topics are fair."""

    script = "fair"
    writes = True
    repeatable = True
    topic: str
    settings: StoredShares | None
    costs: Sequence[tuple[bytes, int]] = ()
    token: str = ""

    def argv(self) -> list[Argument]:
        args: list[Argument] = ["configure", encode_text(self.topic)]
        args.append("" if self.settings is None else self.settings.text())
        for key, cost in self.costs:
            args += [key, cost]
        return args

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply[1])

    def in_memory(self, shard: MemoryShard) -> int:
        return shard.room(FairSharesInMemory).configure(self.topic, self.settings, dict(self.costs))


@dataclass(slots=True)
class FinishAttempts(Operation[int]):
    """Free the places of released items. The answer is how many of them had a place."""

    script = "fair"
    writes = False
    repeatable = True
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["finish", *map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply[1])

    def in_memory(self, shard: MemoryShard) -> int:
        check_batch(len(self.ids))
        return shard.room(FairSharesInMemory).finish([encode_text(item_id) for item_id in self.ids])


@dataclass(slots=True)
class CarryPlaces(Operation[int]):
    """Give the place of the first id of each pair to the second id. The answer is how many first ids had a place.

    The time for which the place is taken starts again, also when both ids are the same.
    """

    script = "fair"
    writes = False
    repeatable = True
    pairs: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["carry", *(encode_text(item_id) for pair in self.pairs for item_id in pair)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply[1])

    def in_memory(self, shard: MemoryShard) -> int:
        check_batch(len(self.pairs))
        room = shard.room(FairSharesInMemory)
        if shard.shares is None:
            return 0
        return sum(room.carry(encode_text(item_id), encode_text(other)) for item_id, other in self.pairs)


class PreparedDue(NamedTuple):
    """The answer of `PrepareDue`: the store's time, and the earliest due time and lease end of the shard.

    `fair`: whether a topic of the shard is fair. `more`: the next call is likely to find more items.
    """

    shard: int
    now_us: int
    due_head_ms: int | None
    lease_head_ms: int | None
    fair: bool
    more: bool


@dataclass(slots=True)
class PrepareDue(Operation[PreparedDue]):
    """Look for overdue items of fair topics, as a claim does first. One call looks at about 200 items."""

    script = "fair"
    writes = False
    repeatable = True
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["prepare"]

    def parse(self, reply: Any, shard: int) -> PreparedDue:
        return PreparedDue(shard, reply[0], head_of(reply[1]), head_of(reply[2]), bool(reply[3]), bool(reply[4]))

    def in_memory(self, shard: MemoryShard) -> PreparedDue:
        fair = shard.shares is not None
        more = fair and shard.room(FairSharesInMemory).prepare()
        return PreparedDue(shard.number, shard.now_us, *shard.heads(), fair, more)


@dataclass(slots=True)
class LookAtTopic(Operation[FairTopic | None]):
    """Read a fair topic with up to `limit` of its keys. The answer is None when the topic is not fair."""

    script = "fair_look"
    reads = True
    writes = False
    topic: str
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return ["1", encode_text(self.topic), self.limit]

    def parse(self, reply: Any, shard: int) -> FairTopic | None:
        _, settings, waiting, active, *rest = reply
        if not settings:
            return None
        keys = [_fair_key(*rest[at : at + 6]) for at in range(0, len(rest), 6)]
        return FairTopic(self.topic, StoredShares.read(decode_text(settings)), waiting, active, keys)

    def in_memory(self, shard: MemoryShard) -> FairTopic | None:
        room = shard.room(FairSharesInMemory)
        settings = room.settings.get(self.topic)
        if settings is None:
            return None
        waiting, active, rows = room.look(self.topic, self.limit)
        keys = [_fair_key(*row) for row in rows]
        return FairTopic(self.topic, settings, waiting, active, keys)


@dataclass(slots=True)
class ListFairTopics(Operation[list[str]]):
    """Read the names of the fair topics."""

    script = "fair_look"
    reads = True
    writes = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return [""]

    def parse(self, reply: Any, shard: int) -> list[str]:
        return [decode_text(topic) for topic in reply[1:]]

    def in_memory(self, shard: MemoryShard) -> list[str]:
        return list(shard.room(FairSharesInMemory).settings)
