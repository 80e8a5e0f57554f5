"""Attempt counts: how often each message was tried. The store keeps them, so a forged header cannot lower them.

A count belongs to a key that the caller chooses, and lives until its expiry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wheel_sched.store.core.call import Argument, Call, Operation, Plan, new_token
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome, check_id, decode_text, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored, StoringOperation, triples_of
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new
from wheel_sched.store.history import append_history

ENDED = 999
"""This instead of a number of attempts means that the message has succeeded. A number of attempts is at most 998."""


BatchCount = tuple[str, int, int | None]
"""An attempt count of a log batch: its key, the attempts to raise it to, and its expiry (ms).

The store refuses the batch if the stored count is not below the attempts, or if the message of the count has ended.
If the expiry is None, the count is only compared: the store refuses the batch if the stored count is another number.
"""


def raise_counts(plans: Plans, counts: Sequence[tuple[str, int, int]]) -> Plan[list[int]]:
    """Raise counts (key, attempts, expiry in ms) in one round trip. Returns the greatest known count of each key."""
    for key, _, _ in counts:
        check_id(key)
    return plans.each(counts, lambda count: count[0], lambda part, _: RaiseCounts(part))


def raise_and_record(
    plans: Plans,
    counts: Sequence[tuple[str, int, int]],
    *,
    history: Sequence[tuple[str, bytes]] = (),
    keep: int = 0,
) -> Plan[list[int]]:
    """Raise counts (key, attempts, expiry in ms). Returns the greatest known count of each key.

    A row with 0 attempts only reads its count. `ENDED` instead of the attempts means that the message has succeeded. A
    repeat of the call changes no count. The call can append `history` in the same round trip (a repeat appends it
    again); for `keep` see `History.append`.
    """
    if not history:
        return (yield from raise_counts(plans, counts))
    known, _ = yield from together(raise_counts(plans, counts), append_history(plans, history, keep=keep))
    answer: list[int] = known
    return answer


def together(*plans: Plan[Any]) -> Plan[list[Any]]:
    """Run several plans, each of one round trip, in a single round trip. Returns the answer of each plan."""
    first: list[list[Call[Any]]] = []
    values: list[Any] = [None] * len(plans)
    places: list[int] = []
    for place, plan in enumerate(plans):
        try:
            first.append(next(plan))
            places.append(place)
        except StopIteration as end:
            values[place] = end.value
    answers: list[Any] = (yield [call for calls in first for call in calls]) if first else []
    at = 0
    for place, calls in zip(places, first, strict=True):
        try:
            plans[place].send(answers[at : at + len(calls)])
            raise AssertionError("a plan of one round trip asked for a second one")
        except StopIteration as end:
            values[place] = end.value
        at += len(calls)
    return values


def schedule_counted(
    plans: Plans, items: Sequence[Item], counts: Sequence[tuple[str, int, int]], *, token: str | None = None
) -> Plan[Stored]:
    """Store items as `DelayStore.schedule` does, and raise counts.

    With one shard, 1 to 500 items and 1 to 1,000 counts, both happen in one atomic step. Otherwise the counts are
    raised after the items.
    """
    for key, _, _ in counts:
        check_id(key)
    if plans.shards == 1 and 0 < len(items) <= MAX_BATCH and 0 < len(counts) <= 2 * MAX_BATCH:
        return (
            yield from plans.store_all(items, token, lambda part, part_token: ScheduleCounted(part, counts, part_token))
        )
    stored = yield from plans.schedule(items, token=token)
    yield from raise_counts(plans, [(key, min(attempts, ENDED - 1), expiry_ms) for key, attempts, expiry_ms in counts])
    return stored


def all_counts(plans: Plans, shard: int) -> Plan[list[AttemptCount]]:
    """All attempt counts of a shard, in order of their expiry. If counts change meanwhile, some may be missing."""
    found: list[AttemptCount] = []
    while True:
        page = yield from plans.one(shard, ListCounts(len(found)))
        found += page
        if len(page) < MAX_BATCH:
            return found


class AttemptCounts(Capability):
    """Raises and reads the attempt counts in a store, and stores items together with a raised count."""

    raise_to = blocking(raise_and_record)
    schedule = blocking(schedule_counted)
    all = blocking(all_counts)


class AsyncAttemptCounts(AsyncCapability):
    """The asyncio twin of `AttemptCounts`."""

    raise_to = awaited(raise_and_record)
    schedule = awaited(schedule_counted)
    all = awaited(all_counts)


UNSEEN = 10_000  # with fewer counts, the store does not search for expired ones


class AttemptCountsInMemory:
    """The attempt counts of one shard of a store in memory: the twin of `prelude.lua`."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.counts: dict[bytes, tuple[int, int]] = {}  # key -> (expiry in s, attempts)
        self._at_most = UNSEEN
        shard.on_sweep.append(self.forget_old)

    def attempts(self, key: bytes) -> int:
        """The number of attempts under a key; 0 if there is no count or it has expired."""
        until_s, known = self.counts.get(key, (0, 0))
        return known if until_s * 1000 > self._shard.now_ms else 0

    def forget_old(self) -> None:
        """Remove expired counts."""
        now_s = self._shard.now_ms // 1000
        for key in [key for key, (expiry_s, _) in self.counts.items() if expiry_s < now_s]:
            del self.counts[key]
        self._at_most = max(UNSEEN, 2 * len(self.counts))

    def raise_to(self, key: bytes, attempts: int, expiry_ms: int) -> int:
        """Raise the count of a key. Returns the count: the greatest number given since the last expiry of the count."""
        known = max(self.attempts(key), attempts if attempts == ENDED else min(attempts, ENDED - 1))
        self.counts[key] = max(-(-expiry_ms // 1000), self.counts.get(key, (0, 0))[0]), known
        if len(self.counts) > self._at_most:  # the number has doubled since the last search
            self.forget_old()
        return known


@dataclass(slots=True)
class RaiseCounts(Operation[list[int]]):
    """Raise attempt counts. Returns the greatest known count of each key. A row with 0 attempts only reads."""

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
class ScheduleCounted(StoringOperation):
    """Store new items and raise attempt counts in one atomic step. The counts never prevent the storing."""

    script = "schedule_counted"
    items: Sequence[Item]
    counts: Sequence[tuple[str, int, int]]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        args = [len(self.items), *triples_of(self.items)]
        for key, attempts, expiry_ms in self.counts:
            args += (encode_text(key), attempts, expiry_ms)
        return args

    def store(self, shard: MemoryShard) -> list[Outcome]:
        outcomes = store_new(shard, self.items)
        room = shard.room(AttemptCountsInMemory)
        for key, attempts, expiry_ms in self.counts:
            room.raise_to(encode_text(key), min(attempts, ENDED - 1), expiry_ms)
        return outcomes


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
    """Read a page of attempt counts in order of expiry, after the first `start` counts."""

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
    """Put attempt counts into a frozen shard, or remove them. Returns how many counts changed.

    `arguments`: key, score, key, score, ... to put counts; keys to remove them.
    """

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
