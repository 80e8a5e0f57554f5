"""History: a bounded record of events, for people and reports. Nothing depends on it or fails because of it."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.errors import Rejected
from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import Plan
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.history.operations import Log, Logged, ReadLog


def append_history(plans: Plans, entries: Sequence[tuple[str, bytes]], keep: int) -> Plan[int]:
    """One round trip, or none without entries."""
    if not entries:
        return 0
    if keep < 1:
        raise Rejected(f"expected keep to be at least 1, got: {keep!r}; nothing was logged")
    per_shard = max(1, keep // plans.shards)
    calls, _ = plans.batched(
        entries, lambda entry: entry[0], lambda part, _: Log([text for _, text in part], per_shard), ""
    )
    return sum((yield calls))


class History:
    """The history of a store. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def append(self, entries: Sequence[tuple[str, bytes]], *, keep: int) -> int:
        """Append (route, entry) and keep about `keep` entries in all. Returns how many were appended."""
        return self._store.run(append_history(self._store.plans, entries, keep))

    def read(self, shard: int, last: str = "", limit: int = 1_000) -> Logged:
        """One page of a shard's history behind `last` ("" = from the start), oldest first."""
        return self._store.run(self._store.plans.one(shard, ReadLog(last, limit)))


class AsyncHistory:
    """The asyncio twin of `History`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def append(self, entries: Sequence[tuple[str, bytes]], *, keep: int) -> int:
        return await self._store.run(append_history(self._store.plans, entries, keep))

    async def read(self, shard: int, last: str = "", limit: int = 1_000) -> Logged:
        return await self._store.run(self._store.plans.one(shard, ReadLog(last, limit)))
