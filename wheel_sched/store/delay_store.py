"""DelayStore with the methods that its rooms have classes for; each forwards to the room."""

# ruff: noqa: F403

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheel_sched.errors import Rejected
from wheel_sched.store.attempt_counts.face import raise_and_record, raise_counts, schedule_counted
from wheel_sched.store.attempt_counts.operations import BatchCount
from wheel_sched.store.core.async_delay_store import AsyncCoreStore
from wheel_sched.store.core.call import Plan, new_token
from wheel_sched.store.core.delay_store import *
from wheel_sched.store.core.delay_store import CoreStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Stored
from wheel_sched.store.history.face import append_history
from wheel_sched.store.history.operations import Logged, ReadLog
from wheel_sched.store.known_ids.face import is_known, schedule_known
from wheel_sched.store.log_intake.face import accept, read_positions
from wheel_sched.store.log_intake.operations import Position
from wheel_sched.store.push.operations import PushDue, Pushed
from wheel_sched.store.writer_fence.face import close_epoch, schedule_fenced
from wheel_sched.store.writer_fence.operations import Fence


def schedule_all(
    plans: Plans,
    items: Sequence[Item],
    token: str | None,
    fence: Fence | None,
    tries: Sequence[tuple[str, int, int]],
    known_ms: int,
) -> Plan[Stored]:
    if known_ms and (fence is not None or tries):
        raise Rejected("expected known_ms, or a fence and tries, got both; nothing was stored")
    if known_ms:
        return (yield from schedule_known(plans, items, known_ms, token))
    if fence is None:
        counted = schedule_counted(plans, items, tries, token) if tries else plans.schedule(items, token)
        return (yield from counted)
    stored = yield from schedule_fenced(plans, items, fence, token)
    yield from raise_counts(plans, tries)
    return stored


