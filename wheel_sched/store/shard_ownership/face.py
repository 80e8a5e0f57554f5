"""ShardOwnership: one dispatcher at a time owns a shard, where a broker and not the store decides what went out."""

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
        """Own a shard for `lease_ms` from now, or extend that; a new owner raises the epoch. 0 gives the shard up."""
        return self._store.run(self._store.plans.one(shard, Own(owner, lease_ms)))

    def resolve(
        self, shard: int, epoch: int, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
    ) -> Resolved:
        """End open claims by the number that their broker knows (None: nobody knows, so they are held as in doubt).

        Claims up to `committed` went out, those above did not. The claim `spared` is left alone.
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
