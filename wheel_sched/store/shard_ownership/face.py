"""ShardOwnership: one dispatcher at a time owns a shard. The broker records which claims it has published."""

from __future__ import annotations

from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.shard_ownership.operations import Own, Ownership, Resolve, Resolved


class ShardOwnership:
    """The ownership of the shards of a store. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def acquire(self, shard: int, owner: str, lease_ms: int) -> Ownership:
        """Acquire a shard for `lease_ms` from now, or extend the lease. A new owner raises the epoch. 0 gives up."""
        return self._store.run(self._store.plans.one(shard, Own(owner, lease_ms)))

    def resolve(
        self, shard: int, epoch: int, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
    ) -> Resolved:
        """End open claims by the claim number that their broker has recorded (None: unknown, all are held in doubt).

        The broker has published the claims up to `committed`, and none above it. The claim `spared` stays open.
        """
        return self._store.run(self._store.plans.one(shard, Resolve(epoch, committed, spared, lapse_cap)))


class AsyncShardOwnership:
    """The asyncio twin of `ShardOwnership`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def acquire(self, shard: int, owner: str, lease_ms: int) -> Ownership:
        return await self._store.run(self._store.plans.one(shard, Own(owner, lease_ms)))

    async def resolve(
        self, shard: int, epoch: int, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
    ) -> Resolved:
        return await self._store.run(self._store.plans.one(shard, Resolve(epoch, committed, spared, lapse_cap)))
