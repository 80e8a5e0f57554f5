"""Operations: every call on one shard as a value that says what to do and how to read the answer.

The caller builds operations, a backend performs them: Redis as a script call (`script`, `argv`, `parse`), memory by
running the twin of that script. So the synchronous and the asyncio face, and all implementations, share one
description of each call, and a test can look at it without any I/O.

An operation with a `token` may be repeated after a lost reply: it is executed once and answers alike (for a minute).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from wheel_sched.errors import StoreError
from wheel_sched.store.items import (
    Claim,
    Claimed,
    Counts,
    Dead,
    Done,
    Found,
    Held,
    Item,
    Next,
    Outcome,
    Pushed,
    Refused,
    Settled,
    Settlement,
    State,
    Stored,
    Swept,
    Window,
)
from wheel_sched.store.record import decode_text, encode_text, make_tail, read_record

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Argument = bytes | str | int

SCHEMA = 1  # of keys and records; releases that share it share a namespace

_OUTCOMES = {ord(outcome.value): outcome for outcome in Outcome}
_counter = itertools.count()
_process = [0, ""]


def new_token() -> str:
    """A token for one call, unique among all processes (a fork gets its own series)."""
    if _process[0] != os.getpid():
        _process[:] = [os.getpid(), os.urandom(8).hex()]
    return f"{_process[1]}{next(_counter):x}"


class Operation(Protocol[R_co]):
    """What a backend needs to know of a call."""

    script: ClassVar[str]
    writes: ClassVar[bool]
    token: str

    def argv(self) -> list[Argument]:
        """The script's arguments behind now and token."""
        ...

    def parse(self, reply: Any, shard: int) -> R_co:
        """The script's reply as a value."""
        ...


def _outcomes(codes: bytes) -> list[Outcome]:
    return [_OUTCOMES[code] for code in codes]


def _head(value: int) -> int | None:
    return None if value < 0 else value


def _claimed(raw_id: bytes, due_ms: bytes | int, raw: bytes) -> Claimed:
    record = read_record(raw)
    return Claimed(decode_text(raw_id), int(due_ms), record.version, record.topic, record.body, record.refs, record.route)


@dataclass(slots=True)
class Open:
    """Create the shard, or read how it was created: (schema, shards, clock, epoch, server time in us)."""

    script: ClassVar[str] = "open"
    writes: ClassVar[bool] = True
    shards: int
    clock: str
    token: str = ""

    def argv(self) -> list[Argument]:
        return [SCHEMA, self.shards, self.clock]

    def parse(self, reply: Any, shard: int) -> tuple[int, int, str, int, int]:
        schema, shards, clock, epoch, now_us = reply
        return int(schema), int(shards), decode_text(clock), int(epoch), int(now_us)


@dataclass(slots=True)
class Schedule:
    """Store new items; what exists already, anywhere in the shard, is left alone."""

    script: ClassVar[str] = "schedule"
    writes: ClassVar[bool] = True
    items: Sequence[Item]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        args: list[Argument] = []
        for item in self.items:
            args.append(encode_text(item.id))
            args.append("" if item.due_ms is None else item.due_ms)
            args.append(make_tail(item.topic, item.route, item.refs, item.body))
        return args

    def parse(self, reply: Any, shard: int) -> Stored:
        return Stored(_outcomes(reply[0]), reply[1])


@dataclass(slots=True)
class ClaimDue:
    """Claim what is due under a lease, after recovering leases that ran out."""

    script: ClassVar[str] = "claim"
    writes: ClassVar[bool] = False  # a lost claim costs a redelivery, never a message: no need to wait for the disk
    limit: int
    lease_ms: int
    until_ms: int | None = None
    epoch: int | None = None
    lapse_cap: int = 0
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        until = "" if self.until_ms is None else self.until_ms
        return [self.limit, self.lease_ms, until, "" if self.epoch is None else self.epoch, self.lapse_cap]

    def parse(self, reply: Any, shard: int) -> Claim:
        number, now_us, epoch, due_head, fly_head = reply[:5]
        items = [_claimed(*reply[at : at + 3]) for at in range(5, len(reply), 3)]
        return Claim(shard, number, now_us, epoch, _head(due_head), _head(fly_head), items)


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

    def argv(self) -> list[Argument]:
        epoch = "" if self.epoch is None else self.epoch
        return [self.limit, self.lease_ms, epoch, self.lapse_cap, self.prefix, int(self.create), self.maxlen]

    def parse(self, reply: Any, shard: int) -> Pushed:
        number, now_us, epoch, due_head, fly_head, refusals = reply[:6]
        stop = 6 + 4 * refusals
        refused = [
            Refused(_claimed(*reply[at : at + 3]), reply[at + 3].decode("utf-8", "replace")) for at in range(6, stop, 4)
        ]
        heads = _head(due_head), _head(fly_head)
        return Pushed(shard, number, now_us, epoch, *heads, dues_ms=[int(due) for due in reply[stop].split()], refused=refused)


