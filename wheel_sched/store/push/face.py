"""ServerPush: the server itself pushes due items to streams or lists, in the step that claims them: exactly once."""

from __future__ import annotations

from wheel_sched.store.core.async_delay_store import AsyncDelayStore
from wheel_sched.store.core.call import new_token
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.push.operations import PushDue, Pushed


class ServerPush:
    """Push from a store to streams or lists of the same server. Any thread; errors are `DelayStore`'s.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def push(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 30_000,
        shard: int = 0,
        prefix: str = "",
        create: bool = False,
        maxlen: int = 0,
        token: str | None = None,
    ) -> Pushed:
        """Claim and push due items in one step.

        Their bodies must be in push form (see `push_form`). An item that cannot be pushed stays claimed.
        """
        operation = PushDue(limit, lease_ms, prefix, create, maxlen, token=token or new_token())
        return self._store.run(self._store.plans.one(shard, operation))


class AsyncServerPush:
    """The asyncio twin of `ServerPush`, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store

    async def push(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 30_000,
        shard: int = 0,
        prefix: str = "",
        create: bool = False,
        maxlen: int = 0,
        token: str | None = None,
    ) -> Pushed:
        operation = PushDue(limit, lease_ms, prefix, create, maxlen, token=token or new_token())
        return await self._store.run(self._store.plans.one(shard, operation))
