"""Known ids: an id that a caller has chosen stays known for its topic after its item has left.

So storing an item with this id again stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, Plan, new_token
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import Item, Outcome, check_id, check_name, encode_text
from wheel_sched.store.core.memory_item import MemoryItem, plain
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored, StoringOperation, triples_of
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new


def schedule_known(plans: Plans, items: Sequence[Item], known_ms: int, *, token: str | None = None) -> Plan[Stored]:
    """Store items as `DelayStore.schedule` does. Each id stays known for its topic until `known_ms` after its due time.

    If the item is overdue or has no due time, its id stays known until `known_ms` from now.
    A known id is DUPLICATE, also when its item has left. After a cancel or a delete the id may be used again.
    """
    return plans.store_all(items, token, lambda part, part_token: ScheduleKnown(part, known_ms, part_token))


def is_known(plans: Plans, item_id: str, topic: str) -> Plan[bool]:
    """Whether an item of `topic` with this id waits, is held or in flight, or the id is still known for the topic.

    All shards are asked, because a route may have led the item into any of them.
    """
    check_id(item_id)
    check_name(topic, "topic")
    answers: list[list[bool]] = yield plans.everywhere(lambda: FindKnown([(item_id, topic)]))
    return any(answer for (answer,) in answers)


class KnownIds(Capability):
    """Stores items whose ids stay known after the items have left, and says whether an id is known."""

    schedule = blocking(schedule_known)
    known = blocking(is_known)


class AsyncKnownIds(AsyncCapability):
    """The asyncio twin of `KnownIds`."""

    schedule = awaited(schedule_known)
    known = awaited(is_known)


UNSEEN = 10_000  # with fewer ids, the store does not search for expired ones


class KnownIdsInMemory:
    """The known ids of one shard of a store in memory: the twin of `prelude.lua`."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self._until_ms: dict[tuple[bytes, str], int] = {}  # (id, topic) -> known until (ms)
        self._at_most = UNSEEN
        shard.on_free.append(self._forget)

    def is_known(self, key: bytes, topic: str) -> bool:
        return self._until_ms.get((key, topic), self._shard.now_ms) > self._shard.now_ms

    def remember(self, key: bytes, topic: str, until_ms: int) -> None:
        self._until_ms[key, topic] = until_ms
        if len(self._until_ms) > self._at_most:  # the number has doubled since the last search
            now_ms = self._shard.now_ms
            self._until_ms = {place: at_ms for place, at_ms in self._until_ms.items() if at_ms > now_ms}
            self._at_most = max(UNSEEN, 2 * len(self._until_ms))

    def _forget(self, item: MemoryItem) -> None:
        self._until_ms.pop((item.key, item.topic), None)


@dataclass(slots=True)
class ScheduleKnown(StoringOperation):
    """Store new items. Their ids stay known until `known_ms` after the due time, or from now; see `schedule_known`."""

    script = "schedule_known"
    items: Sequence[Item]
    known_ms: int
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.known_ms, *triples_of(self.items)]

    def store(self, shard: MemoryShard) -> list[Outcome]:
        room = shard.room(KnownIdsInMemory)
        outcomes = store_new(shard, self.items, lambda key, given: room.is_known(key, plain(given.topic)))
        for given, outcome in zip(self.items, outcomes, strict=True):
            if outcome is not Outcome.DUPLICATE:
                until_ms = max(given.due_ms or 0, shard.now_ms) + self.known_ms
                room.remember(encode_text(given.id), plain(given.topic), until_ms)
        return outcomes


@dataclass(slots=True)
class FindKnown(Operation[list[bool]]):
    """Whether pairs (id, topic) are known, or have an item that waits, is held or in flight."""

    script = "known"
    reads = True
    writes = False
    pairs: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(part) for pair in self.pairs for part in pair]

    def parse(self, reply: Any, shard: int) -> list[bool]:
        return [answer == 1 for answer in reply]

    def in_memory(self, shard: MemoryShard) -> list[bool]:
        room, answers = shard.room(KnownIdsInMemory), []
        for item_id, name in self.pairs:
            key, topic = encode_text(item_id), plain(name)
            item = shard.items.get(key)
            waits = item is not None and item.state != "dead" and item.topic == topic
            answers.append(waits or room.is_known(key, topic))
        return answers
