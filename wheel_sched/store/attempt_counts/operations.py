"""Attempt counts: how often a message was tried, kept beside the message, so that a forged header cannot lower it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wheel_sched.store.core.call import Argument, Operation, new_token
from wheel_sched.store.core.items import MAX_BATCH, Item
from wheel_sched.store.core.record import decode_text, encode_text
from wheel_sched.store.core.schedule import Stored, answer_stored, stored_before, stored_of, triples_of
from wheel_sched.store.core.shard import MemoryShard, check_batch

ENDED = 999
"""In place of a number of attempts: the message has succeeded. A number of attempts is 998 at most."""


BatchCount = tuple[str, int, int | None]
"""An attempt count of a log batch: its key, the attempts to raise it to, and its expiry (ms).

The batch is refused when the count is as high already, or when its message has ended. Without an expiry the count is
not raised; then the batch is refused unless the count equals these attempts.
"""


UNSEEN = 10_000  # below this number of counts, nobody searches for expired ones


class AttemptCountsInMemory:
    """The attempt counts of one shard: the twin of `prelude.lua`."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.counts: dict[bytes, tuple[int, int]] = {}  # key -> (expiry in s, attempts)
        self._at_most = UNSEEN
        shard.on_sweep.append(self.forget_old)

    def attempts(self, key: bytes) -> int:
        """The attempts of a count; 0 when it has expired."""
        until_s, known = self.counts.get(key, (0, 0))
        return known if until_s * 1000 > self._shard.now_ms else 0

    def forget_old(self) -> None:
        """Remove expired counts."""
        now_s = self._shard.now_ms // 1000
        for key in [key for key, (expiry_s, _) in self.counts.items() if expiry_s < now_s]:
            del self.counts[key]
        self._at_most = max(UNSEEN, 2 * len(self.counts))

    def raise_to(self, key: bytes, attempts: int, expiry_ms: int) -> int:
        """Raise a count. Returns the greatest number that any caller has given."""
        known = max(self.attempts(key), attempts if attempts == ENDED else min(attempts, ENDED - 1))
        self.counts[key] = max(-(-expiry_ms // 1000), self.counts.get(key, (0, 0))[0]), known
        if len(self.counts) > self._at_most:  # the number has doubled since the last search
            self.forget_old()
        return known


@dataclass(slots=True)
class RaiseCounts(Operation[list[int]]):
    """Raise attempt counts and answer the greatest known count of each key; 0 attempts only reads."""

    script = "raise_counts"
    writes = True
    repeatable = True
    counts: Sequence[tuple[str, int, int]]  # key, attempts, expiry in ms
    token: str = ""

    def argv(self) -> list[Argument]:
        return [part for key, attempts, expiry_ms in self.counts for part in (encode_text(key), attempts, expiry_ms)]

    def parse(self, reply: Any, shard: int) -> list[int]:
        return list(reply)

    def in_memory(self, shard: MemoryShard) -> list[int]:
        room = shard.room(AttemptCountsInMemory)
        answers = []
        for name, attempts, expiry_ms in self.counts:
            key = encode_text(name)
            answers.append(room.raise_to(key, attempts, expiry_ms) if attempts > 0 else room.attempts(key))
        return answers


@dataclass(slots=True)
class ScheduleCounted(Operation[Stored]):
    """Store new items and raise attempt counts in one atomic step. The counts never prevent the storing."""

    script = "schedule_counted"
    writes = True
    items: Sequence[Item]
    counts: Sequence[tuple[str, int, int]]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        args = [len(self.items), *triples_of(self.items)]
        for key, attempts, expiry_ms in self.counts:
            args += (encode_text(key), attempts, expiry_ms)
        return args

    def parse(self, reply: Any, shard: int) -> Stored:
        return stored_of(reply)

    def in_memory(self, shard: MemoryShard) -> Stored:
        before = stored_before(shard, self.token)
        if before is not None:
            return before
        check_batch(len(self.items))
        outcomes = shard.store_new(self.items)
        room = shard.room(AttemptCountsInMemory)
        for key, attempts, expiry_ms in self.counts:
            room.raise_to(encode_text(key), min(attempts, ENDED - 1), expiry_ms)
        return answer_stored(shard, self.token, outcomes)


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """How often a message was tried, and when this count expires."""

    key: str
    attempts: int
    expiry_ms: int

    @property
    def score(self) -> int:
        """The count as one number, as the server keeps it (see prelude.lua)."""
        return self.expiry_ms // 1000 * 1000 + self.attempts


@dataclass(slots=True)
class ListCounts(Operation[list[AttemptCount]]):
    """One page of attempt counts, in order of expiry, from a rank on."""

    script = "list_counts"
    reads = True
    writes = False
    start: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.start]

    def parse(self, reply: Any, shard: int) -> list[AttemptCount]:
        return [
            AttemptCount(decode_text(reply[at]), reply[at + 1] % 1000, reply[at + 1] // 1000 * 1000)
            for at in range(0, len(reply), 2)
        ]

    def in_memory(self, shard: MemoryShard) -> list[AttemptCount]:
        now_s = shard.now_ms // 1000
        counts = shard.room(AttemptCountsInMemory).counts
        order = sorted((expiry_s * 1000 + n, key) for key, (expiry_s, n) in counts.items() if expiry_s >= now_s)
        return [
            AttemptCount(decode_text(key), score % 1000, score // 1000 * 1000)
            for score, key in order[self.start : self.start + MAX_BATCH]
        ]


@dataclass(slots=True)
class MoveCounts(Operation[int]):
    """Put attempt counts (key, score, ...) into a frozen shard, or remove them (key, ...). Answers how many changed."""

    script = "move_counts"
    writes = True
    while_frozen = True
    verb: Literal["put", "remove"]
    arguments: Sequence[str | int]
    token: str = field(default_factory=new_token)  # tells the backends that both verbs may be repeated

    def argv(self) -> list[Argument]:
        return [self.verb, *(encode_text(a) if isinstance(a, str) else a for a in self.arguments)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)
