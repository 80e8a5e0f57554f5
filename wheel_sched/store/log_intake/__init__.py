"""Log intake: store the log of a source (a partition that a group reads) batch by batch.

Each batch is stored once, all of it or nothing. The dead letters of the batch, its attempt counts and the position of
the source are stored with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import Rejected, StaleCount, StalePosition, TakenId
from wheel_sched.store.attempt_counts import ENDED, AttemptCountsInMemory, BatchCount, RaiseCounts, raise_counts
from wheel_sched.store.core.call import Argument, Call, Operation, Plan, bounded_reason, new_token
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome, check_id, check_name, encode_text, make_tail
from wheel_sched.store.core.memory_item import check_batch
from wheel_sched.store.core.plans import Plans, shard_of
from wheel_sched.store.core.schedule import Stored, StoringOperation, triples_of
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.storing import store_new


@dataclass(frozen=True, slots=True)
class Position:
    """The position in the log of a source, before and after a call that stores a log batch.

    The position moves in the step that stores the log batch, and only from `expected`. A caller that is late, or that
    read another log batch, stores nothing. All items of the log batch must lie in one shard. Each shard has
    a position of its own for the source.

    Args:
        source: a permanent name of one partition of one topic, for one reader.
        expected: the position that the store must have now; None: no position yet.
        next: the position behind the log batch.
        route: decides the shard. Defaults to the source.

    Raises:
        Rejected: `check` raises it, when the source or a position is malformed.
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


def accept_batch(
    plans: Plans,
    position: Position,
    items: Sequence[Item],
    dead_letters: Sequence[tuple[Item, str]] = (),
    *,
    counts: Sequence[BatchCount] = (),
    token: str | None = None,
) -> Plan[Stored]:
    """Store a log batch, its dead letters (with a reason each), its position and its attempt counts, in one step.

    Returns the outcomes of the items, then of the dead letters. With several shards the counts may lie in other
    shards: the call compares them before the step, and raises them after it.

    Raises:
        StalePosition: the stored position of the source is not `expected`; nothing was stored.
        StaleCount: a count of `counts` does not fit the stored one. A count with an expiry must be above the stored
            one, and a count without expiry must be equal to it. Nothing was stored.
        TakenId: one of the ids exists already, or occurs twice; nothing was stored.
        Rejected: an item is malformed, or the batch is too long; nothing was stored.
    """
    shard = _check(plans, position, items, dead_letters, counts)
    token = new_token() if token is None else token
    if plans.shards == 1:
        return (yield from plans.one(0, AcceptLogBatch(position, items, dead_letters, counts, token)))
    yield from _compare(plans, shard, position, counts)
    stored = yield from plans.one(shard, AcceptLogBatch(position, items, dead_letters, (), token))
    raised = [(key, min(attempts, ENDED - 1), until_ms) for key, attempts, until_ms in counts if until_ms is not None]
    yield from raise_counts(plans, raised)
    return stored


def _check(
    plans: Plans,
    position: Position,
    items: Sequence[Item],
    dead_letters: Sequence[tuple[Item, str]],
    counts: Sequence[BatchCount],
) -> int:
    """Check the batch and return its shard."""
    position.check()
    routed = [*items, *(item for item, _ in dead_letters)]
    if len(routed) > MAX_BATCH:
        raise Rejected(f"at most {MAX_BATCH} items a log batch, got: {len(routed)}; nothing was stored")
    route = position.route or position.source
    shard = shard_of(route, plans.shards)
    for item in routed:
        item.check()
        if plans.shards > 1 and item.route != route and shard_of(item.route or item.id, plans.shards) != shard:
            raise Rejected(f"expected a route into the shard of {route!r}, got: {item.route!r}; nothing was stored")
    for key, _, _ in counts:
        check_id(key)
    return shard


