"""KnownIds: ids that a caller has chosen stay known after their items have left, so that a repeat stores nothing."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import Plan
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item, check_id, check_name
from wheel_sched.store.core.plans import Plans, shard_of
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.known_ids.operations import FindKnown, ScheduleKnown


def schedule_known(plans: Plans, items: Sequence[Item], known_ms: int, token: str | None) -> Plan[Stored]:
    return plans.store_all(items, token, lambda part, part_token: ScheduleKnown(part, known_ms, part_token))


def is_known(plans: Plans, item_id: str, topic: str) -> Plan[bool]:
    check_id(item_id)
    check_name(topic, "topic")
    (answer,) = yield from plans.one(shard_of(item_id, plans.shards), FindKnown([(item_id, topic)]))
    return answer


class KnownIds:
    """The known ids of a store. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def schedule(self, items: Sequence[Item], known_ms: int, *, token: str | None = None) -> Stored:
        """Store items as `DelayStore.schedule` does. Each id stays known for its topic until `known_ms` after its due.

        A repeat is DUPLICATE, also when the first item has left. After a cancel or a delete the id may be used again.
        """
        return self._store.run(schedule_known(self._store.plans, items, known_ms, token))

    def known(self, item_id: str, topic: str) -> bool:
        """Whether an item of `topic` waits or is in flight under the id, or the id is still known for the topic."""
        return self._store.run(is_known(self._store.plans, item_id, topic))


class AsyncKnownIds:
    """The asyncio twin of `KnownIds`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def schedule(self, items: Sequence[Item], known_ms: int, *, token: str | None = None) -> Stored:
        return await self._store.run(schedule_known(self._store.plans, items, known_ms, token))

    async def known(self, item_id: str, topic: str) -> bool:
        return await self._store.run(is_known(self._store.plans, item_id, topic))
