"""Decides whether the models allow a sequence of protocol events.

The models of this folder have a bounded number of items and faults, and know what each process remembers. A trace of a
real system has more items, and shows only what the store and the broker have seen. So this module has only the models'
rules about store and broker. `test_admission.py` shows that it accepts what the models do, and refuses what they
forbid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    """One event of the protocol.

    accept    items wait now
    claim     items are under the claim `number`, made by `who` in `epoch`, until `until_ms`
    extend    the leases of items under the claim `number` end at `until_ms`
    publish   items of the claim `number` were published
    settle    items of the claim `number` are settled: they go `to` "done", "due", "held" or "dead"
    recover   at `now_ms` the leases of items had ended: they go `to` "due", "held", "dead" or "done" (cancelled)
    step      the clock has stepped: the shard has `epoch` now
    acquire   `who` owns the shard now, in `epoch`
    fence     `who` has fenced all other senders of the shard
    send      `who` has committed `number` in one transaction with items of that claim
    resolve   open claims end, in `epoch`, by the last sent `number` (-1: not known); these items go `to` a place
    move      items that are not under a claim go `to` another place; "done" = they leave the store
    rename    the first item has the id of the second now, under the same claim `number`
    """

    kind: str
    items: tuple[str, ...] = ()
    number: int = 0
    epoch: int | None = None
    now_ms: int | None = None
    until_ms: int | None = None
    to: str = ""
    who: str = ""
    shard: int = 0


@dataclass(slots=True)
class _Shard:
    place: dict[str, str] = field(default_factory=dict)
    claim: dict[str, int] = field(default_factory=dict)
    until_ms: dict[str, int | None] = field(default_factory=dict)
    handed: set[tuple[int, str]] = field(default_factory=set)  # (claim number, item) of all claims so far
    published: set[tuple[int, str]] = field(default_factory=set)
    claims: int = 0
    epoch: int | None = None
    sender: str | None = None
    last: int | None = None
    in_transactions: bool = False


class Refused(Exception):
    """Raised for an event that the models forbid."""


def why_refused(trace: Iterable[Event], *, publishing: bool = True) -> str | None:
    """Describe the first event of a trace that the models do not allow, and why they do not; None: they allow all.

    Args:
        trace: the events in order.
        publishing: whether the trace contains `publish` events. If so, an item may be done only after its `publish`.
            Defaults to True.
    """
    shards: dict[int, _Shard] = {}
    for place, event in enumerate(trace):
        shard = shards.setdefault(event.shard, _Shard())
        try:
            _apply(shard, event, publishing)
        except Refused as refused:
            return f"event {place}, {event.kind} {', '.join(event.items)}: {refused}"
    return None


def admits(trace: Iterable[Event], *, publishing: bool = True) -> bool:
    """Whether the models allow a trace; see `why_refused`."""
    return why_refused(trace, publishing=publishing) is None


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


def _apply(s: _Shard, e: Event, publishing: bool) -> None:
    match e.kind:
        case "accept":
            for item in e.items:
                _must(s.place.get(item, "done") == "done", f"{item} was in the store already")
                s.place[item] = e.to or "due"
        case "claim":
            _claim(s, e)
        case "extend":
            for item in e.items:
                _under(s, e, item)
                s.until_ms[item] = e.until_ms
        case "publish":
            for item in e.items:
                _must((e.number, item) in s.handed, f"{item} was never under claim {e.number}")
                s.published.add((e.number, item))
        case "settle":
            for item in e.items:
                _under(s, e, item)
                unpublished = publishing and e.to == "done" and (e.number, item) not in s.published
                _must(not unpublished, f"{item} was not published")
                _end(s, item, e.to)
        case "recover":
            for item in e.items:
                _must(s.place.get(item) == "leased", f"{item} was under no claim")
                until_ms = s.until_ms[item]
                early = until_ms is not None and e.now_ms is not None and e.now_ms < until_ms
                _must(not early, f"the lease of {item} ends at {until_ms}, and it was {e.now_ms}")
                _must(not s.in_transactions, f"{item} is under a claim without a lease end")
                _end(s, item, e.to or "due")
        case "step" | "acquire":
            _must(s.epoch is None or (e.epoch or 0) > s.epoch, f"the epoch was {s.epoch} before")
            s.epoch = e.epoch
        case "fence":
            s.sender = e.who
            s.in_transactions = True
        case "send":
            _send(s, e)
        case "resolve":
            _resolve(s, e)
        case "move":
            for item in e.items:
                _must(s.place.get(item, "done") not in ("done", "leased"), f"{item} is not free to move")
                s.place[item] = e.to
        case "rename":
            _rename(s, e)
        case _:
            raise Refused("there is no such event")


def _under(s: _Shard, e: Event, item: str) -> None:
    held = s.claim.get(item, 0)
    _must(held == e.number != 0, f"{item} is not under claim {e.number}, but {held or 'under none'}")


def _end(s: _Shard, item: str, to: str) -> None:
    s.place[item] = to
    s.claim[item] = 0


def _claim(s: _Shard, e: Event) -> None:
    _must(e.number > s.claims, f"the last claim was {s.claims}")
    _must(e.epoch is None or s.epoch is None or e.epoch == s.epoch, f"the epoch is {s.epoch}, not {e.epoch}")
    s.claims = e.number
    for item in e.items:
        _must(s.place.get(item) == "due", f"{item} did not wait")
        s.place[item], s.claim[item], s.until_ms[item] = "leased", e.number, e.until_ms
        s.handed.add((e.number, item))


def _send(s: _Shard, e: Event) -> None:
    _must(s.sender == e.who, f"{e.who} is fenced, by {s.sender}")
    if e.items:
        _must(s.last is None or e.number > s.last, f"claim {s.last} was sent before")
    for item in e.items:
        _must((e.number, item) in s.handed, f"{item} was never under claim {e.number}")
        s.published.add((e.number, item))
    s.last = e.number
    for item, number in s.claim.items():
        unsent = 0 < number <= e.number and (number, item) not in s.published
        _must(not unsent, f"{item} is under claim {number} and was not sent: the number says that it was")
        sent = number > e.number and (number, item) in s.published
        _must(not sent, f"{item} is under claim {number} and was sent: the number says that it was not")


def _resolve(s: _Shard, e: Event) -> None:
    _must(e.epoch is None or s.epoch is None or e.epoch == s.epoch, f"the epoch is {s.epoch}, not {e.epoch}")
    for item in e.items:
        number = s.claim.get(item, 0)
        _must(number != 0, f"{item} was under no claim")
        if e.number == -1:
            _must(e.to == "held", f"nobody knows whether claim {number} was sent: {item} has to be held")
        else:
            done = number <= e.number
            _must((e.to == "done") == done, f"claim {number} was {'' if done else 'not '}sent, and {item} is {e.to}")
        _end(s, item, e.to)
    s.claims = max(s.claims, e.number)


def _rename(s: _Shard, e: Event) -> None:
    old, new = e.items
    _under(s, e, old)
    _must(s.place.get(new, "done") == "done", f"{new} was in the store already")
    s.place[new], s.claim[new], s.until_ms[new] = "leased", e.number, s.until_ms[old]
    s.handed.add((e.number, new))
    _end(s, old, "done")
