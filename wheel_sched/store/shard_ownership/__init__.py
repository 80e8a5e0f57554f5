"""Shard ownership: one dispatcher at a time owns a shard. It is for brokers that record which claims were published."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from wheel_sched.errors import StaleEpoch
from wheel_sched.store.core.call import Argument, Operation, Plan, head_of
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, decode_text, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.shard import MemoryShard


def acquire_shard(plans: Plans, shard: int, owner: str, lease_ms: int) -> Plan[Ownership]:
    """Acquire a shard for `lease_ms` from now, or extend the lease. A new owner raises the epoch.

    With `lease_ms` 0 the owner gives the shard up.
    """
    return plans.one(shard, Own(owner, lease_ms))


def resolve_claims(
    plans: Plans, shard: int, epoch: int, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
) -> Plan[Resolved]:
    """End open claims of a shard, up to 500 items a call. `committed`: the last claim that the broker has recorded.

    The broker has published the claims up to `committed`, and none above it. If `committed` is None, nobody knows what
    was published, and the items are held, in doubt. A cancelled item leaves instead. The claim `spared` stays open.

    Raises:
        StaleEpoch: the shard has another epoch; nothing was changed.
    """
    return plans.one(shard, Resolve(epoch, committed, spared, lapse_cap))


class ShardOwnership(Capability):
    """Acquires shards of a store for one owner each, and ends the open claims of former owners."""

    acquire = blocking(acquire_shard)
    resolve = blocking(resolve_claims)


class AsyncShardOwnership(AsyncCapability):
    """The asyncio twin of `ShardOwnership`."""

    acquire = awaited(acquire_shard)
    resolve = awaited(resolve_claims)


@dataclass(slots=True)
class Ownership:
    """Whether the caller owns the shard, in which epoch and until when. `new`: the caller did not own it before.

    `claims` is the number of the last claim of the shard.
    """

    mine: bool
    epoch: int
    owner: str
    until_ms: int
    now_us: int
    new: bool
    claims: int


@dataclass(slots=True)
class Resolved:
    """How many items one call of `resolve` took out of open claims, by what became of them.

    `completed`: items that have left, published or cancelled. `released`: items that wait again, or are dead after too
    many lapses. `held`: items in doubt. `more`: the shard has more open claims, so the caller calls again.
    """

    completed: int
    released: int
    held: int
    more: bool
    now_us: int
    due_head_ms: int | None
    lease_head_ms: int | None


class OwnershipInMemory:
    """The owner of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self.owner, self.until_ms = "", 0


@dataclass(slots=True)
class Own(Operation[Ownership]):
    """Acquire the shard for `lease_ms` from now (0 = give it up).

    A new owner raises the epoch, by a step that depends on its name. So two owners practically never have the same
    epoch, even if the server has lost the writes of the first one.
    """

    script = "own"
    writes = False
    owner: str
    lease_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.owner), self.lease_ms, self._step()]

    def _step(self) -> int:
        """By how much this owner raises the epoch: from 1 to 1,048,576."""
        return int(hashlib.sha1(encode_text(self.owner), usedforsecurity=False).hexdigest()[:5], 16) + 1

    def parse(self, reply: Any, shard: int) -> Ownership:
        mine, epoch, owner, until_ms, now_us, new, claims = reply
        return Ownership(bool(mine), epoch, decode_text(owner), until_ms, now_us, bool(new), claims)

    def in_memory(self, shard: MemoryShard) -> Ownership:
        room = shard.room(OwnershipInMemory)
        mine = room.owner == self.owner
        if not mine and (self.lease_ms == 0 or (room.owner and room.until_ms > shard.now_ms)):
            return Ownership(False, shard.epoch, room.owner, room.until_ms, shard.now_us, False, shard.claims)
        if self.lease_ms == 0:
            room.owner, room.until_ms = "", 0
            return Ownership(False, shard.epoch, "", 0, shard.now_us, False, shard.claims)
        if not mine:
            shard.epoch += self._step()
        room.owner, room.until_ms = self.owner, shard.now_ms + self.lease_ms
        return Ownership(True, shard.epoch, room.owner, room.until_ms, shard.now_us, not mine, shard.claims)


@dataclass(slots=True)
class Resolve(Operation[Resolved]):
    """End open claims of a shard. `committed` is the last claim number that the broker has recorded.

    If `committed` is None, nobody knows what was published, and the items are held, in doubt. Cancelled items leave.
    """

    script = "resolve"
    writes = True
    epoch: int
    committed: int | None
    spared: int | None = None
    lapse_cap: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        committed = "" if self.committed is None else self.committed
        return [self.epoch, committed, "" if self.spared is None else self.spared, self.lapse_cap]

    def parse(self, reply: Any, shard: int) -> Resolved:
        completed, released, held, more, now_us, due_head, lease_head = reply
        return Resolved(completed, released, held, bool(more), now_us, head_of(due_head), head_of(lease_head))

    def in_memory(self, shard: MemoryShard) -> Resolved:
        if self.epoch != shard.epoch:
            raise StaleEpoch(f"the epoch is {shard.epoch}, the call came with {self.epoch}: nothing was changed")
        open_keys = [
            key for _, key in shard.leased.by_rank(0, len(shard.leased)) if shard.items[key].claim != self.spared
        ]
        completed = released = held = 0
        for key in open_keys[:MAX_BATCH]:
            item = shard.items[key]
            shard.leased.discard(key)
            out = self.committed is not None and item.claim <= self.committed
            if out or item.cancelled:
                shard.remove(item, "leased", "completed" if out else "cancelled")
                shard.ended([key], (key,) if out else ())
                completed += 1
            elif self.committed is None:
                shard.ended([key], (key,))
                reason = b"in-doubt: it is unknown whether claim %d was published" % item.claim
                shard.moves(item.topic, "leased", shard.put_held(item, item.claimed_due_ms, reason))
                held += 1
            else:
                shard.lapse(item, self.lapse_cap, b"its dispatcher died while it was claimed")
                released += 1
        shard.claims = max(shard.claims, self.committed or 0)
        more = len(open_keys) > MAX_BATCH
        return Resolved(completed, released, held, more, shard.now_us, *shard.heads())
