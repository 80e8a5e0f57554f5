"""The counters of a shard, and of all shards added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, head_of
from wheel_sched.store.core.items import decode_text
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Counts:
    """Counters of a shard or a namespace.

    `now`: number of items in each (state, topic). `ever`: number of events for each (event, topic); the events are
    accepted, completed, cancelled, lapsed (a claim ended without a settlement), died, requeued, deleted, trimmed (a
    dead letter above a cap or too old), and the `dropped` and `replaced` of `once_per_key`. `sizes`: the true sizes of
    the sets and hashes that hold the items; a caller can compare them with `now`. `overdue`: how many waiting items are
    due now.
    """

    now_us: int
    now: dict[tuple[str, str], int]
    ever: dict[tuple[str, str], int]
    sizes: dict[str, int]
    due_head_ms: int | None
    lease_head_ms: int | None
    epoch: int
    jumps: int
    last_jump_ms: int
    paused: dict[str, int]
    unreadable: int = 0
    frozen: str | None = None
    overdue: int = 0

    def total(self, state: str) -> int:
        return sum(n for (kind, _), n in self.now.items() if kind == state)

    def happened(self, event: str) -> int:
        return sum(n for (kind, _), n in self.ever.items() if kind == event)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for _, topic in self.now} | {topic for _, topic in self.ever} | set(self.paused))


@dataclass(slots=True)
class Count(Operation[Counts]):
    """Read the counters of a shard and the true sizes of its sets."""

    script = "counts"
    reads = True
    writes = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return []

    def parse(self, reply: Any, shard: int) -> Counts:
        names = ("due", "leased", "held", "dead", "body", "deadbody", "claim", "why")
        sizes: dict[str, int] = {name: reply[1 + at] for at, name in enumerate(names)}
        meta = {decode_text(reply[at]): decode_text(reply[at + 1]) for at in range(12, len(reply), 2)}
        counts = counts_of(reply[0], sizes, meta, head_of(reply[9]), head_of(reply[10]))
        counts.overdue = reply[11]
        return counts

    def in_memory(self, shard: MemoryShard) -> Counts:
        sizes: dict[str, int] = {
            **{state: len(place) for state, place in shard.places.items()},
            "due": len(shard.due) + len(shard.ready),
            "body": len(shard.items) - len(shard.dead),
            "deadbody": len(shard.dead),
            "claim": len(shard.leased),
            "why": len(shard.held),
        }
        return Counts(
            shard.now_us,
            dict(shard.now),
            dict(shard.ever),
            sizes,
            *shard.heads(),
            epoch=shard.epoch,
            jumps=shard.jumps,
            last_jump_ms=shard.last_jump_ms,
            paused=dict(shard.paused),
            frozen=shard.frozen,
            overdue=sum(place.rank_behind(shard.now_ms + 1, b"") for place in (shard.due, shard.ready)),
        )


def counts_of(
    now_us: int, sizes: dict[str, int], meta: dict[str, str], due_head_ms: int | None, lease_head_ms: int | None
) -> Counts:
    """Make the `Counts` of a shard from the fields of its hash `meta`."""
    now: dict[tuple[str, str], int] = {}
    ever: dict[tuple[str, str], int] = {}
    paused: dict[str, int] = {}
    for name, value in meta.items():
        kind, _, rest = name.partition(":")
        if kind == "p":
            paused[rest] = int(value)
        elif kind in ("n", "t"):
            what, _, topic = rest.partition(":")
            (now if kind == "n" else ever)[what, topic] = int(value)
    return Counts(
        now_us,
        now,
        ever,
        sizes,
        due_head_ms,
        lease_head_ms,
        epoch=int(meta.get("epoch", 1)),
        jumps=int(meta.get("jumps", 0)),
        last_jump_ms=int(meta.get("last_jump", 0)),
        paused=paused,
        unreadable=int(meta.get("unreadable", 0)),
        frozen=meta.get("frozen"),
    )


def add_up(parts: Sequence[Counts]) -> Counts:
    """The sum of the counters of several shards."""
    total = Counts(0, {}, {}, {}, None, None, epoch=0, jumps=0, last_jump_ms=0, paused={})
    for part in parts:
        total.now_us = max(total.now_us, part.now_us)
        for mine, theirs in ((total.now, part.now), (total.ever, part.ever)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        for name, size in part.sizes.items():
            total.sizes[name] = total.sizes.get(name, 0) + size
        total.due_head_ms = _least(total.due_head_ms, part.due_head_ms)
        total.lease_head_ms = _least(total.lease_head_ms, part.lease_head_ms)
        total.epoch = max(total.epoch, part.epoch)
        total.jumps += part.jumps
        total.last_jump_ms = part.last_jump_ms or total.last_jump_ms
        total.paused.update(part.paused)
        total.unreadable += part.unreadable
        total.frozen = total.frozen or part.frozen
        total.overdue += part.overdue
    return total


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


@dataclass(slots=True)
class Window:
    """The items that a shard releases next: ids with their due times, without bodies."""

    shard: int
    now_us: int
    epoch: int
    due_head_ms: int | None
    lease_head_ms: int | None
    mark: bytes
    dues: list[tuple[str, int]]


@dataclass(slots=True)
class Look(Operation[Window]):
    """Read items overdue or due in the next `ahead_ms`, the earliest due time and lease end, epoch and last marker."""

    script = "window"
    reads = True
    writes = False
    ahead_ms: int
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.ahead_ms, self.limit]

    def parse(self, reply: Any, shard: int) -> Window:
        now_us, epoch, due_head, lease_head, mark = reply[:5]
        dues = [(decode_text(reply[at]), reply[at + 1]) for at in range(5, len(reply), 2)]
        return Window(shard, now_us, epoch, head_of(due_head), head_of(lease_head), mark, dues)

    def in_memory(self, shard: MemoryShard) -> Window:
        until_ms = shard.now_ms + self.ahead_ms
        found = sorted(shard.due.up_to(until_ms, self.limit) + shard.ready.up_to(until_ms, self.limit))[: self.limit]
        dues = [(shard.items[key].id, due_ms) for due_ms, key in found]
        return Window(shard.number, shard.now_us, shard.epoch, *shard.heads(), shard.mark.id, dues)
