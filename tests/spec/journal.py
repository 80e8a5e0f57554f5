"""Turns the journal of a simulated store into events of the protocol.

It repeats the journal's calls on a store in memory, one by one, and compares the items before and after each call. An
item that leaves its claim in a way that the call does not explain becomes an event that the models never allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.spec.admission import Event
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import NO_LEASE_END_MS, Outcome
from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.settle import Extend, Settle
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.core.sweep import Sweep
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.shard_ownership import Own, Resolve

Seen = dict[str, tuple[str, int]]


def events_of(journal: Iterable[tuple[int, int, Sequence[Call[Any]]]], shards: int) -> Iterator[Event]:
    """Convert a journal to events. Each entry of the journal has the true time, the wall time in microseconds, and
    calls."""
    now_us = 0
    backend = MemoryBackend(shards, wall_us=lambda: now_us)
    for _, now_us, calls in journal:  # noqa: B007  # the backend reads it
        for call in calls:
            shard = backend.shards[call.shard]
            before, epoch = _seen(shard), shard.epoch
            (answer,) = backend.execute([call])
            for event in _events(call, answer, shard, before, epoch):
                yield event._replace(shard=call.shard)


def _seen(shard: MemoryShard) -> Seen:
    return {item.id: (item.state, _number(item)) for item in shard.items.values()}


def _number(item: MemoryItem) -> int:
    return item.claim if item.state == "leased" else 0


def _events(call: Call[Any], answer: Any, shard: MemoryShard, before: Seen, epoch: int) -> Iterator[Event]:
    operation, after = call.operation, _seen(shard)
    if shard.epoch != epoch:
        acquired = isinstance(operation, Own)
        yield Event("acquire" if acquired else "step", epoch=shard.epoch, who=operation.owner if acquired else "")
    places = {name: after.get(name, ("done", 0)) for name in {**before, **after}}
    left = [name for name, (state, number) in before.items() if state == "leased" and places[name][1] != number]
    if isinstance(operation, Settle):
        outcomes = {} if isinstance(answer, Exception) else _outcomes(operation, answer.outcomes)
        for name in left:
            ended = outcomes.get(name) in (Outcome.DONE, Outcome.CANCELLED)
            yield Event("settle" if ended else "vanish", (name,), operation.claim, to=places[name][0])
    elif isinstance(operation, Resolve):
        number = -1 if operation.committed is None else operation.committed
        for name in left:
            yield Event("resolve", (name,), number, operation.epoch, to=places[name][0])
        if not isinstance(answer, Exception):
            yield Event("resolve", (), number, operation.epoch)
    elif isinstance(operation, ClaimDue | Sweep):
        for name in left:
            yield Event("recover", (name,), now_ms=shard.now_ms, to=_freed(places[name]))
    else:
        yield from _renamed(left, before, after)
    yield from _moved(before, places)
    if isinstance(operation, ClaimDue):
        yield from _claimed(operation, shard, before, after)
    elif isinstance(operation, Extend) and not isinstance(answer, Exception):
        held = tuple(
            name for name, outcome in zip(operation.ids, answer.outcomes, strict=True) if outcome is not Outcome.STALE
        )
        yield Event("extend", held, operation.claim, until_ms=shard.now_ms + operation.lease_ms)


def _outcomes(operation: Settle, outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    named = zip(operation.settlements, outcomes, strict=True)
    found: dict[str, Outcome] = {}
    for settlement, outcome in named:
        if found.get(settlement.id) is not Outcome.DONE:  # the same id twice: the second is stale
            found[settlement.id] = outcome
    return found


def _freed(place: tuple[str, int]) -> str:
    """Return the state that an item had right after a call of `ClaimDue` or `Sweep` ended its claim.

    A call of `ClaimDue` may claim the item again at once. Then the item was due in between.

    Args:
        place: the item's state and claim after the whole call.
    """
    return "due" if place[0] == "leased" else place[0]


def _renamed(left: list[str], before: Seen, after: Seen) -> Iterator[Event]:
    fresh = [name for name, (state, _) in after.items() if state == "leased" and name not in before]
    for old in left:
        number = before[old][1]
        new = next((name for name in fresh if after[name][1] == number), None)
        if new is None:
            yield Event("vanish", (old,), number)
        else:
            fresh.remove(new)
            yield Event("rename", (old, new), number)


def _moved(before: Seen, places: Seen) -> Iterator[Event]:
    """Events for items that entered the store, left it or changed their state without a claim.

    An item in state `leased` before or after the call belongs to a claim: other functions make its events.
    """
    for name, (state, _) in places.items():
        was = before.get(name)
        if was is None:
            if state != "leased":
                yield Event("accept", (name,), to=state)
        elif was[0] != "leased" and state != was[0] and state != "leased":
            yield Event("move", (name,), to=state)


def _claimed(operation: ClaimDue, shard: MemoryShard, before: Seen, after: Seen) -> Iterator[Event]:
    taken = [name for name, (state, n) in after.items() if state == "leased" and before.get(name) != ("leased", n)]
    for number in sorted({after[name][1] for name in taken}):
        items = tuple(name for name in taken if after[name][1] == number)
        for name in items:
            if before[name][0] not in ("due", "leased"):
                yield Event("move", (name,), to="due")
        until_ms = NO_LEASE_END_MS if operation.lease_ms is None else shard.now_ms + operation.lease_ms
        yield Event("claim", items, number, operation.epoch, until_ms=until_ms)