class DelayStore(CoreStore):
    def schedule(
        self,
        items: Sequence[Item],
        *,
        token: str | None = None,
        fence: Fence | None = None,
        tries: Sequence[tuple[str, int, int]] = (),
        known_ms: int = 0,
    ) -> Stored:
        """Store new items; ids that exist anywhere are left alone (DUPLICATE).

        `tries` are raised as `remember` would: in the same step in a namespace of one shard, after it in others.

        With the token "" nothing is kept for repeats, which saves two commands: a repeat then answers DUPLICATE for
        what the first call stored.

        With `known_ms` (not together with a fence or `tries`) each id stays known for its topic until so long after its
        due: a repeat is DUPLICATE also when it has gone out. A cancelled or deleted id is free again.

        With a `fence` also those that its epoch has brought before, even when they have long gone out.

        Raises:
            Rejected: one of the items is malformed; none was stored.
        """
        return self.run(schedule_all(self.plans, items, token, fence, tries, known_ms))

    def accept(
        self,
        position: Position,
        items: Sequence[Item],
        graves: Sequence[tuple[Item, str]] = (),
        *,
        tries: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Stored:
        """Store a slice of a source's log, its dead (with a reason each), its position and `tries`, in one step.

        The outcomes are those of the items, then those of the graves. In a namespace of several shards the attempt
        records lie elsewhere: they are compared before the step and raised after it.

        Raises:
            StalePosition: the source is taken in up to another position; nothing was stored.
            StaleCount: one of `tries` knows more; nothing was stored.
            TakenId: one of the ids is there already, or twice; nothing was stored.
            Rejected: an item is malformed, or the slice too long; nothing was stored.
        """
        return self.run(accept(self.plans, position, items, graves, tries, token))

    def begin_accept(
        self,
        position: Position,
        items: Sequence[Item],
        graves: Sequence[tuple[Item, str]] = (),
        *,
        tries: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Callable[[], Stored]:
        """`accept` in two halves, so that the caller works while the server does.

        What is given back waits for the answer and is called once; it raises what `accept` raises. After an error
        the same is to be given to `accept`, under the same token.

        Raises:
            Rejected: an item is malformed, or the slice too long; nothing was sent.
        """
        plan = accept(self.plans, position, items, graves, tries, token)
        begun = self.begin(next(plan))
        return lambda: self.run(plan, begun.answers())

    def known(self, item_id: str, topic: str) -> bool:
        """Whether an item of `topic` waits or is in flight under the id, or is known by `known_ms` of `schedule`."""
        return self.run(is_known(self.plans, item_id, topic))

    def positions(self, sources: Sequence[str]) -> list[int | None]:
        """How far the logs of sources were taken in, None where nothing was."""
        return self.run(read_positions(self.plans, sources))

    def close_epoch(self, fence: Fence) -> None:
        """Let nothing more in for an epoch of a writer, or for one before it; its memory of ids is freed."""
        self.run(close_epoch(self.plans, fence))

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
        """Claim and push due items to streams or lists of the same server in one step (exactly once).

        Their bodies must be in push form (see `wheel_sched.store.push.push_form`). What is refused stays claimed.
        """
        operation = PushDue(limit, lease_ms, prefix, create, maxlen, token=token or new_token())
        return self.run(self.plans.one(shard, operation))

    def remember(
        self, tries: Sequence[tuple[str, int, int]], *, logged: Sequence[tuple[str, bytes]] = (), keep: int = 0
    ) -> list[int]:
        """Raise attempt records (key, attempts, expiry in ms); the greatest known of each key.

        `logged` and `keep` as in `log`, in the same round trip.
        """
        return self.run(raise_and_record(self.plans, tries, logged, keep))

    def log(self, entries: Sequence[tuple[str, bytes]], *, keep: int) -> int:
        """Append (route, entry) to the store's log, which keeps about `keep` of them; how many were appended.

        The log is bounded, and is for people and reports: nothing depends on it, and nothing fails because of it.
        """
        return self.run(append_history(self.plans, entries, keep))

    def read_log(self, shard: int, last: str = "", limit: int = 1_000) -> Logged:
        """One page of a shard's log behind `last` ("" = from the start), oldest first."""
        return self.run(self.plans.one(shard, ReadLog(last, limit)))


class AsyncDelayStore(AsyncCoreStore):
    async def schedule(
        self,
        items: Sequence[Item],
        *,
        token: str | None = None,
        fence: Fence | None = None,
        tries: Sequence[tuple[str, int, int]] = (),
        known_ms: int = 0,
    ) -> Stored:
        return await self.run(schedule_all(self.plans, items, token, fence, tries, known_ms))

    async def accept(
        self,
        position: Position,
        items: Sequence[Item],
        graves: Sequence[tuple[Item, str]] = (),
        *,
        tries: Sequence[BatchCount] = (),
        token: str | None = None,
    ) -> Stored:
        return await self.run(accept(self.plans, position, items, graves, tries, token))

    async def known(self, item_id: str, topic: str) -> bool:
        return await self.run(is_known(self.plans, item_id, topic))

    async def positions(self, sources: Sequence[str]) -> list[int | None]:
        return await self.run(read_positions(self.plans, sources))

    async def close_epoch(self, fence: Fence) -> None:
        await self.run(close_epoch(self.plans, fence))

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
        return await self.run(self.plans.one(shard, operation))

    async def remember(
        self, tries: Sequence[tuple[str, int, int]], *, logged: Sequence[tuple[str, bytes]] = (), keep: int = 0
    ) -> list[int]:
        return await self.run(raise_and_record(self.plans, tries, logged, keep))

    async def log(self, entries: Sequence[tuple[str, bytes]], *, keep: int) -> int:
        return await self.run(append_history(self.plans, entries, keep))

    async def read_log(self, shard: int, last: str = "", limit: int = 1_000) -> Logged:
        return await self.run(self.plans.one(shard, ReadLog(last, limit)))
