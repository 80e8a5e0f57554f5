"""Plans: each method of the store as a generator of calls, without I/O.

A plan yields lists of calls, receives their values, and returns the answer of the method. `delay_store` makes methods
of the blocking and the asyncio store from plans. So only plans know how to check arguments, route to shards and batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wheel_sched.errors import NamespaceMismatch, Rejected
from wheel_sched.store.core.call import Argument, Call, Operation, Plan, new_token
from wheel_sched.store.core.change import Alteration, Change, change_elsewhere, check_alterations
from wheel_sched.store.core.claim import Claim, ClaimDue, NumberedClaim
from wheel_sched.store.core.counts import Count, Counts, Look, Window, add_up
from wheel_sched.store.core.get import STEP_IDS, Get, find_ids
from wheel_sched.store.core.items import (
    MAX_BATCH,
    MAX_DUE_MS,
    Found,
    Item,
    Outcome,
    State,
    check_id,
    check_name,
    decode_text,
    encode_text,
)
from wheel_sched.store.core.listing import ListIds, Page, list_items
from wheel_sched.store.core.memory_item import reason_code
from wheel_sched.store.core.pause import Pause
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.core.schedule import Schedule, Stored
from wheel_sched.store.core.settle import Done, Extend, Settle, Settled, Settlement, check_settlement
from wheel_sched.store.core.sweep import ReportJump, Sweep, Swept

SCHEMA = 1  # version of keys and records; releases with the same version can share a namespace

S = TypeVar("S")
T = TypeVar("T")


def shard_of(route: str, shards: int) -> int:
    """The shard of a route. This function must never change: stored data lies in the shards that it returned."""
    return 0 if shards == 1 else zlib.crc32(encode_text(route)) % shards


@dataclass(slots=True)
class Open(Operation[tuple[int, int, str, int, int]]):
    """Create the shard, or read how it was created: (schema, shards, clock, epoch, server time in us)."""

    script = "open"
    writes = True
    shards: int
    clock: str
    token: str = ""

    def argv(self) -> list[Argument]:
        return [SCHEMA, self.shards, self.clock]

    def parse(self, reply: Any, shard: int) -> tuple[int, int, str, int, int]:
        schema, shards, clock, epoch, now_us = reply
        return int(schema), int(shards), decode_text(clock), int(epoch), int(now_us)


class Plans:
    """The plans of a namespace with `shards` shards. The plan of a public method has the arguments of the method."""

    def __init__(self, shards: int) -> None:
        self.shards = shards

    # Parts of plans.

    def one(self, shard: int, operation: Operation[T]) -> Plan[T]:
        """Execute one operation on one shard. Returns the answer of the operation."""
        if not 0 <= shard < self.shards:
            raise Rejected(f"expected a shard from 0 to {self.shards - 1}, got: {shard}; nothing was changed")
        (answer,) = yield [Call(shard, operation)]
        value: T = answer
        return value

    def everywhere(self, operation: Callable[[], Operation[T]]) -> list[Call[T]]:
        return [Call(shard, operation()) for shard in range(self.shards)]

    def batched(
        self, things: Sequence[T], route: Callable[[T], str], make: Callable[[list[T], str], Operation[Any]], token: str
    ) -> tuple[list[Call[Any]], list[list[int]]]:
        """Make calls of at most MAX_BATCH things each. Returns the calls, and the indices of each call's things."""
        places: dict[int, list[int]] = {}
        if self.shards == 1:
            places[0] = list(range(len(things)))
        else:
            for i, thing in enumerate(things):
                places.setdefault(shard_of(route(thing), self.shards), []).append(i)
        calls: list[Call[Any]] = []
        members: list[list[int]] = []
        for shard, indices in places.items():
            for at in range(0, len(indices), MAX_BATCH):
                chosen = indices[at : at + MAX_BATCH]
                members.append(chosen)
                calls.append(Call(shard, make([things[i] for i in chosen], f"{token}.{len(calls)}" if token else "")))
        return calls, members

    def each(
        self,
        things: Sequence[S],
        route: Callable[[S], str],
        make: Callable[[list[S], str], Operation[list[T]]],
        token: str = "",
    ) -> Plan[list[T]]:
        """Run the calls of `batched`, which give one answer per thing. Returns the answers in the order of `things`."""
        calls, members = self.batched(things, route, make, token)
        replies: list[list[T]] = (yield calls) if calls else []
        found: dict[int, T] = {}
        for indices, answers in zip(members, replies, strict=True):
            found.update(zip(indices, answers, strict=True))
        return [found[i] for i in range(len(things))]

    def store_all(
        self, items: Sequence[Item], token: str | None, make: Callable[[Sequence[Item], str], Operation[Stored]]
    ) -> Plan[Stored]:
        """Store items. `make` builds an operation from a batch of the items and the token of the batch."""
        for item in items:
            item.check()
        if token is None:
            token = new_token()
        if self.shards == 1 and 0 < len(items) <= MAX_BATCH:
            return (yield from self.one(0, make(items, f"{token}.0" if token else "")))
        calls, members = self.batched(items, lambda item: item.route or item.id, make, token)
        outcomes = [Outcome.DUPLICATE] * len(items)
        now_us, others = 0, dict[int, str]()
        replies: list[Stored] = (yield calls) if calls else []
        for indices, stored in zip(members, replies, strict=True):
            now_us = max(now_us, stored.now_us)
            others.update((indices[at], other) for at, other in stored.others.items())
            for i, outcome in zip(indices, stored.outcomes, strict=True):
                outcomes[i] = outcome
        return Stored(outcomes, now_us, others)

    def _in_pages(self, make: Callable[[int, int], Pause]) -> Plan[int]:
        """Pause or resume a topic page by page in all shards. Returns how many items were moved."""
        moved = 0
        starts = dict.fromkeys(range(self.shards), 0)
        while starts:
            replies = yield [Call(shard, make(shard, start)) for shard, start in starts.items()]
            for shard, (count, next_start) in zip(list(starts), replies, strict=True):
                moved += count
                starts[shard] = next_start
                if next_start < 0:
                    del starts[shard]
        return moved

    # The namespace.

    def open(self, clock: str) -> Plan[list[int]]:
        """Create absent shards, refuse shards with other settings (`NamespaceMismatch`). Returns each shard's epoch."""
        # shard 0 first: with a wrong number of shards, opening all at once would create shards
        first = yield [Call(0, Open(self.shards, clock))]
        self._check_opened(0, first[0], clock)
        others = [Call(shard, Open(self.shards, clock)) for shard in range(1, self.shards)]
        rest = (yield others) if others else []
        for shard, reply in enumerate(rest, 1):
            self._check_opened(shard, reply, clock)
        return [reply[3] for reply in (*first, *rest)]

    def _check_opened(self, shard: int, reply: tuple[int, int, str, int, int], clock: str) -> None:
        schema, shards, found_clock, _, _ = reply
        problems = []
        if schema != SCHEMA:
            problems.append(f"schema {schema} (this release has schema {SCHEMA}: install the matching one)")
        if shards != self.shards:
            problems.append(f"{shards} shards, not {self.shards} (use that number, or `wheel-sched reshard`)")
        if found_clock != clock:
            problems.append(f"the clock {found_clock!r}, not {clock!r} (fixed when it was created)")
        if problems:
            raise NamespaceMismatch(f"the namespace's shard {shard} has {' and '.join(problems)}; nothing was changed")

    def now_ms(self) -> Plan[int]:
        """The time of shard 0 in ms. Each shard's own time decides which of its items are due. One round trip."""
        window: Window = yield from self.one(0, Look(0, 0))
        return window.now_us // 1000

    def counts_by_shard(self) -> Plan[list[Counts]]:
        """The counters of each shard."""
        return (yield self.everywhere(Count))

    def counts(self) -> Plan[Counts]:
        """The counters of the namespace."""
        return add_up((yield from self.counts_by_shard()))

    def windows(self, ahead_ms: int, limit: int = 1000) -> Plan[list[Window]]:
        """For each shard, up to `limit` items that are overdue or due in the next `ahead_ms`, without bodies."""
        return (yield self.everywhere(lambda: Look(ahead_ms, limit)))

    def sweep(self, *, dead_cap: int = 0, dead_age_ms: int = 0, lapse_cap: int = 0) -> Plan[list[Swept]]:
        """End expired leases, remove dead letters above the caps (0 = no cap), clean up; one bounded step per shard."""
        return (yield self.everywhere(lambda: Sweep(dead_cap, dead_age_ms, lapse_cap)))

    def report_jump(self, shard: int, epoch: int, step_ms: int) -> Plan[int]:
        """Record a step of the server's clock. Only the first report of an epoch counts. Returns the current epoch."""
        return self.one(shard, ReportJump(epoch, step_ms))

    # From schedule to settle.

    def schedule(self, items: Sequence[Item], *, token: str | None = None) -> Plan[Stored]:
        """Store new items. An id that exists in the item's shard, in any state, is not changed (DUPLICATE).

        With the token "" the server keeps no answer for repeats, which saves two commands. A repeat then answers
        DUPLICATE for each item that the first call stored and that has not left; an item that has left is stored again.

        Raises:
            Rejected: one of the items is malformed; none was stored.
        """
        return self.store_all(items, token, Schedule)

    def claim(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 30_000,
        shard: int = 0,
        until_ms: int | None = None,
        epoch: int | None = None,
        lapse_cap: int = 0,
        token: str | None = None,
    ) -> Plan[Claim]:
        """Claim up to `limit` items of a shard that are due at min(its now, `until_ms`), under a lease.

        First up to 500 expired leases end. Their items wait again, leave if they were cancelled, or die after
        `lapse_cap` such ends (0 = never). If the shard has another epoch than `epoch`, raises `StaleEpoch`.
        For a minute, a repeat with the same `token` gives the items that are still under the claim.
        """
        return self.one(shard, ClaimDue(limit, lease_ms, until_ms, epoch, lapse_cap, token or new_token()))

    def settle(
        self, claim: NumberedClaim, settlements: Sequence[Settlement], *, dead_cap: int = 0, token: str | None = None
    ) -> Plan[Settled]:
        """End items of a claim. An item that is no longer under the claim is STALE and is not changed."""
        if len(settlements) > MAX_BATCH:
            raise Rejected(f"at most {MAX_BATCH} settlements a call, got: {len(settlements)}; nothing was settled")
        for settlement in settlements:
            if type(settlement) is not Done:
                check_settlement(settlement)
        return self.one(claim.shard, Settle(claim.number, settlements, dead_cap, token or new_token()))

    def extend(self, claim: NumberedClaim, ids: Sequence[str], lease_ms: int = 30_000) -> Plan[list[Outcome]]:
        """Set the lease ends of the items `ids` to `lease_ms` from now. Returns an outcome for each id."""
        settled: Settled = yield from self.one(claim.shard, Extend(claim.number, ids, lease_ms))
        return settled.outcomes

    # Changes of items.

    def change(
        self, alterations: Sequence[Alteration], *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Make several changes, of different kinds or with different due times, in as few calls as possible.

        Without `route`, absent items are looked for in all shards, if the change brings no record.
        """
        check_alterations(alterations)
        token = token or new_token()
        outcomes = yield from self.each(
            alterations,
            lambda change: route or (change.item.route if change.item else None) or change.id,
            Change,
            token,
        )
        if route is None and self.shards > 1:
            yield from change_elsewhere(alterations, outcomes, token, self.everywhere)
        return outcomes

    def reschedule(
        self, ids: Sequence[str], due_ms: int, *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Give waiting or held items a new due time; held ones wait again. Claimed ones do not change (IN_FLIGHT)."""
        return self.change([Alteration(i, "r", due_ms) for i in ids], route=route, token=token)

    def replace(
        self,
        item: Item,
        *,
        keep_due: bool = False,
        if_version: int | None = None,
        create: bool = False,
        in_flight: bool = False,
        token: str | None = None,
    ) -> Plan[Outcome]:
        """Give an item a new record and due time. `keep_due`: keep the old due time. `create`: store an absent item.

        With `if_version`, only an item of this version is changed. With `in_flight`, a claimed item gets the new record
        too and stays claimed; its settlement with the old version gets OTHER_VERSION. If the claimed
        item was cancelled, the outcome is ABSENT. Do not give both `in_flight` and `create`.
        """
        due: int | str = "=" if keep_due else "" if item.due_ms is None else item.due_ms
        verb = "P" if create else "i" if in_flight else "p"
        (outcome,) = yield from self.change([Alteration(item.id, verb, due, if_version, item)], token=token)
        return outcome

    def cancel(self, ids: Sequence[str], *, route: str | None = None, token: str | None = None) -> Plan[list[Outcome]]:
        """Remove waiting or held items (DONE). One in flight leaves when its claim ends, or dies (CANCELLED)."""
        return self.change([Alteration(i, "c") for i in ids], route=route, token=token)

    def hold(
        self, ids: Sequence[str], reason: str, *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Hold waiting items. `reason` is kept with them and shown to people. `resume` does not release them."""
        words = f"held: {reason}" if reason_code(reason.encode("utf-8", "replace")) == b"paused" else reason
        return self.change([Alteration(i, "h", words) for i in ids], route=route, token=token)

    def release(
        self, ids: Sequence[str], due_ms: int | None = None, *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Let held items wait again, with `due_ms` or with their old due time. Without any they are due at once."""
        due = "=" if due_ms is None else due_ms
        return self.change([Alteration(i, "u", due) for i in ids], route=route, token=token)

    def requeue(
        self, dues: Sequence[tuple[str, int, Item | None]], *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Let dead letters wait again. Each row of `dues` is (id, due, item with a new body or None)."""
        return self.change([Alteration(i, "q", due, None, item) for i, due, item in dues], route=route, token=token)

    def delete_dead(
        self, ids: Sequence[str], *, route: str | None = None, token: str | None = None
    ) -> Plan[list[Outcome]]:
        """Delete dead letters. A deleted letter cannot be requeued."""
        return self.change([Alteration(i, "x") for i in ids], route=route, token=token)

    def pause(self, topic: str) -> Plan[int]:
        """Hold the waiting items of a topic, and those that come, until `resume`. Returns how many this call held."""
        check_name(topic, "topic")
        return self._in_pages(lambda _, start: Pause("pause", topic, start))

    def resume(self, topic: str, *, spread_ms: int = 0) -> Plan[int]:
        """End the pause of a topic and spread overdue items over `spread_ms`. Returns how many items wait again."""
        check_name(topic, "topic")
        counts: list[Counts] = yield from self.counts_by_shard()
        totals = [shard.now.get(("held", topic), 0) for shard in counts]
        return (yield from self._in_pages(lambda shard, start: Pause("resume", topic, start, spread_ms, totals[shard])))

    # Finding items, and putting them back.

    def get(self, ids: Sequence[str], *, route: str | None = None, anywhere: bool = False) -> Plan[list[Found | None]]:
        """Items in any state, None for an id that is not in the shard of `route` (of the id, if there is no route).

        With `anywhere` the store looks for absent ids in all shards, because a route may have put them there.
        """
        for item_id in ids:
            check_id(item_id)
        found: list[Found | None] = []
        for at in range(0, len(ids), STEP_IDS):
            found += yield from self.each(ids[at : at + STEP_IDS], lambda one: route or one, lambda part, _: Get(part))
        absent = [i for i, item in enumerate(found) if item is None]
        if anywhere and absent and self.shards > 1:
            for page in (absent[at : at + STEP_IDS] for at in range(0, len(absent), STEP_IDS)):
                everywhere = yield self.everywhere(lambda page=page: Get([ids[i] for i in page]))  # type: ignore[misc]
                for answers in everywhere:
                    for i, answer in zip(page, answers, strict=True):
                        found[i] = found[i] or answer
        return found

    def find(self, ref: str, *, limit: int = 1000) -> Plan[list[str]]:
        """Find the ids of up to `limit` items that have `ref`, in no particular order. A fair key's ref finds none."""
        check_name(ref, "ref")
        return find_ids(self.shards, ref, limit)

    def list_items(
        self,
        state: State = "due",
        *,
        topic: str | None = None,
        least_ms: int = 0,
        greatest_ms: int = MAX_DUE_MS,
        cursor: str | None = None,
        limit: int = 100,
        matches: Callable[[Found], bool] | None = None,
    ) -> Plan[Page]:
        """One page of the items in a state, in order of due time, lease end or time of death."""
        return list_items(self.shards, ListIds(state, least_ms, greatest_ms, None, limit, topic), cursor, matches)

    def restore(self, found: Sequence[Found]) -> Plan[int]:
        """Put back items whose ids do not exist; those in flight become due. Returns how many items were put back."""
        calls, _ = self.batched(found, lambda item: item.route or item.id, lambda part, _: Restore(part), "")
        return sum((yield calls) if calls else [])

    def bury(self, dead_letters: Sequence[tuple[Item, str]]) -> Plan[int]:
        """Store items as dead letters, each with a reason; `due_ms` is the time of death.

        An id that exists is not changed. Returns how many items were stored.
        """
        for item, _ in dead_letters:
            item.check()
        found = [
            Found(item.id, "dead", item.due_ms or 0, 0, item.topic, item.body, reason, item.refs, item.route)
            for item, reason in dead_letters
        ]
        return self.restore(found)
