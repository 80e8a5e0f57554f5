"""Log intake: store a batch of a source's log with its dead letters, attempt counts and position, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import Rejected, StaleCount, StalePosition, TakenId
from wheel_sched.store.attempt_counts.operations import ENDED, AttemptCountsInMemory, BatchCount
from wheel_sched.store.core.call import Argument, Operation, bounded_reason, new_token
from wheel_sched.store.core.items import Item, Outcome, check_name
from wheel_sched.store.core.record import encode_text, make_tail
from wheel_sched.store.core.schedule import Stored, answer_stored, stored_before, stored_of, triples_of
from wheel_sched.store.core.shard import MemoryShard, check_batch


@dataclass(frozen=True, slots=True)
class Position:
    """The position in the log of a source, before and after a call that stores a log batch.

    The position moves in the step that stores the log batch, and only from `expected`. A caller that is late, or that
    read another log batch, stores nothing. All items of the log batch must lie in one shard, which has its own
    position.

    Args:
        source: a permanent name of one partition of one topic, for one reader.
        expected: the position that the store must have now; None: no position yet.
        next: the position behind the log batch.
        route: decides the shard. Defaults to the source.

    Raises:
        Rejected: from `check`.
    """

    source: str
    expected: int | None
    next: int
    route: str | None = None

    def check(self) -> None:
        check_name(self.source, "source")
        if self.route is not None:
            check_name(self.route, "route")
        numbers = (self.next,) if self.expected is None else (self.expected, self.next)
        if not self.source or any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
            raise Rejected(f"expected a source and positions from 0 up, got: {self!r}; nothing was stored")

    def text(self, raised: int, compared: int) -> str:
        return f"@{'' if self.expected is None else self.expected}:{self.next}:{raised}:{compared}:{self.source}"


class LogIntakeInMemory:
    """The positions of one shard."""

    def __init__(self, shard: MemoryShard) -> None:
        self.positions: dict[str, int] = {}  # source -> next position of its log


@dataclass(slots=True)
class AcceptLogBatch(Operation[Stored]):
    """Store a log batch: items, dead letters with a reason each, attempt counts, and the position of the source.

    Nothing is stored when the position is not the expected one (`StalePosition`), when a count is as high already or
    differs from the required number (`StaleCount`), or when an id exists already or comes twice (`TakenId`).
    """

    script = "accept"
    writes = True
    position: Position
    items: Sequence[Item]
    dead_letters: Sequence[tuple[Item, str]] = ()
    counts: Sequence[BatchCount] = ()
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        position, compared = self.position, [count for count in self.counts if count[2] is None]
        expected = "" if position.expected is None else position.expected
        args: list[Argument] = [encode_text(position.source), expected, position.next, len(self.items)]
        args += [len(self.dead_letters), len(self.counts) - len(compared), *triples_of(self.items)]
        for item, reason in self.dead_letters:
            args += (encode_text(item.id), bounded_reason(reason))
            args.append(make_tail(item.topic, item.route, item.refs, item.body))
        for key, attempts, expiry_ms in self.counts:
            if expiry_ms is not None:
                args += (encode_text(key), attempts, expiry_ms)
        for key, attempts, _ in compared:
            args += (encode_text(key), attempts)
        return args

    def parse(self, reply: Any, shard: int) -> Stored:
        return stored_of(reply)

    def in_memory(self, shard: MemoryShard) -> Stored:
        before = stored_before(shard, self.token)
        if before is not None:
            return before
        check_batch(len(self.items) + len(self.dead_letters))
        room, counts = shard.room(LogIntakeInMemory), shard.room(AttemptCountsInMemory)
        there = room.positions.get(self.position.source)
        if there != self.position.expected:
            raise StalePosition(there)
        self._compare(counts)
        self._find_taken(shard)
        outcomes = shard.store_new(self.items)
        for given, reason in self.dead_letters:
            item = shard.new_item(given)
            shard.moves(item.topic, None, shard.put_dead(item, bounded_reason(reason)))
            shard.event("accepted", item.topic)
            outcomes.append(Outcome.STORED)
        room.positions[self.position.source] = self.position.next
        for key, attempts, expiry_ms in self.counts:
            if expiry_ms is not None:
                counts.raise_to(encode_text(key), min(attempts, ENDED - 1), expiry_ms)
        return answer_stored(shard, self.token, outcomes)

    def _compare(self, counts: AttemptCountsInMemory) -> None:
        for key, attempts, expiry_ms in self.counts:
            known = counts.attempts(encode_text(key))
            if known != attempts if expiry_ms is None else known >= attempts or known == ENDED:
                raise StaleCount(f"{key!r} has {known}: nothing was stored; decide again")

    def _find_taken(self, shard: MemoryShard) -> None:
        own: set[bytes] = set()
        for item in (*self.items, *(item for item, _ in self.dead_letters)):
            key = encode_text(item.id)
            if key in shard.items or key in own:
                raise TakenId(f"{item.id!r} is there already: nothing was stored; look it up")
            own.add(key)


@dataclass(slots=True)
class ReadPositions(Operation[list[int | None]]):
    """The next positions of the logs of sources; None: nothing was stored."""

    script = "positions"
    reads = True
    writes = False
    sources: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.sources)]

    def parse(self, reply: Any, shard: int) -> list[int | None]:
        return [int(position) if position else None for position in reply]

    def in_memory(self, shard: MemoryShard) -> list[int | None]:
        positions = shard.room(LogIntakeInMemory).positions
        return [positions.get(source) for source in self.sources]
