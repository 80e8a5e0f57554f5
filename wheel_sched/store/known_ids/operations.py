"""Known ids: an id that a caller has chosen stays known for its topic after its item has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, new_token
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.record import encode_text
from wheel_sched.store.core.schedule import Stored, answer_stored, stored_before, stored_of, triples_of
from wheel_sched.store.core.shard import MemoryItem, MemoryShard, check_batch, plain

UNSEEN = 10_000  # below this number of ids, nobody searches for expired ones


class KnownIdsInMemory:
    """The known ids of one shard: the twin of `prelude.lua`."""

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
class ScheduleKnown(Operation[Stored]):
    """Store new items whose ids stay known for their topics until `known_ms` after the due; a known id is DUPLICATE."""

    script = "schedule_known"
    writes = True
    items: Sequence[Item]
    known_ms: int
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        return [self.known_ms, *triples_of(self.items)]

    def parse(self, reply: Any, shard: int) -> Stored:
        return stored_of(reply)

    def in_memory(self, shard: MemoryShard) -> Stored:
        before = stored_before(shard, self.token)
        if before is not None:
            return before
        check_batch(len(self.items))
        room = shard.room(KnownIdsInMemory)
        outcomes = shard.store_new(self.items, lambda key, given: room.is_known(key, plain(given.topic)))
        for given, outcome in zip(self.items, outcomes, strict=True):
            if outcome is not Outcome.DUPLICATE:
                until_ms = max(given.due_ms or 0, shard.now_ms) + self.known_ms
                room.remember(encode_text(given.id), plain(given.topic), until_ms)
        return answer_stored(shard, self.token, outcomes)


@dataclass(slots=True)
class FindKnown(Operation[list[bool]]):
    """Whether (id, topic) pairs are known: stored as known ids, or waiting or in flight now."""

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
