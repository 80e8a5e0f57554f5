"""Plans: each method of the store as a generator of calls, without I/O.

A plan yields lists of calls and is given their values; what it returns is the method's answer. The synchronous and
the asyncio store run the same plans, so routing to shards, batching and paging stand here and only here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from wheel_sched.errors import NamespaceMismatch, Rejected, StaleCount, StalePosition
from wheel_sched.store.items import (
    ENDED,
    MAX_BATCH,
    MAX_DUE_MS,
    Claim,
    Counts,
    Done,
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
    check_due,
    check_id,
    check_name,
    check_settlement,
)
from wheel_sched.store.listing import list_items
from wheel_sched.store.operations import (
    SCHEMA,
    Alteration,
    Call,
    Change,
    CloseEpoch,
    Count,
    Extend,
    Find,
    Get,
    Known,
    ListIds,
    Log,
    Logged,
    Look,
    Open,
    Operation,
    Pause,
    Plan,
    Positions,
    ReadLog,
    Remember,
    Restore,
    Schedule,
    Settle,
    Sweep,
    new_token,
)
from wheel_sched.store.record import encode_text
from wheel_sched.store.totals import add_up

T = TypeVar("T")


def shard_of(route: str, shards: int) -> int:
    """The shard of a route; stable for ever, because it decides where data lies."""
    return 0 if shards == 1 else zlib.crc32(encode_text(route)) % shards


class Plans:
    """The plans of a namespace with `shards` shards."""

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def _everywhere(self, operation: Callable[[], Operation[T]]) -> list[Call[T]]:
        return [Call(shard, operation()) for shard in range(self.shards)]

    def _batched(
        self, things: Sequence[T], route: Callable[[T], str], make: Callable[[list[T], str], Operation[Any]], token: str
    ) -> tuple[list[Call[Any]], list[list[int]]]:
        """Calls of at most MAX_BATCH things each, and which thing went where."""
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
        # the first one alone: were all opened at once, a wrong shard count would leave new shards behind
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

    def schedule(
        self,
        items: Sequence[Item],
        token: str | None,
        fence: Fence | None,
        tries: Sequence[tuple[str, int, int]] = (),
        known_ms: int = 0,
    ) -> Plan[Stored]:
        for item in items:
            item.check()
        if known_ms and (fence is not None or tries):
            raise Rejected("expected known_ms, or a fence and tries, got both; nothing was stored")
        for key, _, _ in tries:
            check_id(key)
        if fence is not None:
            fence.check()
        if token is None:
            token = new_token()
        if self.shards == 1 and 0 < len(items) <= MAX_BATCH and len(tries) <= (0 if fence else 2 * MAX_BATCH):
            return (yield from self.one(0, Schedule(items, f"{token}.0" if token else "", fence, (), tries, known_ms)))
        calls, members = self._batched(
            items,
            lambda item: item.route or item.id,
            lambda part, part_token: Schedule(part, part_token, fence, (), (), known_ms),
            token,
        )
        outcomes = [Outcome.DUPLICATE] * len(items)
        now_us = 0
        replies: list[Stored] = (yield calls) if calls else []
        for indices, stored in zip(members, replies, strict=True):
            now_us = max(now_us, stored.now_us)
            for i, outcome in zip(indices, stored.outcomes, strict=True):
                outcomes[i] = outcome
        yield from self.remember(tries, (), 0)
        return Stored(outcomes, now_us)

    def accept(
        self,
        position: Position,
        items: Sequence[Item],
        graves: Sequence[tuple[Item, str]],
        tries: Sequence[Tries],
        token: str | None,
    ) -> Plan[Stored]:
        position.check()
        routed = [*items, *(item for item, _ in graves)]
        if len(routed) > MAX_BATCH:
            raise Rejected(f"at most {MAX_BATCH} items a slice, got: {len(routed)}; nothing was stored")
        route = position.route or position.source
        shard = shard_of(route, self.shards)
        for item in routed:
            item.check()
            if self.shards > 1 and item.route != route and shard_of(item.route or item.id, self.shards) != shard:
                raise Rejected(f"expected a route into the shard of {route!r}, got: {item.route!r}; nothing was stored")
        for key, _, _ in tries:
            check_id(key)
        token = new_token() if token is None else token
        if self.shards == 1:
            return (yield from self.one(0, Schedule(items, token, position, graves, tries)))
        # the records lie in other shards than the slice
        asked = [(key, 0, 0) for key, _, _ in tries]
        calls, members = self._batched(asked, lambda entry: entry[0], lambda part, _: Remember(part), "")
        *replies, (there,) = yield [*calls, Call(shard, Positions([position.source]))]
        known = {
            place: count
            for part, counts in zip(members, replies, strict=True)
            for place, count in zip(part, counts, strict=True)
        }
        for place, (key, attempts, expiry_ms) in enumerate(tries):
            count = known[place]
            if count != attempts if expiry_ms is None else count >= attempts or count == ENDED:
                if there != position.expected:  # who comes late finds the counts as whoever was first has raised them
                    raise StalePosition(there)
                raise StaleCount(f"{key!r} has {count}: nothing was stored; decide anew")
        stored = yield from self.one(shard, Schedule(items, token, position, graves))
        raised = [
            (key, min(attempts, ENDED - 1), until_ms) for key, attempts, until_ms in tries if until_ms is not None
        ]
        yield from self.remember(raised, (), 0)
        return stored

    def positions(self, sources: Sequence[str]) -> Plan[list[int | None]]:
        calls, members = self._batched(sources, lambda source: source, lambda part, _: Positions(part), "")
        found: list[int | None] = [None] * len(sources)
        replies: list[list[int | None]] = (yield calls) if calls else []
        for indices, answers in zip(members, replies, strict=True):
            for i, answer in zip(indices, answers, strict=True):
                found[i] = answer
        return found

    def known(self, item_id: str, topic: str) -> Plan[bool]:
        check_id(item_id)
        check_name(topic, "topic")
        call: Call[list[bool]] = Call(shard_of(item_id, self.shards), Known([(item_id, topic)]))
        replies: list[list[bool]] = yield [call]
        return replies[0][0]

    def close_epoch(self, fence: Fence) -> Plan[None]:
        """Let nothing more in for it, in any shard."""
        fence.check()
        yield self._everywhere(lambda: CloseEpoch(fence))

    def one(self, shard: int, operation: Operation[T]) -> Plan[T]:
        """One call on one shard."""
        if not 0 <= shard < self.shards:
            raise Rejected(f"expected a shard from 0 to {self.shards - 1}, got: {shard}; nothing was changed")
        (answer,) = yield [Call(shard, operation)]
        value: T = answer
        return value

    def settle(
        self, claim: Claim | Pushed, settlements: Sequence[Settlement], dead_cap: int, token: str | None
    ) -> Plan[Settled]:
        if len(settlements) > MAX_BATCH:
            raise Rejected(f"at most {MAX_BATCH} settlements a call, got: {len(settlements)}; nothing was settled")
        for settlement in settlements:
            if type(settlement) is not Done:
                check_settlement(settlement)
        operation = Settle(claim.number, settlements, dead_cap, token or new_token())
        return (yield from self.one(claim.shard, operation))

    def extend(self, claim: Claim | Pushed, ids: Sequence[str], lease_ms: int) -> Plan[list[Outcome]]:
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
        calls, members = self._batched(
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
        calls, members = self._batched(ids, lambda item_id: route or item_id, lambda part, _: Get(part), "")
        found: list[Found | None] = [None] * len(ids)
        replies: list[list[Found | None]] = (yield calls) if calls else []
        for indices, answers in zip(members, replies, strict=True):
            for i, answer in zip(indices, answers, strict=True):
                found[i] = answer
        absent = [i for i, item in enumerate(found) if item is None]
        if anywhere and absent and self.shards > 1:  # stored with a route of their own
            for at in range(0, len(absent), MAX_BATCH):
                page = absent[at : at + MAX_BATCH]
                everywhere = yield self._everywhere(lambda page=page: Get([ids[i] for i in page]))  # type: ignore[misc]
                for answers in everywhere:
                    for i, answer in zip(page, answers, strict=True):
                        found[i] = found[i] or answer
        return found

    def find(self, ref: str, limit: int) -> Plan[list[str]]:
        check_name(ref, "ref")
        replies: list[list[str]] = yield self._everywhere(lambda: Find(ref, limit))
        return [item_id for ids in replies for item_id in ids][:limit]

    def now_ms(self) -> Plan[int]:
        """The store's time, by which everything is early or late."""
        window: Window = yield from self.one(0, Look(0, 0))
        return window.now_us // 1000

    def windows(self, ahead_ms: int, limit: int) -> Plan[list[Window]]:
        return (yield self._everywhere(lambda: Look(ahead_ms, limit)))

    def sweep(self, dead_cap: int, dead_age_ms: int, lapse_cap: int) -> Plan[list[Swept]]:
        return (yield self._everywhere(lambda: Sweep(dead_cap, dead_age_ms, lapse_cap)))

    def counts_by_shard(self) -> Plan[list[Counts]]:
        return (yield self._everywhere(Count))

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
        """Let a topic go on, in pages; those overdue are spread over `spread_ms`."""
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

    def remember(
        self, tries: Sequence[tuple[str, int, int]], logged: Sequence[tuple[str, bytes]], keep: int
    ) -> Plan[list[int]]:
        for key, _, _ in tries:
            check_id(key)
        calls, members = self._batched(tries, lambda entry: entry[0], lambda part, _: Remember(part), "")
        known = [0] * len(tries)
        beside: list[Call[Any]] = self._logging(logged, keep)
        replies: list[list[int]] = (yield [*calls, *beside]) if calls or beside else []
        for indices, answers in zip(members, replies[: len(calls)], strict=True):
            for i, answer in zip(indices, answers, strict=True):
                known[i] = answer
        return known

    def log(self, entries: Sequence[tuple[str, bytes]], keep: int) -> Plan[int]:
        calls = self._logging(entries, keep)
        return sum((yield calls)) if calls else 0

    def _logging(self, entries: Sequence[tuple[str, bytes]], keep: int) -> list[Call[int]]:
        if entries and keep < 1:
            raise Rejected(f"expected keep to be at least 1, got: {keep!r}; nothing was logged")
        per_shard = max(1, keep // self.shards)
        calls, _ = self._batched(
            entries, lambda entry: entry[0], lambda part, _: Log([text for _, text in part], per_shard), ""
        )
        return calls

    def read_log(self, shard: int, last: str, limit: int) -> Plan[Logged]:
        return (yield from self.one(shard, ReadLog(last, limit)))

    def bury(self, graves: Sequence[tuple[Item, str]]) -> Plan[int]:
        """Items straight among the dead; `due_ms` is the time of death."""
        for item, _ in graves:
            item.check()
        found = [
            Found(item.id, "dead", item.due_ms or 0, 0, item.topic, item.body, reason, item.refs, item.route)
            for item, reason in graves
        ]
        return (yield from self.restore(found))

    def restore(self, found: Sequence[Found]) -> Plan[int]:
        calls, _ = self._batched(found, lambda item: item.route or item.id, lambda part, _: Restore(part), "")
        return sum((yield calls) if calls else [])


EVER = MAX_DUE_MS
