"""WriterFences: each item of a writer's epoch is stored once, however often the writer repeats the epoch."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import Plan
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.writer_fence.operations import CloseEpoch, Fence, ScheduleFenced


def schedule_fenced(plans: Plans, items: Sequence[Item], fence: Fence, token: str | None) -> Plan[Stored]:
    fence.check()
    return plans.store_all(items, token, lambda part, part_token: ScheduleFenced(part, fence, part_token))


def close_epoch(plans: Plans, fence: Fence) -> Plan[None]:
    fence.check()
    yield plans.everywhere(lambda: CloseEpoch(fence))


class WriterFences:
    """The writer fences of a store. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def schedule(self, items: Sequence[Item], fence: Fence, *, token: str | None = None) -> Stored:
        """Store items as `DelayStore.schedule` does. An id that came before in the epoch is DUPLICATE.

        This holds also after the item of the id has left. For a closed epoch the call stores nothing.
        """
        return self._store.run(schedule_fenced(self._store.plans, items, fence, token))

    def close_epoch(self, fence: Fence) -> None:
        """Close an epoch of a writer and all epochs before it: they store nothing more. Frees the remembered ids."""
        self._store.run(close_epoch(self._store.plans, fence))


class AsyncWriterFences:
    """The asyncio twin of `WriterFences`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def schedule(self, items: Sequence[Item], fence: Fence, *, token: str | None = None) -> Stored:
        return await self._store.run(schedule_fenced(self._store.plans, items, fence, token))

    async def close_epoch(self, fence: Fence) -> None:
        await self._store.run(close_epoch(self._store.plans, fence))
