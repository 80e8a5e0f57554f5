"""AsyncDelayStore: the asyncio face of the delay store; the methods, arguments and answers are `DelayStore`'s.

One event loop; it runs the same plans as the blocking face.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from wheel_sched.store.delay_store import release_of, replacement_of, values_of
from wheel_sched.store.items import (
    MAX_DUE_MS,
    Claim,
    Counts,
    Fence,
    Found,
    Item,
    Outcome,
    Page,
    Position,
    Pushed,
    Settled,
    Settlement,
    State,
    Stored,
    Swept,
    Tries,
    Window,
)
from wheel_sched.store.levels import opening
from wheel_sched.store.operations import Alteration, Call, ClaimDue, Logged, Plan, PushDue, ReportJump, new_token
from wheel_sched.store.plans import Plans

T = TypeVar("T")


class AsyncBackend(Protocol):
    """What performs calls for the asyncio face."""

    async def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls; a value or an exception for each, in order."""
        ...

    async def check_server(self) -> None: ...

    async def close(self) -> None: ...


class AsyncDelayStore:
    """The asyncio face: the same methods, awaited, on one event loop. Arguments and answers are `DelayStore`'s."""

    def __init__(self, backend: AsyncBackend, *, shards: int = 1, test_clock: Callable[[], int] | None = None) -> None:
        self.backend = backend
        self.plans = Plans(shards)
        self._test_clock = test_clock

    @property
    def shards(self) -> int:
        return self.plans.shards

    def __repr__(self) -> str:
        return f"<AsyncDelayStore {type(self.backend).__name__} shards={self.shards}>"

    async def __aenter__(self) -> AsyncDelayStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(values_of(await self.execute(calls)))
        except StopIteration as end:
            result: T = end.value
            return result

    async def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return await self.backend.execute(calls, None if self._test_clock is None else self._test_clock())

    async def open(self) -> AsyncDelayStore:
        await self.backend.check_server()
        with opening():
            await self._run(self.plans.open("server" if self._test_clock is None else "test"))
        return self

    async def schedule(
        self,
        items: Sequence[Item],
        *,
        token: str | None = None,
        fence: Fence | None = None,
        tries: Sequence[tuple[str, int, int]] = (),
        known_ms: int = 0,
    ) -> Stored:
        return await self._run(self.plans.schedule(items, token, fence, tries, known_ms))

    async def accept(
        self,
        position: Position,
        items: Sequence[Item],
        graves: Sequence[tuple[Item, str]] = (),
        *,
        tries: Sequence[Tries] = (),
        token: str | None = None,
    ) -> Stored:
        return await self._run(self.plans.accept(position, items, graves, tries, token))

    async def known(self, item_id: str, topic: str) -> bool:
        return await self._run(self.plans.known(item_id, topic))

    async def positions(self, sources: Sequence[str]) -> list[int | None]:
        return await self._run(self.plans.positions(sources))

    async def close_epoch(self, fence: Fence) -> None:
        await self._run(self.plans.close_epoch(fence))

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
        return await self._run(self.plans.one(shard, operation))

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
        return await self._run(self.plans.one(shard, operation))

    async def settle(
        self,
        claim: Claim | Pushed,
        settlements: Sequence[Settlement],
        *,
        dead_cap: int = 0,
        token: str | None = None,
    ) -> Settled:
        return await self._run(self.plans.settle(claim, settlements, dead_cap, token))

    async def extend(self, claim: Claim | Pushed, ids: Sequence[str], lease_ms: int = 30_000) -> list[Outcome]:
        return await self._run(self.plans.extend(claim, ids, lease_ms))

    async def reschedule(
        self, ids: Sequence[str], due_ms: int, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self._run(self.plans.change([Alteration(i, "r", due_ms) for i in ids], route, token))

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
        return (await self._run(self.plans.change(change, None, token)))[0]

    async def cancel(self, ids: Sequence[str], *, route: str | None = None, token: str | None = None) -> list[Outcome]:
        return await self._run(self.plans.change([Alteration(i, "c") for i in ids], route, token))

    async def hold(
        self, ids: Sequence[str], reason: str, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self._run(self.plans.change([Alteration(i, "h", reason) for i in ids], route, token))

    async def release(
        self, ids: Sequence[str], due_ms: int | None = None, *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self._run(self.plans.change(release_of(ids, due_ms), route, token))

    async def requeue(
        self,
        dues: Sequence[tuple[str, int, Item | None]],
        *,
        route: str | None = None,
        token: str | None = None,
    ) -> list[Outcome]:
        alterations = [Alteration(i, "q", due, None, item) for i, due, item in dues]
        return await self._run(self.plans.change(alterations, route, token))

    async def delete_dead(
        self, ids: Sequence[str], *, route: str | None = None, token: str | None = None
    ) -> list[Outcome]:
        return await self._run(self.plans.change([Alteration(i, "x") for i in ids], route, token))

    async def get(self, ids: Sequence[str], *, route: str | None = None) -> list[Found | None]:
        return await self._run(self.plans.get(ids, route))

    async def find(self, ref: str, *, limit: int = 1000) -> list[str]:
        return await self._run(self.plans.find(ref, limit))

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
        return await self._run(
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
        return await self._run(self.plans.counts())

    async def counts_by_shard(self) -> list[Counts]:
        return await self._run(self.plans.counts_by_shard())

    async def pause(self, topic: str) -> int:
        return await self._run(self.plans.pause(topic))

    async def resume(self, topic: str, *, spread_ms: int = 0) -> int:
        return await self._run(self.plans.resume(topic, spread_ms))

    async def now_ms(self) -> int:
        return await self._run(self.plans.now_ms())

    async def windows(self, ahead_ms: int, limit: int = 1000) -> list[Window]:
        return await self._run(self.plans.windows(ahead_ms, limit))

    async def sweep(self, *, dead_cap: int = 0, dead_age_ms: int = 0, lapse_cap: int = 0) -> list[Swept]:
        return await self._run(self.plans.sweep(dead_cap, dead_age_ms, lapse_cap))

    async def remember(
        self, tries: Sequence[tuple[str, int, int]], *, logged: Sequence[tuple[str, bytes]] = (), keep: int = 0
    ) -> list[int]:
        return await self._run(self.plans.remember(tries, logged, keep))

    async def log(self, entries: Sequence[tuple[str, bytes]], *, keep: int) -> int:
        return await self._run(self.plans.log(entries, keep))

    async def read_log(self, shard: int, last: str = "", limit: int = 1_000) -> Logged:
        return await self._run(self.plans.read_log(shard, last, limit))

    async def report_jump(self, shard: int, epoch: int, step_ms: int) -> int:
        return await self._run(self.plans.one(shard, ReportJump(epoch, step_ms)))

    async def restore(self, found: Sequence[Found]) -> int:
        return await self._run(self.plans.restore(found))

    async def bury(self, graves: Sequence[tuple[Item, str]]) -> int:
        return await self._run(self.plans.bury(graves))

    async def close(self) -> None:
        await self.backend.close()
