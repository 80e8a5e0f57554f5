"""Plans: each method of the store as a generator of calls, without I/O.

A plan yields lists of calls, receives their values, and returns the answer of the method. The blocking and the asyncio
store run the same plans, so only the plans know how to route to shards, to batch and to page.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from wheel_sched.errors import NamespaceMismatch, Rejected
from wheel_sched.store.core.call import Call, Operation, Plan, new_token
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.claim import NumberedClaim
from wheel_sched.store.core.counts import Count, Counts, add_up
from wheel_sched.store.core.get import Find, Get
from wheel_sched.store.core.items import (
    MAX_BATCH,
    Found,
    Item,
    Outcome,
    State,
    check_due,
    check_id,
    check_name,
)
from wheel_sched.store.core.listing import ListIds, Page, list_items
from wheel_sched.store.core.open import SCHEMA, Open
from wheel_sched.store.core.pause import Pause
from wheel_sched.store.core.record import encode_text
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.core.schedule import Schedule, Stored
from wheel_sched.store.core.settle import Done, Extend, Settle, Settled, Settlement, check_settlement
from wheel_sched.store.core.sweep import Sweep, Swept
from wheel_sched.store.core.window import Look, Window

T = TypeVar("T")


def shard_of(route: str, shards: int) -> int:
    """The shard of a route. This function must never change: stored data lies where it says."""
    return 0 if shards == 1 else zlib.crc32(encode_text(route)) % shards


def together(*plans: Plan[Any]) -> Plan[list[Any]]:
    """Run several plans of one round trip each in a single round trip. Returns the answer of each plan."""
    first: list[list[Call[Any]]] = []
    values: list[Any] = [None] * len(plans)
    places: list[int] = []
    for place, plan in enumerate(plans):
        try:
            first.append(next(plan))
            places.append(place)
        except StopIteration as end:
            values[place] = end.value
    answers: list[Any] = (yield [call for calls in first for call in calls]) if first else []
    at = 0
    for place, calls in zip(places, first, strict=True):
        try:
            plans[place].send(answers[at : at + len(calls)])
            raise AssertionError("a plan of one round trip wants another one")
        except StopIteration as end:
            values[place] = end.value
        at += len(calls)
    return values


class Plans:
    """The plans of a namespace with `shards` shards."""

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def everywhere(self, operation: Callable[[], Operation[T]]) -> list[Call[T]]:
        return [Call(shard, operation()) for shard in range(self.shards)]

    def batched(
        self, things: Sequence[T], route: Callable[[T], str], make: Callable[[list[T], str], Operation[Any]], token: str
    ) -> tuple[list[Call[Any]], list[list[int]]]:
        """Calls of at most MAX_BATCH things each, and for each call the indices of its things."""
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

    def open(self, clock: str) -> Plan[list[int]]:
        """Create or check every shard; answers their epochs."""
        # shard 0 first: to open all at once with a wrong shard count would create shards
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
            problems.append(f"schema {schema} (this release speaks {SCHEMA}: install the matching one)")
        if shards != self.shards:
            problems.append(f"{shards} shards, not {self.shards} (use that number, or `wheel-sched reshard`)")
        if found_clock != clock:
            problems.append(f"the clock {found_clock!r}, not {clock!r} (fixed when it was created)")
        if problems:
            raise NamespaceMismatch(f"the namespace's shard {shard} has {' and '.join(problems)}; nothing was changed")

    def schedule(self, items: Sequence[Item], token: str | None) -> Plan[Stored]:
        return self.store_all(items, token, Schedule)

    def store_all(
        self, items: Sequence[Item], token: str | None, make: Callable[[Sequence[Item], str], Operation[Stored]]
    ) -> Plan[Stored]:
        """Store items by the operations that `make` gives for a batch and its token."""
        for item in items:
            item.check()
        if token is None:
            token = new_token()
        if self.shards == 1 and 0 < len(items) <= MAX_BATCH:
            return (yield from self.one(0, make(items, f"{token}.0" if token else "")))
        calls, members = self.batched(items, lambda item: item.route or item.id, make, token)
        outcomes = [Outcome.DUPLICATE] * len(items)
        now_us = 0
        replies: list[Stored] = (yield calls) if calls else []
        for indices, stored in zip(members, replies, strict=True):
            now_us = max(now_us, stored.now_us)
            for i, outcome in zip(indices, stored.outcomes, strict=True):
                outcomes[i] = outcome
        return Stored(outcomes, now_us)

    def one(self, shard: int, operation: Operation[T]) -> Plan[T]:
        """One call on one shard."""
        if not 0 <= shard < self.shards:
            raise Rejected(f"expected a shard from 0 to {self.shards - 1}, got: {shard}; nothing was changed")
        (answer,) = yield [Call(shard, operation)]
        value: T = answer
        return value

    def settle(
        self, claim: NumberedClaim, settlements: Sequence[Settlement], dead_cap: int, token: str | None
    ) -> Plan[Settled]:
        if len(settlements) > MAX_BATCH:
            raise Rejected(f"at most {MAX_BATCH} settlements a call, got: {len(settlements)}; nothing was settled")
        for settlement in settlements:
            if type(settlement) is not Done:
                check_settlement(settlement)
        operation = Settle(claim.number, settlements, dead_cap, token or new_token())
        return (yield from self.one(claim.shard, operation))

    def extend(self, claim: NumberedClaim, ids: Sequence[str], lease_ms: int) -> Plan[list[Outcome]]:
        settled: Settled = yield from self.one(claim.shard, Extend(claim.number, ids, lease_ms))
        return settled.outcomes

    def change(self, alterations: Sequence[Alteration], route: str | None, token: str | None) -> Plan[list[Outcome]]:
        for alteration in alterations:
            check_id(alteration.id)
            due: Any = alteration.argument
            if alteration.verb == "m":
                check_id(due)
            elif alteration.verb != "h" and due not in ("", "="):
                check_due(due, alteration.id)
            if alteration.item is not None:
                alteration.item.check()
        calls, members = self.batched(
            alterations,
            lambda change: route or (change.item.route if change.item else None) or change.id,
            Change,
            token or new_token(),
        )
        outcomes = [Outcome.ABSENT] * len(alterations)
        replies: list[list[Outcome]] = (yield calls) if calls else []
        for indices, answers in zip(members, replies, strict=True):
            for i, outcome in zip(indices, answers, strict=True):
                outcomes[i] = outcome
        return outcomes

    def get(self, ids: Sequence[str], route: str | None, anywhere: bool = False) -> Plan[list[Found | None]]:
        for item_id in ids:
            check_id(item_id)
        calls, members = self.batched(ids, lambda item_id: route or item_id, lambda part, _: Get(part), "")
        found: list[Found | None] = [None] * len(ids)
        replies: list[list[Found | None]] = (yield calls) if calls else []
        for indices, answers in zip(members, replies, strict=True):
            for i, answer in zip(indices, answers, strict=True):
                found[i] = answer
        absent = [i for i, item in enumerate(found) if item is None]
        if anywhere and absent and self.shards > 1:  # they may have a route of their own
            for at in range(0, len(absent), MAX_BATCH):
                page = absent[at : at + MAX_BATCH]
                everywhere = yield self.everywhere(lambda page=page: Get([ids[i] for i in page]))  # type: ignore[misc]
                for answers in everywhere:
                    for i, answer in zip(page, answers, strict=True):
                        found[i] = found[i] or answer
        return found

    def find(self, ref: str, limit: int) -> Plan[list[str]]:
        check_name(ref, "ref")
        replies: list[list[str]] = yield self.everywhere(lambda: Find(ref, limit))
        return [item_id for ids in replies for item_id in ids][:limit]

    def now_ms(self) -> Plan[int]:
        """The time of the store; it decides which items are due."""
        window: Window = yield from self.one(0, Look(0, 0))
        return window.now_us // 1000

    def windows(self, ahead_ms: int, limit: int) -> Plan[list[Window]]:
        return (yield self.everywhere(lambda: Look(ahead_ms, limit)))

    def sweep(self, dead_cap: int, dead_age_ms: int, lapse_cap: int) -> Plan[list[Swept]]:
        return (yield self.everywhere(lambda: Sweep(dead_cap, dead_age_ms, lapse_cap)))

    def counts_by_shard(self) -> Plan[list[Counts]]:
        return (yield self.everywhere(Count))

    def counts(self) -> Plan[Counts]:
        """The counters of all shards added up."""
        return add_up((yield from self.counts_by_shard()))

    def pause(self, topic: str) -> Plan[int]:
        """Hold all of a topic, in pages; answers how many ids were moved."""
        check_name(topic, "topic")
        moved = 0
        starts = dict.fromkeys(range(self.shards), 0)
        while starts:
            replies = yield [Call(shard, Pause("pause", topic, start)) for shard, start in starts.items()]
            for shard, (count, going_on) in zip(list(starts), replies, strict=True):
                moved += count
                starts[shard] = going_on
                if going_on < 0:
                    del starts[shard]
        return moved

    def resume(self, topic: str, spread_ms: int) -> Plan[int]:
        """End the pause of a topic, in pages, and spread overdue items over `spread_ms`."""
        check_name(topic, "topic")
        totals: list[Counts] = yield from self.counts_by_shard()
        moved = 0
        starts = dict.fromkeys(range(self.shards), 0)
        while starts:
            replies = yield [
                Call(shard, Pause("resume", topic, start, spread_ms, totals[shard].now.get(("held", topic), 0)))
                for shard, start in starts.items()
            ]
            for shard, (count, going_on) in zip(list(starts), replies, strict=True):
                moved += count
                starts[shard] = going_on
                if going_on < 0:
                    del starts[shard]
        return moved

    def list_items(
        self,
        state: State,
        *,
        topic: str | None,
        least_ms: int,
        greatest_ms: int,
        cursor: str | None,
        limit: int,
        matches: Callable[[Found], bool] | None,
    ) -> Plan[Page]:
        return list_items(self.shards, ListIds(state, least_ms, greatest_ms, None, limit, topic), cursor, matches)

    def bury(self, graves: Sequence[tuple[Item, str]]) -> Plan[int]:
        """Store items as dead letters; `due_ms` is the time of death."""
        for item, _ in graves:
            item.check()
        found = [
            Found(item.id, "dead", item.due_ms or 0, 0, item.topic, item.body, reason, item.refs, item.route)
            for item, reason in graves
        ]
        return (yield from self.restore(found))

    def restore(self, found: Sequence[Found]) -> Plan[int]:
        calls, _ = self.batched(found, lambda item: item.route or item.id, lambda part, _: Restore(part), "")
        return sum((yield calls) if calls else [])
