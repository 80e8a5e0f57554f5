"""Claim due items under a lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from wheel_sched.errors import Rejected, StaleEpoch
from wheel_sched.store.core.call import Argument, Operation, head_of, new_token
from wheel_sched.store.core.items import MAX_BATCH, NO_LEASE_END_MS, Record, decode_text, read_record
from wheel_sched.store.core.memory_item import MemoryItem, check_batch
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Claimed:
    """A claimed item. Settle it before its lease ends, otherwise the item may wait again and another claim get it.

    `lapses`: how often its lease ran out since it was settled last.
    """

    id: str
    due_ms: int
    version: int
    topic: str
    body: bytes
    refs: tuple[str, ...] = ()
    route: str | None = None
    lapses: int = 0


@dataclass(slots=True)
class Claim:
    """The items of one shard that a call claimed together.

    Later calls name the claim by its `number` (0: nothing was claimed). A call about an item that has left the claim
    gets the outcome STALE.

    `script_us`: the processor time that the server needed for the script, in microseconds. 0: unknown, or in memory.
    """

    shard: int
    number: int
    now_us: int
    epoch: int
    due_head_ms: int | None
    lease_head_ms: int | None
    items: list[Claimed]
    script_us: int = field(default=0, compare=False)


class NumberedClaim(Protocol):
    """The part of a claim that a settlement needs: shard and number."""

    @property
    def shard(self) -> int: ...
    @property
    def number(self) -> int: ...


def claimed_items(reply: Sequence[Any], start: int, stop: int, step: int) -> list[Claimed]:
    """Read claimed items from a reply that holds the id, due time and record of each item, one after the other.

    Most records of a batch start with the same bytes; the function parses a record only when its start differs.
    """
    items = []
    known, record = b"\n", Record(0, "", None, (), b"")
    due_ms, read = 0, b""
    columns = (reply[start + column : stop : step] for column in range(3))
    for raw_id, due, raw in zip(*columns, strict=True):
        item_id = decode_text(raw_id)
        if due != read:
            try:
                due_ms, read = int(due), due
            except ValueError:  # rare: the lease of this item ran out before
                items.append(_lapsed(item_id, due, raw))
                continue
        if raw.startswith(known):
            body = raw[len(known) :]
        else:
            record = read_record(raw)
            body = record.body
            known = raw[: len(raw) - len(body)]
        items.append(Claimed(item_id, due_ms, record.version, record.topic, body, record.refs, record.route))
    return items


def _lapsed(item_id: str, due: bytes, raw: bytes) -> Claimed:
    due_ms, _, lapses = due.partition(b"+")
    record = read_record(raw)
    fields = record.version, record.topic, record.body, record.refs, record.route
    return Claimed(item_id, int(due_ms), *fields, lapses=int(lapses))


def check_lease(lease_ms: int) -> None:
    """Raise `Rejected` unless `lease_ms` is a whole number of at least 1."""
    if type(lease_ms) is not int or lease_ms < 1:
        raise Rejected(f"expected lease_ms to be whole milliseconds from 1 up, got: {lease_ms!r}; nothing was claimed")


@dataclass(slots=True)
class ClaimDue(Operation[Claim]):
    """Recover items whose lease ran out (they wait again, leave or die), then claim due items under a lease.

    With `lease_ms` None the claim has no lease end. It ends when its items are settled, or when the owner of the shard
    ends it (`Resolve`).
    The number of the claim is greater than `above`.
    """

    script = "claim"
    writes = False  # a lost claim costs a redelivery, never a message: no need to wait for the disk
    limit: int
    lease_ms: int | None
    until_ms: int | None = None
    epoch: int | None = None
    lapse_cap: int = 0
    token: str = field(default_factory=new_token)
    above: int = 0

    def __post_init__(self) -> None:
        if self.lease_ms is not None:
            check_lease(self.lease_ms)

    def argv(self) -> list[Argument]:
        lease = "" if self.lease_ms is None else self.lease_ms
        until = "" if self.until_ms is None else self.until_ms
        epoch = "" if self.epoch is None else self.epoch
        return [self.limit, lease, until, epoch, self.lapse_cap, self.above]

    def parse(self, reply: Any, shard: int) -> Claim:
        number, now_us, epoch, due_head, lease_head, script_us = reply[:6]
        items = claimed_items(reply, 6, len(reply), 3)
        return Claim(shard, number, now_us, epoch, head_of(due_head), head_of(lease_head), items, script_us)

    def in_memory(self, shard: MemoryShard) -> Claim:
        check_batch(self.limit)
        remembered = shard.answers.recall(self.token)
        if remembered is not None:
            return _claimed_before(shard, *remembered)
        if self.epoch is not None and self.epoch != shard.epoch:
            raise StaleEpoch(
                f"the epoch is {shard.epoch}, the call came with {self.epoch}: nothing was claimed; "
                "read the epoch again with `windows`"
            )
        shard.recover(MAX_BATCH, self.lapse_cap)
        shard.forget_earlier()
        until_ms = shard.now_ms if self.until_ms is None else min(self.until_ms, shard.now_ms)
        taken = shard.take(self.limit, until_ms)
        if not taken:
            return Claim(shard.number, 0, shard.now_us, shard.epoch, *shard.heads(), [])
        shard.claims = max(shard.claims, self.above) + 1
        number = shard.claims
        deadline_ms = NO_LEASE_END_MS if self.lease_ms is None else shard.now_ms + self.lease_ms
        for due_ms, item in taken:
            item.state, item.claim, item.claimed_due_ms, item.cancelled = "leased", number, due_ms, False
            shard.leased.add(item.key, deadline_ms)
            shard.moves(item.topic, "due", "leased")
        shard.answers.record(self.token, (number, [item.key for _, item in taken]))
        items = [_claimed(item) for _, item in taken]
        return Claim(shard.number, number, shard.now_us, shard.epoch, *shard.heads(), items)


class ClaimOwned(ClaimDue):
    """Claim due items of a shard that this process owns, to publish them in a transaction that names the claim.

    Unlike `ClaimDue`, it waits for the durability level. If a server lost the claim and the target kept the
    transaction, the items would become due again and be published twice.
    """

    __slots__ = ()
    writes = True


def _claimed_before(shard: MemoryShard, number: int, keys: list[bytes]) -> Claim:
    """Repeat an earlier claim: the same number, with the items that are still under this claim."""
    items = (shard.items.get(key) for key in keys)
    still = [_claimed(item) for item in items if item is not None and item.state == "leased" and item.claim == number]
    return Claim(shard.number, number, shard.now_us, shard.epoch, *shard.heads(), still)


def _claimed(item: MemoryItem) -> Claimed:
    record = item.version, item.topic, item.body, item.refs, item.route
    return Claimed(item.id, item.claimed_due_ms, *record, lapses=item.lapses)