def _compare(plans: Plans, shard: int, position: Position, counts: Sequence[BatchCount]) -> Plan[None]:
    asked = [(key, 0, 0) for key, _, _ in counts]
    calls, members = plans.batched(asked, lambda entry: entry[0], lambda part, _: RaiseCounts(part), "")
    *replies, (there,) = yield [*calls, Call(shard, ReadPositions([position.source]))]
    known = {
        place: count
        for part, answers in zip(members, replies, strict=True)
        for place, count in zip(part, answers, strict=True)
    }
    for place, (key, attempts, expiry_ms) in enumerate(counts):
        count = known[place]
        if count != attempts if expiry_ms is None else count >= attempts or count == ENDED:
            if there != position.expected:  # a late caller finds the counts that an earlier caller has raised
                raise StalePosition(there)
            raise StaleCount(f"{key!r} has {count}: nothing was stored; decide again")


def read_positions(plans: Plans, sources: Sequence[str]) -> Plan[list[int | None]]:
    """The position behind the last stored log batch of each source, in the source's own shard; None: no batch there."""
    return plans.each(sources, lambda source: source, lambda part, _: ReadPositions(part))


class LogIntake(Capability):
    """Stores the records of logs in the delay store, batch by batch, each batch once and all of it or nothing.

    The store keeps a position for each source: the position behind its last stored batch.
    """

    accept = blocking(accept_batch)
    positions = blocking(read_positions)

    def begin_accept(
        self,
        position: Position,
        items: Sequence[Item],
        dead_letters: Sequence[tuple[Item, str]] = (),
        *,
        counts: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Callable[[], Stored]:
        """Send the batch as `accept` does, and do not wait: the caller can work while the server works.

        With several shards only the comparison of the counts is sent now, and the returned function sends the batch.

        Call the returned function once: it waits for the answer, and raises the errors of `accept`. After an error,
        pass the same batch to `accept`, under the same token.

        Raises:
            Rejected: an item is malformed, or the batch is too long; nothing was sent.
        """
        plan = accept_batch(self.plans, position, items, dead_letters, counts=counts, token=token)
        begun = self._store.begin(next(plan))
        return lambda: self._store.run(plan, begun.answers())


class AsyncLogIntake(AsyncCapability):
    """The asyncio twin of `LogIntake`, without `begin_accept`."""

    accept = awaited(accept_batch)
    positions = awaited(read_positions)


class LogIntakeInMemory:
    """The log positions of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self.positions: dict[str, int] = {}  # source -> next position of its log


@dataclass(slots=True)
class AcceptLogBatch(StoringOperation):
    """Store a log batch: items, dead letters with a reason each, attempt counts, and the position of the source.

    Nothing is stored in three cases. `StalePosition`: the stored position is not the expected one. `StaleCount`: a
    stored count is not below its new count, or differs from a count that has no expiry. `TakenId`: an id exists
    already, or occurs twice in the batch.
    """

    script = "accept"
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

    def store(self, shard: MemoryShard) -> list[Outcome]:
        check_batch(len(self.items) + len(self.dead_letters))
        room, counts = shard.room(LogIntakeInMemory), shard.room(AttemptCountsInMemory)
        there = room.positions.get(self.position.source)
        if there != self.position.expected:
            raise StalePosition(there)
        self._compare(counts)
        self._find_taken(shard)
        outcomes = store_new(shard, self.items)
        for given, reason in self.dead_letters:
            item = shard.new_item(given)
            shard.moves(item.topic, None, shard.put_dead(item, bounded_reason(reason)))
            shard.event("accepted", item.topic)
            outcomes.append(Outcome.STORED)
        room.positions[self.position.source] = self.position.next
        for key, attempts, expiry_ms in self.counts:
            if expiry_ms is not None:
                counts.raise_to(encode_text(key), min(attempts, ENDED - 1), expiry_ms)
        return outcomes

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
                raise TakenId(
                    f"the id {item.id!r} exists already, or twice in the batch: nothing was stored; leave the item out "
                    "or give it another id"
                )
            own.add(key)


@dataclass(slots=True)
class ReadPositions(Operation[list[int | None]]):
    """Read the position behind the last stored log batch of each source; None if no batch was stored."""

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
