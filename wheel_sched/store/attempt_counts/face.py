"""AttemptCounts: how often messages were tried, kept in the store, so that a forged header cannot lower a count.

A count belongs to a key that the caller chooses, and lives until its expiry. Any thread; errors are `DelayStore`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store.attempt_counts.operations import AttemptCount, ListCounts, RaiseCounts, ScheduleCounted
from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import Plan
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, Item, check_id
from wheel_sched.store.core.plans import Plans, together
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.history.face import append_history


def raise_counts(plans: Plans, counts: Sequence[tuple[str, int, int]]) -> Plan[list[int]]:
    """One round trip."""
    for key, _, _ in counts:
        check_id(key)
    calls, members = plans.batched(counts, lambda count: count[0], lambda part, _: RaiseCounts(part), "")
    known = [0] * len(counts)
    replies: list[list[int]] = (yield calls) if calls else []
    for indices, answers in zip(members, replies, strict=True):
        for i, answer in zip(indices, answers, strict=True):
            known[i] = answer
    return known


def raise_and_record(
    plans: Plans, counts: Sequence[tuple[str, int, int]], history: Sequence[tuple[str, bytes]], keep: int
) -> Plan[list[int]]:
    """Raise counts and append history in one round trip."""
    if not history:
        return (yield from raise_counts(plans, counts))
    known, _ = yield from together(raise_counts(plans, counts), append_history(plans, history, keep))
    answer: list[int] = known
    return answer


def schedule_counted(
    plans: Plans, items: Sequence[Item], counts: Sequence[tuple[str, int, int]], token: str | None
) -> Plan[Stored]:
    """With one shard: one atomic step. With several shards: first the items, then the counts."""
    for key, _, _ in counts:
        check_id(key)
    if plans.shards == 1 and 0 < len(items) <= MAX_BATCH and 0 < len(counts) <= 2 * MAX_BATCH:
        return (
            yield from plans.store_all(items, token, lambda part, part_token: ScheduleCounted(part, counts, part_token))
        )
    stored = yield from plans.schedule(items, token)
    yield from raise_counts(plans, counts)
    return stored


def all_counts(plans: Plans, shard: int) -> Plan[list[AttemptCount]]:
    found: list[AttemptCount] = []
    while True:
        page = yield from plans.one(shard, ListCounts(len(found)))
        found += page
        if len(page) < MAX_BATCH:
            return found


class AttemptCounts:
    """The attempt counts of a store.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def raise_to(
        self, counts: Sequence[tuple[str, int, int]], *, history: Sequence[tuple[str, bytes]] = (), keep: int = 0
    ) -> list[int]:
        """Raise counts (key, attempts, expiry in ms). Returns the greatest known count of each key.

        0 attempts only reads. `ENDED` in place of the attempts means that the message has ended. A repeat changes
        nothing more. The call can append `history` in the same round trip; `keep` as in `History.append`.
        """
        return self._store.run(raise_and_record(self._store.plans, counts, history, keep))

    def schedule(
        self, items: Sequence[Item], counts: Sequence[tuple[str, int, int]], *, token: str | None = None
    ) -> Stored:
        """Store items as `DelayStore.schedule` does, and raise counts.

        With one shard both happen in one atomic step. With several shards the counts are raised after the items.
        """
        return self._store.run(schedule_counted(self._store.plans, items, counts, token))

    def all(self, shard: int) -> list[AttemptCount]:
        """All counts of a shard in order of expiry."""
        return self._store.run(all_counts(self._store.plans, shard))


class AsyncAttemptCounts:
    """The asyncio twin of `AttemptCounts`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def raise_to(
        self, counts: Sequence[tuple[str, int, int]], *, history: Sequence[tuple[str, bytes]] = (), keep: int = 0
    ) -> list[int]:
        return await self._store.run(raise_and_record(self._store.plans, counts, history, keep))

    async def schedule(
        self, items: Sequence[Item], counts: Sequence[tuple[str, int, int]], *, token: str | None = None
    ) -> Stored:
        return await self._store.run(schedule_counted(self._store.plans, items, counts, token))

    async def all(self, shard: int) -> list[AttemptCount]:
        return await self._store.run(all_counts(self._store.plans, shard))
