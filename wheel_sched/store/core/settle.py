"""End items of a claim, or extend their leases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.burying import trim_dead_above
from wheel_sched.store.core.call import Argument, Operation, bounded_reason, head_of, new_token, outcomes_of
from wheel_sched.store.core.claim import check_lease
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome, check_due, encode_text, make_tail
from wheel_sched.store.core.memory_item import MemoryItem, check_batch
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Done:
    """A settlement: the item is finished and leaves the store.

    With a `version`, it leaves only if its record has this version, or if it was cancelled.
    """

    id: str
    version: int | None = None


@dataclass(slots=True)
class Next:
    """A settlement: the item waits again until `due_ms` (None: it is held), with a new body if one is given.

    A new body needs its topic, refs and route: they replace the old ones. A cancelled item leaves instead.
    With a `version`, it waits again only if its record has this version: see `DelayStore.replace` with `in_flight`.
    """

    id: str
    due_ms: int | None
    body: bytes | None = None
    topic: str = ""
    refs: tuple[str, ...] = ()
    route: str | None = None
    version: int | None = None


@dataclass(slots=True)
class Held:
    """A settlement: the item is held with a reason, without a due time. A cancelled item leaves instead."""

    id: str
    reason: str


@dataclass(slots=True)
class Dead:
    """A settlement: the item becomes a dead letter, with a new body if one is given: see `Next`."""

    id: str
    reason: str
    body: bytes | None = None
    topic: str = ""
    refs: tuple[str, ...] = ()
    route: str | None = None


Settlement = Done | Next | Held | Dead


def check_settlement(settlement: Settlement) -> None:
    """Raise `Rejected` unless the store can carry out the settlement."""
    if isinstance(settlement, Next):
        check_due(settlement.due_ms, settlement.id)
    if isinstance(settlement, Next | Dead) and settlement.body is not None:
        Item(settlement.id, None, settlement.body, settlement.topic, settlement.refs, settlement.route).check()


@dataclass(slots=True)
class Settled:
    """Outcomes in the order of the settlements, and the earliest due time and lease end of the shard.

    DONE: settled. STALE: the item is no longer under this claim. CANCELLED: it was cancelled while in flight, and has
    left (`Extend`: and its lease was extended). OTHER_VERSION: its record was replaced while it was in flight; it is
    still claimed (`Recurring.settle`: it is due now).
    """

    outcomes: list[Outcome]
    now_us: int
    due_head_ms: int | None
    lease_head_ms: int | None


@dataclass(slots=True)
class Settle(Operation[Settled]):
    """End items of a claim: done, next, held or dead; see `Settled`."""

    script = "settle"
    writes = True
    claim: int
    settlements: Sequence[Settlement]
    dead_cap: int = 0
    token: str = field(default_factory=new_token)

    def order(self) -> tuple[list[int], list[int]]:
        """Two lists of indices: the `Done` settlements without a version, and all others.

        The script gets the first list first.
        """
        rest = [i for i, s in enumerate(self.settlements) if type(s) is not Done or s.version is not None]
        if not rest:
            return list(range(len(self.settlements))), rest
        return [i for i, s in enumerate(self.settlements) if type(s) is Done and s.version is None], rest

    def argv(self) -> list[Argument]:
        done, rest = self.order()
        args: list[Argument] = [self.claim, self.dead_cap, len(done)]
        args += [encode_text(self.settlements[i].id) for i in done]
        for i in rest:
            args.extend(self.quadruple(self.settlements[i]))
        return args

    @staticmethod
    def quadruple(settlement: Settlement) -> tuple[Argument, ...]:
        """The four arguments that the script gets for a settlement. A `Done` without a version needs only its id."""
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

    def in_memory(self, shard: MemoryShard) -> Settled:
        remembered = shard.answers.recall(self.token)
        if remembered is not None:
            return Settled(list(remembered), shard.now_us, *shard.heads())
        check_batch(len(self.settlements))
        outcomes = settle_items(shard, self.claim, self.settlements, self.order())
        trim_dead_above(shard, self.dead_cap, MAX_BATCH)
        shard.answers.record(self.token, tuple(outcomes))
        return Settled(outcomes, shard.now_us, *shard.heads())


def settle_items(
    shard: MemoryShard,
    claim: int,
    settlements: Sequence[Settlement],
    order: tuple[list[int], list[int]],
    *,
    back: bool = False,
) -> list[Outcome]:
    """End items of a claim in a store in memory: the twin of prelude_settling.lua. Returns an outcome for each.

    Args:
        shard: the shard.
        claim: the number of the claim.
        settlements: what becomes of the items.
        order: see `Settle.order`.
        back: whether an item that has another version waits again and is due now. Defaults to False: it stays claimed.
    """
    outcomes = [Outcome.STALE] * len(settlements)
    versions = shard.sequence()
    done, rest = order
    for i in done + rest:
        settlement = settlements[i]
        item = shard.items.get(encode_text(settlement.id))
        if item is None or item.state != "leased" or item.claim != claim:
            continue
        wanted = settlement.version if isinstance(settlement, Done | Next) else None
        if wanted is not None and wanted != item.version and not item.cancelled:
            outcomes[i] = Outcome.OTHER_VERSION
            if back:
                shard.leased.discard(item.key)
                item.lapses = 0
                _place(shard, item, Next(settlement.id, shard.now_ms), versions)
            continue
        shard.leased.discard(item.key)
        item.lapses = 0
        outcomes[i] = Outcome.DONE
        if isinstance(settlement, Done):
            shard.remove(item, "leased", "completed")
        elif item.cancelled and not isinstance(settlement, Dead):
            outcomes[i] = Outcome.CANCELLED
            shard.remove(item, "leased", "cancelled")
        else:
            _place(shard, item, settlement, versions)
    if shard.shares is not None:
        ended = [i for i in done + rest if outcomes[i] in (Outcome.DONE, Outcome.CANCELLED)]
        if back:
            ended += [i for i in rest if outcomes[i] is Outcome.OTHER_VERSION]
        keys = {i: encode_text(settlements[i].id) for i in ended}
        published = {keys[i] for i in ended if isinstance(settlements[i], Done)}
        shard.ended(list(dict.fromkeys(keys.values())), published)
    return outcomes


def _tail_of(settlement: Next | Dead) -> bytes:
    if settlement.body is None:
        return b""
    return make_tail(settlement.topic, settlement.route, settlement.refs, settlement.body)


def _place(shard: MemoryShard, item: MemoryItem, settlement: Settlement, versions: Iterator[int]) -> None:
    shard.moves(item.topic, "leased", None)
    if isinstance(settlement, Next | Dead) and settlement.body is not None:
        shard.rewrite(item, next(versions), settlement.topic, settlement.route, settlement.refs, settlement.body)
    match settlement:
        case Dead(reason=reason):
            state = shard.put_dead(item, bounded_reason(reason))
        case Held(reason=reason):
            state = shard.put_held(item, 0, bounded_reason(reason))
        case Next(due_ms=None):
            state = shard.put_held(item, 0, b"parked")
        case Next(due_ms=int() as due_ms):
            state = shard.put_waiting(item, due_ms)
        case _:
            raise TypeError(f"expected Done, Next, Held or Dead, got: {settlement!r}")
    shard.moves(item.topic, None, state)


@dataclass(slots=True)
class Extend(Operation[Settled]):
    """Set the lease ends of items of a claim to `lease_ms` from now. A repeat is harmless, so it needs no token."""

    script = "extend"
    writes = False
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

    def in_memory(self, shard: MemoryShard) -> Settled:
        check_batch(len(self.ids))
        outcomes = []
        for item_id in self.ids:
            item = shard.items.get(encode_text(item_id))
            if item is None or item.state != "leased" or item.claim != self.claim:
                outcomes.append(Outcome.STALE)
                continue
            shard.leased.add(item.key, shard.now_ms + self.lease_ms)
            outcomes.append(Outcome.CANCELLED if item.cancelled else Outcome.DONE)
        return Settled(outcomes, shard.now_us, *shard.heads())
