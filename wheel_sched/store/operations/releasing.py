"""Operations on what is due: claim it, or have the server push it, then settle it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wheel_sched.errors import Rejected
from wheel_sched.store.items import (
    Claim,
    Claimed,
    Dead,
    Done,
    Held,
    Next,
    Pushed,
    Refused,
    Settled,
    Settlement,
)
from wheel_sched.store.operations.call import Argument, bounded_reason, head_of, new_token, outcomes_of
from wheel_sched.store.record import decode_text, encode_text, make_tail, read_record


def _claimed(reply: Sequence[Any], start: int, stop: int, step: int) -> list[Claimed]:
    """Items from runs of id, due, record in a reply; records of one batch start alike, so most are only compared."""
    items = []
    known, version, topic = b"\n", 0, ""
    due_ms, read = 0, b""
    columns = (reply[start + column : stop : step] for column in range(3))
    for raw_id, due, raw in zip(*columns, strict=True):
        item_id = decode_text(raw_id)
        if due != read:
            try:
                due_ms, read = int(due), due
            except ValueError:  # rare: a lease of it ran out
                items.append(_lapsed(item_id, due, raw))
                continue
        if raw.startswith(known):
            items.append(Claimed(item_id, due_ms, version, topic, raw[len(known) :]))
            continue
        record = read_record(raw)
        if not record.refs:
            known, version, topic = raw[: len(raw) - len(record.body)], record.version, record.topic
            if record.route is not None:
                known = b"\n"
        items.append(Claimed(item_id, due_ms, record.version, record.topic, record.body, record.refs, record.route))
    return items


def _lapsed(item_id: str, due: bytes, raw: bytes) -> Claimed:
    due_ms, _, lapses = due.partition(b"+")
    record = read_record(raw)
    fields = record.version, record.topic, record.body, record.refs, record.route
    return Claimed(item_id, int(due_ms), *fields, lapses=int(lapses))


def check_lease(lease_ms: int) -> None:
    """Raise `Rejected` unless `lease_ms` is a time one can work in."""
    if type(lease_ms) is not int or lease_ms < 1:
        raise Rejected(f"expected lease_ms to be whole milliseconds from 1 up, got: {lease_ms!r}; nothing was claimed")


@dataclass(slots=True)
class ClaimDue:
    """Claim what is due under a lease, after recovering leases that ran out.

    With `lease_ms` None the claim has no lease end: only its settling, or the shard's owner (`Resolve`), ends it.
    """

    script: ClassVar[str] = "claim"
    writes: ClassVar[bool] = False  # a lost claim costs a redelivery, never a message: no need to wait for the disk
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
        number, now_us, epoch, due_head, fly_head = reply[:5]
        items = _claimed(reply, 5, len(reply), 3)
        return Claim(shard, number, now_us, epoch, head_of(due_head), head_of(fly_head), items)


@dataclass(slots=True)
class PushDue:
    """Claim what is due and push it to streams or lists of the same server, in one step."""

    script: ClassVar[str] = "publish"
    writes: ClassVar[bool] = False  # the push and the removal are lost together, if at all
    limit: int
    lease_ms: int
    prefix: str = ""
    create: bool = False
    maxlen: int = 0
    epoch: int | None = None
    lapse_cap: int = 0
    token: str = field(default_factory=new_token)

    def __post_init__(self) -> None:
        check_lease(self.lease_ms)

    def argv(self) -> list[Argument]:
        epoch = "" if self.epoch is None else self.epoch
        return [self.limit, self.lease_ms, epoch, self.lapse_cap, self.prefix, int(self.create), self.maxlen]

    def parse(self, reply: Any, shard: int) -> Pushed:
        number, now_us, epoch, due_head, fly_head, refusals = reply[:6]
        stop = 6 + 4 * refusals
        items = _claimed(reply, 6, stop, 4)
        reasons = [reply[at].decode("utf-8", "replace") for at in range(9, stop, 4)]
        refused = [Refused(item, reason) for item, reason in zip(items, reasons, strict=True)]
        heads = head_of(due_head), head_of(fly_head)
        return Pushed(
            shard, number, now_us, epoch, *heads, dues_ms=[int(due) for due in reply[stop].split()], refused=refused
        )


@dataclass(slots=True)
class Settle:
    """End items of a claim: done, next, held or dead. What is not under this claim any more is STALE.

    What names a version and finds another is OTHER_VERSION, and stays claimed.
    """

    script: ClassVar[str] = "settle"
    writes: ClassVar[bool] = True
    claim: int
    settlements: Sequence[Settlement]
    dead_cap: int = 0
    token: str = field(default_factory=new_token)

    def order(self) -> tuple[list[int], list[int]]:
        """Indices of the settlements in the order the script works: the plain `Done` first."""
        rest = [i for i, s in enumerate(self.settlements) if type(s) is not Done or s.version is not None]
        if not rest:
            return list(range(len(self.settlements))), rest
        return [i for i, s in enumerate(self.settlements) if type(s) is Done and s.version is None], rest

    def argv(self) -> list[Argument]:
        done, rest = self.order()
        args: list[Argument] = [self.claim, self.dead_cap, len(done)]
        args += [encode_text(self.settlements[i].id) for i in done]
        for i in rest:
            args.extend(self._quadruple(self.settlements[i]))
        return args

    @staticmethod
    def _quadruple(settlement: Settlement) -> tuple[Argument, ...]:
        raw_id = encode_text(settlement.id)
        match settlement:
            case Done(version=version):
                return raw_id, f"o{version}", "", b""
            case Next(due_ms=due_ms, version=version):
                verb = "n" if version is None else f"n{version}"
                return raw_id, verb, "" if due_ms is None else due_ms, _tail_of(settlement)
            case Held(reason=reason):
                return raw_id, "h", bounded_reason(reason), b""
            case Dead(reason=reason):
                return raw_id, "d", bounded_reason(reason), _tail_of(settlement)
        raise TypeError(f"expected Done, Next, Held or Dead, got: {settlement!r}")

    def parse(self, reply: Any, shard: int) -> Settled:
        done, rest = self.order()
        outcomes = outcomes_of(reply[0])
        if rest:
            ordered = dict(zip(done + rest, outcomes, strict=True))
            outcomes = [ordered[i] for i in range(len(self.settlements))]
        return Settled(outcomes, reply[1], head_of(reply[2]), head_of(reply[3]))


def _tail_of(settlement: Next | Dead) -> bytes:
    if settlement.body is None:
        return b""
    return make_tail(settlement.topic, settlement.route, settlement.refs, settlement.body)


@dataclass(slots=True)
class Extend:
    """Move the lease deadlines of a claim's items; idempotent, so it needs no token."""

    script: ClassVar[str] = "extend"
    writes: ClassVar[bool] = False
    claim: int
    ids: Sequence[str]
    lease_ms: int
    token: str = ""

    def __post_init__(self) -> None:
        check_lease(self.lease_ms)

    def argv(self) -> list[Argument]:
        return [self.claim, self.lease_ms, *map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> Settled:
        return Settled(outcomes_of(reply[0]), reply[1], head_of(reply[2]), head_of(reply[3]))
