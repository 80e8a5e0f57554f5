"""LogIntake: store the log of a source batch by batch. Each batch is stored once, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheel_sched.errors import Rejected, StaleCount, StalePosition
from wheel_sched.store.attempt_counts.face import raise_counts
from wheel_sched.store.attempt_counts.operations import ENDED, BatchCount, RaiseCounts
from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import Call, Plan, new_token
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, Item, check_id
from wheel_sched.store.core.plans import Plans, shard_of
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.log_intake.operations import AcceptLogBatch, Position, ReadPositions


def accept(
    plans: Plans,
    position: Position,
    items: Sequence[Item],
    dead_letters: Sequence[tuple[Item, str]],
    counts: Sequence[BatchCount],
    token: str | None,
) -> Plan[Stored]:
    """One atomic step. With several shards the counts lie in other shards: compared before it, raised after it."""
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
    calls, members = plans.batched(sources, lambda source: source, lambda part, _: ReadPositions(part), "")
    found: list[int | None] = [None] * len(sources)
    replies: list[list[int | None]] = (yield calls) if calls else []
    for indices, answers in zip(members, replies, strict=True):
        for i, answer in zip(indices, answers, strict=True):
            found[i] = answer
    return found


class LogIntake:
    """The log intake of a store. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def accept(
        self,
        position: Position,
        items: Sequence[Item],
        dead_letters: Sequence[tuple[Item, str]] = (),
        *,
        counts: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Stored:
        """Store a log batch, its dead letters (with a reason each), its position and its attempt counts, in one step.

        The outcomes are those of the items, then those of the dead letters. With several shards the counts lie in other
        shards: they are compared before the step and raised after it.

        Raises:
            StalePosition: the stored position of the source is another; nothing was stored.
            StaleCount: the store has a higher or other number for one of `counts`; nothing was stored.
            TakenId: one of the ids exists already, or comes twice; nothing was stored.
            Rejected: an item is malformed, or the batch too long; nothing was stored.
        """
        return self._store.run(accept(self._store.plans, position, items, dead_letters, counts, token))

    def begin_accept(
        self,
        position: Position,
        items: Sequence[Item],
        dead_letters: Sequence[tuple[Item, str]] = (),
        *,
        counts: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Callable[[], Stored]:
        """`accept` in two halves, so that the caller works while the server does.

        The returned function waits for the answer; call it once. It raises the errors of `accept`. After an error, pass
        the same batch to `accept`, under the same token.

        Raises:
            Rejected: an item is malformed, or the batch too long; nothing was sent.
        """
        plan = accept(self._store.plans, position, items, dead_letters, counts, token)
        begun = self._store.begin(next(plan))
        return lambda: self._store.run(plan, begun.answers())

    def positions(self, sources: Sequence[str]) -> list[int | None]:
        """The next position of each source's log, None where nothing was stored."""
        return self._store.run(read_positions(self._store.plans, sources))


class AsyncLogIntake:
    """The asyncio twin of `LogIntake`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def accept(
        self,
        position: Position,
        items: Sequence[Item],
        dead_letters: Sequence[tuple[Item, str]] = (),
        *,
        counts: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Stored:
        return await self._store.run(accept(self._store.plans, position, items, dead_letters, counts, token))

    async def positions(self, sources: Sequence[str]) -> list[int | None]:
        return await self._store.run(read_positions(self._store.plans, sources))
