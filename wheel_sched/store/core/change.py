"""Change items one by one: their due time, record or state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wheel_sched.store.core.call import Argument, Call, Operation, Plan, bounded_reason, new_token, outcomes_of
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome, State, check_due, check_id, encode_text, make_tail
from wheel_sched.store.core.memory_item import MemoryItem, check_batch, plain
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Alteration:
    """One change of one item, for `Change`. The letter `verb` says which change, see change.lua.

    The verbs, with the meaning of `argument` in brackets: r reschedule (due time), p replace (due time), P replace or
    create (due time), i replace, also in flight (due time), m give an item in flight another id (the id), c cancel,
    h hold (reason), u release (due time), q requeue (due time), x delete. `version`: change the item only if it has
    this version. `item`: the new record.
    """

    id: str
    verb: str
    argument: int | str = ""
    version: int | None = None
    item: Item | None = None


@dataclass(slots=True)
class Change(Operation[list[Outcome]]):
    """Reschedule, replace, cancel, hold, release, requeue or delete items.

    Each `Alteration` names its change by a verb of change.lua. Three verbs change an item in flight: `i` replaces its
    record, `m` gives it another id and a new record, and `c` sets its cancel mark, with which it does not become due
    again.
    """

    script = "change"
    writes = True
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

    def in_memory(self, shard: MemoryShard) -> list[Outcome]:
        remembered = shard.answers.recall(self.token)
        if remembered is not None:
            return list(remembered)
        check_batch(len(self.alterations))
        versions = shard.sequence()
        outcomes = [_change(shard, alteration, versions) for alteration in self.alterations]
        shard.answers.record(self.token, tuple(outcomes))
        return outcomes


def check_alterations(alterations: Sequence[Alteration]) -> None:
    """Check ids, due times and records. Raises `Rejected`."""
    for alteration in alterations:
        check_id(alteration.id)
        due: Any = alteration.argument
        if alteration.verb == "m":
            check_id(due)
        elif alteration.verb != "h" and due not in ("", "="):
            check_due(due, alteration.id)
        if alteration.item is not None:
            alteration.item.check()


def change_elsewhere(
    alterations: Sequence[Alteration],
    outcomes: list[Outcome],
    token: str,
    everywhere: Callable[[Callable[[], Operation[list[Outcome]]]], list[Call[list[Outcome]]]],
) -> Plan[None]:
    """Make the changes whose outcome is ABSENT in the shards to which a route may have led their items.

    A change that brings a record is left out, because the record also says in which shard it lies. The new outcomes
    replace those in `outcomes`. A repeat with the same token gets its first answers.
    """
    absent = [i for i, outcome in enumerate(outcomes) if outcome is Outcome.ABSENT and alterations[i].item is None]
    for at in range(0, len(absent), MAX_BATCH):
        page = absent[at : at + MAX_BATCH]
        part, name = [alterations[i] for i in page], f"{token}.elsewhere{at}"
        answers = yield everywhere(lambda part=part, name=name: Change(part, name))  # type: ignore[misc]
        for found in answers:
            for i, outcome in zip(page, found, strict=True):
                if outcome is not Outcome.ABSENT:
                    outcomes[i] = outcome


def _change(shard: MemoryShard, change: Alteration, versions: Iterator[int]) -> Outcome:
    item = shard.items.get(encode_text(change.id))
    if change.verb in ("q", "x"):
        return _change_dead(shard, item, change, versions)
    if item is None:
        return _create(shard, change, versions)
    if item.state == "dead":
        return Outcome.WRONG_STATE
    if change.version is not None and change.version != item.version:
        return Outcome.OTHER_VERSION
    if item.state == "leased":
        if change.verb in ("i", "m"):
            return _change_claimed(shard, item, change, versions)
        if change.verb != "c":
            return Outcome.IN_FLIGHT
        item.cancelled = True
        return Outcome.CANCELLED
    return _change_waiting(shard, item, change, versions)


def _change_waiting(shard: MemoryShard, item: MemoryItem, change: Alteration, versions: Iterator[int]) -> Outcome:
    verb, argument, state = change.verb, change.argument, item.state
    if verb == "c":
        _take_out(shard, item)
        shard.remove(item, state, "cancelled")
        return Outcome.DONE
    if verb == "m" or (verb == "h" and state != "due") or (verb == "u" and state != "held"):
        return Outcome.WRONG_STATE
    kept_ms = shard.score_of(item)
    reason = _take_out(shard, item)
    shard.moves(item.topic, state, None)
    if verb in ("p", "P", "i"):
        _rewrite(shard, item, change.item, versions)
    if verb == "h":
        state = shard.put_held(item, kept_ms or 0, bounded_reason(str(argument)))
    elif verb in ("p", "P", "i") and argument == "=" and state == "held":  # a held item stays held, with its reason
        state = shard.put_held(item, kept_ms or 0, reason)
    else:
        state = _place(shard, item, kept_ms if argument == "=" else argument)
    shard.moves(item.topic, None, state)
    return Outcome.DONE


def _change_claimed(shard: MemoryShard, item: MemoryItem, change: Alteration, versions: Iterator[int]) -> Outcome:
    """Give an item in flight a new record (verb `i`), or another id and a new record (verb `m`).

    The item keeps its claim, its lease and its cancel mark.
    """
    if change.verb == "i":
        if item.cancelled:
            return Outcome.ABSENT
    else:
        other = str(change.argument)
        key = encode_text(other)
        if key in shard.items:
            return Outcome.DUPLICATE
        if shard.shares is not None:
            shard.shares.renamed(item.key, key)
        deadline_ms = shard.leased.score(item.key)
        shard.leased.discard(item.key)
        shard.drop_refs(item)
        del shard.items[item.key]
        item.key, item.id, item.refs = key, plain(other), ()
        shard.items[key] = item
        shard.leased.add(key, deadline_ms or 0)
    shard.moves(item.topic, "leased", None)
    _rewrite(shard, item, change.item, versions)
    shard.moves(item.topic, None, "leased")
    return Outcome.DONE


def _change_dead(shard: MemoryShard, item: MemoryItem | None, change: Alteration, versions: Iterator[int]) -> Outcome:
    if item is None:
        return Outcome.ABSENT
    if item.state != "dead":
        return Outcome.IN_FLIGHT if item.state == "leased" else Outcome.WRONG_STATE
    if change.version is not None and change.version != item.version:
        return Outcome.OTHER_VERSION
    shard.dead.discard(item.key)
    if change.verb == "x":
        shard.remove(item, "dead", "deleted")
        return Outcome.DONE
    shard.unearth(item)
    shard.moves(item.topic, "dead", None)
    shard.event("requeued", item.topic)
    if change.item is not None:
        _rewrite(shard, item, change.item, versions)
    shard.moves(item.topic, None, _place(shard, item, change.argument))
    return Outcome.DONE


def _create(shard: MemoryShard, change: Alteration, versions: Iterator[int]) -> Outcome:
    if change.verb != "P":
        return Outcome.ABSENT
    if change.version is not None:
        return Outcome.OTHER_VERSION
    item = MemoryItem(encode_text(change.id), plain(change.id), 0, "", None, (), b"")
    shard.items[item.key] = item
    _rewrite(shard, item, change.item, versions)
    shard.event("accepted", item.topic)
    shard.moves(item.topic, None, _place(shard, item, change.argument))
    return Outcome.DONE


def _rewrite(shard: MemoryShard, item: MemoryItem, given: Item | None, versions: Iterator[int]) -> None:
    if given is None:
        raise TypeError(f"expected a replacement to come with an item, got: none for {item.id!r}")
    shard.rewrite(item, next(versions), given.topic, given.route, given.refs, given.body)


def _take_out(shard: MemoryShard, item: MemoryItem) -> bytes:
    if item.state == "held":
        return shard.drop_held(item)
    shard.drop_due(item.key)
    return b""


def _place(shard: MemoryShard, item: MemoryItem, due: int | str | None) -> State:
    """Let an item wait, or hold it when there is no due time. Returns the new state."""
    return shard.put_waiting(item, due) if isinstance(due, int) else shard.put_held(item, 0, b"parked")
