"""AsyncDelayStore: the asyncio facade of the delay store, with the methods, arguments and answers of `DelayStore`.

It belongs to one event loop, and runs the same plans as the blocking facade.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

from wheel_sched.store.core.call import Call, Plan, new_token
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.claim import Claim, ClaimDue, NumberedClaim
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import release_of, replacement_of, values_of
from wheel_sched.store.core.items import MAX_DUE_MS, Found, Item, Outcome, State
from wheel_sched.store.core.levels import opening
from wheel_sched.store.core.listing import Page
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.core.settle import Settled, Settlement
from wheel_sched.store.core.sweep import ReportJump, Swept
from wheel_sched.store.core.window import Window

T = TypeVar("T")


class AsyncBackend(Protocol):
    """Performs calls for the asyncio facade."""

    async def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls; a value or an exception for each, in order."""
        ...

    async def check_server(self) -> None: ...

    async def close(self) -> None: ...


class AsyncDelayStore:
    """The asyncio facade: the methods of `DelayStore` as coroutines, on one event loop."""

    def __init__(self, backend: AsyncBackend, *, shards: int = 1, test_clock: Callable[[], int] | None = None) -> None:
        self.backend = backend
        self.plans = Plans(shards)
        self._test_clock = test_clock

    @property
    def shards(self) -> int:
        return self.plans.shards

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.backend).__name__} shards={self.shards}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, plan: Plan[T]) -> T:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(values_of(await self.execute(calls)))
        except StopIteration as end:
            result: T = end.value
            return result

    async def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return await self.backend.execute(calls, None if self._test_clock is None else self._test_clock())

    async def open(self) -> Self:
        await self.backend.check_server()
        with opening():
            await self.run(self.plans.open("server" if self._test_clock is None else "test"))
        return self

    async def schedule(self, items: Sequence[Item], *, token: str | None = None) -> Stored:
        return await self.run(self.plans.schedule(items, token))

    async def claim(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 30_000,
        shard: int = 0,
        until_ms: int | None = None,
        epoch: int | None = None,
        lapse_cap: int = 0,
        token: str | None = None,
    ) -> Claim:
        operation = ClaimDue(limit, lease_ms, until_ms, epoch, lapse_cap, token or new_token())
        return await self.run(self.plans.one(shard, operation))

    async def settle(
        self,
        claim: NumberedClaim,
        settlements: Sequence[Settlement],
        *,
        dead_cap: int = 0,
        token: str | None = None,
    ) -> Settled:
        return await self.run(self.plans.settle(claim, settlements, dead_cap, token))

    async def extend(self, claim: NumberedClaim, ids: Sequence[str], lease_ms: int = 30_000) -> list[Outcome]:
        return await self.run(self.plans.extend(claim, ids, lease_ms))

    async def reschedule(
        self, ids: Sequence[str], due_ms: int, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self.run(self.plans.change([Alteration(i, "r", due_ms) for i in ids], route, token))

    async def replace(
        self,
        item: Item,
        *,
        keep_due: bool = False,
        if_version: int | None = None,
        create: bool = False,
        in_flight: bool = False,
        token: str | None = None,
    ) -> Outcome:
        change = replacement_of(item, keep_due, if_version, create, in_flight)
        return (await self.run(self.plans.change(change, None, token)))[0]

    async def cancel(self, ids: Sequence[str], *, route: str | None = None, token: str | None = None) -> list[Outcome]:
        return await self.run(self.plans.change([Alteration(i, "c") for i in ids], route, token))

    async def hold(
        self, ids: Sequence[str], reason: str, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self.run(self.plans.change([Alteration(i, "h", reason) for i in ids], route, token))

    async def release(
        self, ids: Sequence[str], due_ms: int | None = None, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self.run(self.plans.change(release_of(ids, due_ms), route, token))

    async def requeue(
        self,
        dues: Sequence[tuple[str, int, Item | None]],
        *,
        route: str | None = None,
        token: str | None = None,
    ) -> list[Outcome]:
        alterations = [Alteration(i, "q", due, None, item) for i, due, item in dues]
        return await self.run(self.plans.change(alterations, route, token))

    async def delete_dead(
        self, ids: Sequence[str], *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self.run(self.plans.change([Alteration(i, "x") for i in ids], route, token))

    async def change(
        self, alterations: Sequence[Alteration], *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self.run(self.plans.change(alterations, route, token))

    async def get(self, ids: Sequence[str], *, route: str | None = None, anywhere: bool = False) -> list[Found | None]:
        return await self.run(self.plans.get(ids, route, anywhere))

    async def find(self, ref: str, *, limit: int = 1000) -> list[str]:
        return await self.run(self.plans.find(ref, limit))

    async def list_items(
        self,
        state: State = "due",
        *,
        topic: str | None = None,
        least_ms: int = 0,
        greatest_ms: int = MAX_DUE_MS,
        cursor: str | None = None,
        limit: int = 100,
        matches: Callable[[Found], bool] | None = None,
    ) -> Page:
        return await self.run(
            self.plans.list_items(
                state,
                topic=topic,
                least_ms=least_ms,
                greatest_ms=greatest_ms,
                cursor=cursor,
                limit=limit,
                matches=matches,
            )
        )

    async def counts(self) -> Counts:
        return await self.run(self.plans.counts())

    async def counts_by_shard(self) -> list[Counts]:
        return await self.run(self.plans.counts_by_shard())

    async def pause(self, topic: str) -> int:
        return await self.run(self.plans.pause(topic))

    async def resume(self, topic: str, *, spread_ms: int = 0) -> int:
        return await self.run(self.plans.resume(topic, spread_ms))

    async def now_ms(self) -> int:
        return await self.run(self.plans.now_ms())

    async def windows(self, ahead_ms: int, limit: int = 1000) -> list[Window]:
        return await self.run(self.plans.windows(ahead_ms, limit))

    async def sweep(self, *, dead_cap: int = 0, dead_age_ms: int = 0, lapse_cap: int = 0) -> list[Swept]:
        return await self.run(self.plans.sweep(dead_cap, dead_age_ms, lapse_cap))

    async def report_jump(self, shard: int, epoch: int, step_ms: int) -> int:
        return await self.run(self.plans.one(shard, ReportJump(epoch, step_ms)))

    async def restore(self, found: Sequence[Found]) -> int:
        return await self.run(self.plans.restore(found))

    async def bury(self, graves: Sequence[tuple[Item, str]]) -> int:
        return await self.run(self.plans.bury(graves))

    async def close(self) -> None:
        await self.backend.close()