@dataclass(slots=True)
class Settle:
    """End items of a claim: done, next, held or dead. What is not under this claim any more is STALE."""

    script: ClassVar[str] = "settle"
    writes: ClassVar[bool] = True
    claim: int
    settlements: Sequence[Settlement]
    dead_cap: int = 0
    token: str = field(default_factory=new_token)

    def order(self) -> tuple[list[int], list[int]]:
        """Indices of the settlements in the order the script works: the plain `Done` first."""
        done = [i for i, s in enumerate(self.settlements) if type(s) is Done]
        rest = [i for i, s in enumerate(self.settlements) if type(s) is not Done]
        return done, rest

    def argv(self) -> list[Argument]:
        done, rest = self.order()
        args: list[Argument] = [self.claim, self.dead_cap, len(done)]
        args.extend(encode_text(self.settlements[i].id) for i in done)
        for i in rest:
            args.extend(self._quadruple(self.settlements[i]))
        return args

    @staticmethod
    def _quadruple(settlement: Settlement) -> tuple[Argument, ...]:
        raw_id = encode_text(settlement.id)
        match settlement:
            case Next(due_ms=due_ms):
                return raw_id, "n", "" if due_ms is None else due_ms, _tail_of(settlement)
            case Held(reason=reason):
                return raw_id, "h", bounded_reason(reason), b""
            case Dead(reason=reason):
                return raw_id, "d", bounded_reason(reason), _tail_of(settlement)
        raise TypeError(f"expected Done, Next, Held or Dead, got: {settlement!r}")

    def parse(self, reply: Any, shard: int) -> Settled:
        done, rest = self.order()
        outcomes = [Outcome.STALE] * len(self.settlements)
        for i, code in zip(done + rest, reply[0], strict=True):
            outcomes[i] = _OUTCOMES[code]
        return Settled(outcomes, reply[1], _head(reply[2]), _head(reply[3]))


def _tail_of(settlement: Next | Dead) -> bytes:
    if settlement.body is None:
        return b""
    return make_tail(settlement.topic, settlement.route, settlement.refs, settlement.body)


def bounded_reason(text: str) -> bytes:
    """A reason as it is stored: one line, bounded, since it lies beside every held or dead item."""
    return text.replace("\n", " ")[:500].encode("utf-8", "backslashreplace")  # for people: it must never be refused


@dataclass(slots=True)
class Extend:
    """Move the lease deadlines of a claim's items; idempotent, so it needs no token."""

    script: ClassVar[str] = "extend"
    writes: ClassVar[bool] = False
    claim: int
    ids: Sequence[str]
    lease_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.claim, self.lease_ms, *map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> Settled:
        return Settled(_outcomes(reply[0]), reply[1], _head(reply[2]), _head(reply[3]))


@dataclass(slots=True)
class Alteration:
    """One change of `Change`; the verbs are those of change.lua."""

    id: str
    verb: str
    argument: int | str = ""
    version: int | None = None
    item: Item | None = None


@dataclass(slots=True)
class Change:
    """Reschedule, replace, cancel, hold, release, requeue or delete items that are not in flight."""

    script: ClassVar[str] = "change"
    writes: ClassVar[bool] = True
    alterations: Sequence[Alteration]
    token: str = field(default_factory=new_token)

    def argv(self) -> list[Argument]:
        args: list[Argument] = []
        for change in self.alterations:
            item = change.item
            tail = b"" if item is None else make_tail(item.topic, item.route, item.refs, item.body)
            argument: Argument = change.argument
            if change.verb == "h":
                argument = bounded_reason(str(argument))
            version = "" if change.version is None else change.version
            args += [encode_text(change.id), change.verb, argument, version, tail]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return _outcomes(reply[0])


@dataclass(slots=True)
class Look:
    """Read the window: what is due in the next `ahead_ms`, heads, epoch and the last marker."""

    script: ClassVar[str] = "window"
    writes: ClassVar[bool] = False
    ahead_ms: int
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.ahead_ms, self.limit]

    def parse(self, reply: Any, shard: int) -> Window:
        now_us, epoch, due_head, fly_head, mark = reply[:5]
        dues = [(decode_text(reply[at]), reply[at + 1]) for at in range(5, len(reply), 2)]
        return Window(shard, now_us, epoch, _head(due_head), _head(fly_head), mark, dues)


@dataclass(slots=True)
class Pause:
    """One page of pausing or resuming a topic; answers (moved, where to go on or -1)."""

    script: ClassVar[str] = "pause"
    writes: ClassVar[bool] = True
    verb: str
    topic: str
    start: int = 0
    spread_ms: int = 0
    total: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.verb, encode_text(self.topic), self.start, self.spread_ms, self.total]

    def parse(self, reply: Any, shard: int) -> tuple[int, int]:
        return reply[0], reply[1]


@dataclass(slots=True)
class Get:
    """Read items wherever they are; None where there is none."""

    script: ClassVar[str] = "get"
    writes: ClassVar[bool] = False
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Found | None]:
        return [
            _found(item_id, *reply[at : at + 4]) for item_id, at in zip(self.ids, range(1, len(reply), 4), strict=True)
        ]


