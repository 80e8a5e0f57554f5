"""Operations on what is kept: create the shard, store, change, hold, remember, keep house."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wheel_sched.store.items import Fence, Found, Item, Outcome, Position, Stored, Swept, Tries
from wheel_sched.store.operations.call import Argument, bounded_reason, head_of, new_token, outcomes_of
from wheel_sched.store.record import decode_text, encode_text, make_tail

SCHEMA = 1  # of keys and records; releases that share it share a namespace


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
    """Store new items; what exists anywhere in the shard is left alone, and so is what the fence let in before.

    `graves` are stored among the dead in the same step, with a reason each, and attempt records are raised: with a
    position only where none knows as much, without one whatever they know.

    With `known_ms`, and then without fence and attempt records, the ids are given ones: each is known for its topic
    until so long after its due, also when it has gone out.
    """

    script: ClassVar[str] = "schedule"
    writes: ClassVar[bool] = True
    items: Sequence[Item]
    token: str = field(default_factory=new_token)
    fence: Fence | Position | None = None
    graves: Sequence[tuple[Item, str]] = ()
    tries: Sequence[Tries] = ()
    known_ms: int = 0

    def argv(self) -> list[Argument]:
        args: list[Argument] = [""]
        for item in self.items:
            args.append(encode_text(item.id))
            args.append("" if item.due_ms is None else item.due_ms)
            args.append(make_tail(item.topic, item.route, item.refs, item.body))
        for item, reason in self.graves:
            args += [encode_text(item.id), b"!" + bounded_reason(reason)]
            args.append(make_tail(item.topic, item.route, item.refs, item.body))
        compared: list[Argument] = []
        for key, attempts, expiry_ms in self.tries:
            if expiry_ms is None:
                compared += (encode_text(key), attempts)
            else:
                args += (encode_text(key), attempts, expiry_ms)
        args[0] = self._fence(len(compared) // 2)
        return args + compared

    def _fence(self, compared: int) -> Argument:
        if self.known_ms:
            return f"~{self.known_ms}"
        if self.fence is None:
            return f"+{len(self.tries)}" if self.tries else ""
        if isinstance(self.fence, Position):
            return encode_text(self.fence.text(len(self.tries) - compared, compared))
        return encode_text(self.fence.text())

    def parse(self, reply: Any, shard: int) -> Stored:
        return Stored(outcomes_of(reply[0]), reply[1])


@dataclass(slots=True)
class CloseEpoch:
    """Let nothing more in for an epoch of a writer or for one before it; answers the last closed epoch."""

    script: ClassVar[str] = "fence"
    writes: ClassVar[bool] = True
    fence: Fence
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.fence.epoch, encode_text(self.fence.writer)]

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)


@dataclass(slots=True)
class Mend:
    """Bring damaged ids into one place each (see mend.lua); DONE, WRONG_STATE (sound) or OTHER_VERSION (left)."""

    script: ClassVar[str] = "mend"
    writes: ClassVar[bool] = True
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply)


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
    """Reschedule, replace, cancel, hold, release, requeue or delete items that are not in flight; `i` and `m` are for
    those that are."""

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
            elif change.verb == "m":
                argument = encode_text(str(argument))
            version = "" if change.version is None else change.version
            args += [encode_text(change.id), change.verb, argument, version, tail]
        return args

    def parse(self, reply: Any, shard: int) -> list[Outcome]:
        return outcomes_of(reply[0])


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
        return Swept(shard, now_us, epoch, head_of(due_head), head_of(fly_head), recovered)


@dataclass(slots=True)
class Remember:
    """Raise attempt records and answer the greatest known of each key; 0 attempts only asks."""

    script: ClassVar[str] = "remember"
    writes: ClassVar[bool] = True
    tries: Sequence[tuple[str, int, int]]  # key, attempts, expiry in ms
    token: str = ""

    def argv(self) -> list[Argument]:
        return [part for key, tries, expiry_ms in self.tries for part in (encode_text(key), tries, expiry_ms)]

    def parse(self, reply: Any, shard: int) -> list[int]:
        return list(reply)


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