def _found(item_id: str, raw_state: bytes, score_ms: int, raw: bytes, raw_reason: bytes) -> Found | None:
    if not raw_state:
        return None
    state: Any = raw_state.decode()
    reason = raw_reason.decode("utf-8", "replace")
    try:
        record = read_record(raw)
    except StoreError:
        return Found(item_id, state, score_ms, 0, "", raw, reason or "unreadable record")
    return Found(item_id, state, score_ms, record.version, record.topic, record.body, reason, record.refs, record.route)


@dataclass(slots=True)
class ListIds:
    """One page of (id, score) of a state in order of score, behind `last`."""

    script: ClassVar[str] = "list"
    writes: ClassVar[bool] = False
    state: State
    least_ms: int
    greatest_ms: int
    last: tuple[str, int] | None
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        last_id, last_score = self.last or ("", 0)
        return [self.state, self.least_ms, self.greatest_ms, encode_text(last_id), last_score, self.limit]

    def parse(self, reply: Any, shard: int) -> list[tuple[str, int]]:
        return [(decode_text(reply[at]), reply[at + 1]) for at in range(1, len(reply), 2)]


@dataclass(slots=True)
class Count:
    """Read the counters beside the true sizes."""

    script: ClassVar[str] = "counts"
    writes: ClassVar[bool] = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return []

    def parse(self, reply: Any, shard: int) -> Counts:
        names = ("due", "fly", "held", "dead", "body", "deadbody", "claim", "why")
        sizes = dict(zip(names, reply[1:9], strict=True))
        meta = {decode_text(reply[at]): decode_text(reply[at + 1]) for at in range(11, len(reply), 2)}
        return counts_of(reply[0], sizes, meta, _head(reply[9]), _head(reply[10]))


def counts_of(
    now_us: int, sizes: dict[str, int], meta: dict[str, str], due_head_ms: int | None, fly_head_ms: int | None
) -> Counts:
    """Counters from a shard's meta hash."""
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
        fly_head_ms,
        epoch=int(meta.get("epoch", 1)),
        jumps=int(meta.get("jumps", 0)),
        last_jump_ms=int(meta.get("last_jump", 0)),
        paused=paused,
        unreadable=int(meta.get("unreadable", 0)),
        frozen=meta.get("frozen"),
    )


@dataclass(slots=True)
class Sweep:
    """House-keeping in bounded steps: expired leases, dead letters above the caps, old attempt records."""

    script: ClassVar[str] = "sweep"
    writes: ClassVar[bool] = False
    dead_cap: int = 0
    dead_age_ms: int = 0
    lapse_cap: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.dead_cap, self.dead_age_ms, self.lapse_cap]

    def parse(self, reply: Any, shard: int) -> Swept:
        now_us, epoch, due_head, fly_head, recovered = reply
        return Swept(shard, now_us, epoch, _head(due_head), _head(fly_head), recovered)


@dataclass(slots=True)
class Remember:
    """Raise attempt records and answer the greatest known of each key; 0 attempts only asks."""

    script: ClassVar[str] = "remember"
    writes: ClassVar[bool] = False
    tries: Sequence[tuple[str, int, int]]  # key, attempts, expiry in ms
    token: str = ""

    def argv(self) -> list[Argument]:
        return [part for key, tries, expiry_ms in self.tries for part in (encode_text(key), tries, expiry_ms)]

    def parse(self, reply: Any, shard: int) -> list[int]:
        return list(reply)


@dataclass(slots=True)
class Find:
    """Ids that carry a ref, in no order."""

    script: ClassVar[str] = "find"
    writes: ClassVar[bool] = False
    ref: str
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.ref), self.limit]

    def parse(self, reply: Any, shard: int) -> list[str]:
        return [decode_text(raw) for raw in reply][: self.limit]


@dataclass(slots=True)
class ReportJump:
    """Record a clock step that a dispatcher saw and raise the epoch once for all dispatchers."""

    script: ClassVar[str] = "jump"
    writes: ClassVar[bool] = False
    epoch: int
    step_ms: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.epoch, self.step_ms]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply[1])


@dataclass(slots=True)
class Restore:
    """Put items back exactly as they were; what exists is left alone. Answers how many were put."""

    script: ClassVar[str] = "restore"
    writes: ClassVar[bool] = True
    found: Sequence[Found]
    token: str = ""

    def argv(self) -> list[Argument]:
        args: list[Argument] = []
        for item in self.found:
            tail = make_tail(item.topic, item.route, item.refs, item.body)
            record = b"1:%d:%s" % (item.version, tail)
            args += [encode_text(item.id), item.state, item.score_ms, record, bounded_reason(item.reason)]
        return args

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)


@dataclass(slots=True)
class Call(Generic[R]):
    """An operation addressed to a shard."""

    shard: int
    operation: Operation[R]
