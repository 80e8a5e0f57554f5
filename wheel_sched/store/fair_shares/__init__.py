"""Fair shares: due items of a topic go out by weighted shares between their fair keys, such as tenants.

    item with the ref fair:<key>, topic fair ──► due ──► its key's queue ──► picked by share ──► claimed

Every dispatcher that claims from the store keeps to the shares, because the store decides at the claim. Within a key,
items go out by due time. Shares and limits hold in each shard. A key takes memory while it has items that are due or
will be due within a minute, or while a limit counts its items.

If a topic has a `max_in_flight`, each key has this number of *places*. An item in flight takes one place of its key. A
key without a free place waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from wheel_sched.errors import ConfigError
from wheel_sched.store.core.call import Plan
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import MAX_BATCH, check_name, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.fair_shares.operations import (
    CarryPlaces,
    ConfigureTopic,
    FairKey,
    FairTopic,
    FinishAttempts,
    ListFairTopics,
    LookAtTopic,
    PrepareDue,
)
from wheel_sched.store.fair_shares.rings_in_memory import StoredShares

__all__ = [
    "GREATEST_WEIGHT",
    "LEAST_WEIGHT",
    "MAX_WEIGHTS",
    "REF",
    "AsyncFairShares",
    "FairKey",
    "FairSettings",
    "FairShares",
    "FairTopic",
    "PrepareDue",
    "fair_key_of",
    "fair_ref",
]

REF = "fair:"  # how a ref that names a fair key begins
MAX_WEIGHTS = MAX_BATCH
COST = 10_000  # the cost of an item of weight 1 in virtual time; a whole number, so that sums are exact
LEAST_WEIGHT, GREATEST_WEIGHT = 0.01, 100.0
MAX_KEY = 200  # characters of a fair key in a ref; a longer key is replaced by its start and a digest


def fair_ref(key: str | bytes) -> str:
    """The ref that gives an item its fair key. Any text or bytes is allowed; "" is a key like every other.

    A key that is long or has control characters is shortened to its printable start and a digest, so that two different
    keys practically never share a ref.
    """
    raw = encode_text(key) if isinstance(key, str) else key
    text = raw.decode("utf-8", "surrogateescape")
    if len(raw) <= MAX_KEY and (not text or text.isprintable()):
        return REF + text
    start = "".join(c for c in text[:40] if c.isprintable())
    return f"{REF}{start}~{blake2b(raw, digest_size=12).hexdigest()}"


def fair_key_of(refs: Sequence[str]) -> str:
    """The fair key of an item with these refs, as `fair_ref` has written it; "" without one."""
    return next((ref.removeprefix(REF) for ref in refs if ref.startswith(REF)), "")


@dataclass(frozen=True, slots=True)
class FairSettings:
    """How a topic's due items are shared between its fair keys.

    Args:
        weights: keys with a weight of their own. A key of weight 4 gets four times the share of a key of weight 1.
            At most 500. Defaults to none.
        default_weight: the weight of all other keys, 0.01 to 100. Defaults to 1.
        max_in_flight: how many items of a key may be in flight, 0 = any number. Defaults to 0.
        ends: when an item is no longer in flight. "settled": its claim is settled. "reported": `FairShares.finish` is
            called for its id after it was published. Defaults to "settled".
        in_flight_ms: after this time an item counts as no longer in flight, so that a dead consumer does not stop a key
            for ever. Defaults to 10 minutes.
        key_interval_us: at most one item of a key in this many microseconds, 0 = no rate. Defaults to 0.
        key_burst: how many items of a key may go at once after a pause; 0 = as many as one second allows. Defaults
            to 0.
        interval_us, burst: as `key_interval_us` and `key_burst`, for all items of the topic.

    Raises:
        ConfigError: with every field that is wrong.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0
    max_in_flight: int = 0
    ends: Literal["settled", "reported"] = "settled"
    in_flight_ms: int = 600_000
    key_interval_us: int = 0
    key_burst: int = 0
    interval_us: int = 0
    burst: int = 0

    def __post_init__(self) -> None:
        problems = []
        for name, weight in [("default_weight", self.default_weight), *self.weights.items()]:
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not LEAST_WEIGHT <= weight <= GREATEST_WEIGHT:
                problems.append(f"expected the weight {name!r} to be a number from 0.01 to 100, got: {weight!r}")
        if len(self.weights) > MAX_WEIGHTS:
            problems.append(f"expected at most {MAX_WEIGHTS} weights, got: {len(self.weights)}")
        if self.ends not in ("settled", "reported"):
            problems.append(f"expected ends to be 'settled' or 'reported', got: {self.ends!r}")
        least = {"in_flight_ms": 1}
        for name in ("max_in_flight", "in_flight_ms", "key_interval_us", "key_burst", "interval_us", "burst"):
            value = getattr(self, name)
            if type(value) is not int or not least.get(name, 0) <= value < 2**48:
                problems.append(f"expected {name} to be a whole number from {least.get(name, 0)} up, got: {value!r}")
        if problems:
            raise ConfigError(problems)

    def stored(self) -> StoredShares:
        """The settings in the form that the store keeps."""
        mode: Literal["s", "r"] = "r" if self.ends == "reported" else "s"
        return StoredShares(
            _cost(self.default_weight),
            self.max_in_flight,
            self.in_flight_ms,
            mode,
            bool(self.weights),
            self.key_interval_us,
            _burst(self.key_interval_us, self.key_burst),
            self.interval_us,
            _burst(self.interval_us, self.burst),
        )

    def costs(self) -> list[tuple[bytes, int]]:
        """For each key that has a weight of its own: how much virtual time (see prelude.lua) one of its items costs."""
        return [(encode_text(fair_key_of((fair_ref(key),))), _cost(weight)) for key, weight in self.weights.items()]


def _cost(weight: float) -> int:
    return math.floor(COST / weight + 0.5)


def _burst(interval_us: int, burst: int) -> int:
    return burst or (max(1, 1_000_000 // interval_us) if interval_us else 0)


def configure_topic(plans: Plans, topic: str, settings: FairSettings | None) -> Plan[None]:
    """Make a topic fair, or change its settings, in all shards. None: the topic is no longer fair.

    The last call counts. It also applies to items that wait already. An item without a fair key has the key "".
    """
    check_name(topic, "topic")
    stored = None if settings is None else settings.stored()
    costs = [] if settings is None else settings.costs()
    yield plans.everywhere(lambda: ConfigureTopic(topic, stored, costs))


def finish_attempts(plans: Plans, ids: Sequence[str]) -> Plan[int]:
    """Report that attempts have ended, so that other items of their keys may go. Returns how many took a place.

    The ids are those of released items. Unknown ids have no effect, so the call may be repeated. Every shard is asked.
    """
    finished = 0
    for at in range(0, len(ids), MAX_BATCH):
        part = ids[at : at + MAX_BATCH]
        finished += sum((yield plans.everywhere(lambda part=part: FinishAttempts(part))))  # type: ignore[misc]
    return finished


def carry_places(plans: Plans, shard: int, pairs: Sequence[tuple[str, str]]) -> Plan[int]:
    """Give the places of items in flight to other ids of their shard. Returns how many items had a place.

    Use it when the work goes on under another id after its item was settled: later, `finish` with the other id frees
    the place. If both ids of a pair are the same, the item keeps its place, and `in_flight_ms` starts again. The call
    may be repeated.
    """
    carried = 0
    for at in range(0, len(pairs), MAX_BATCH):
        carried += yield from plans.one(shard, CarryPlaces(pairs[at : at + MAX_BATCH]))
    return carried


def look_at_topic(plans: Plans, topic: str, limit: int = 20) -> Plan[FairTopic | None]:
    """The settings of a fair topic, and up to `limit` of its keys.

    First come keys that wait for a place, then keys that have overdue items, in the order of their turns. None: the
    topic is not fair. Numbers are sums over the shards.
    """
    found: list[FairTopic | None] = yield plans.everywhere(lambda: LookAtTopic(topic, limit))
    present = [one for one in found if one is not None]
    if not present:
        return None
    keys: dict[str, FairKey] = {}
    for one in present:
        for key in one.keys:
            known = keys.get(key.key)
            keys[key.key] = key if known is None else known.plus(key)
    return FairTopic(
        topic,
        present[0].settings,
        sum(one.waiting for one in present),
        sum(one.active for one in present),
        sorted(keys.values(), key=lambda key: key.time)[:limit],
    )


def list_topics(plans: Plans) -> Plan[list[str]]:
    """The names of the fair topics."""
    found: list[list[str]] = yield plans.everywhere(ListFairTopics)
    return sorted({topic for topics in found for topic in topics})


class FairShares(Capability):
    """Makes topics fair, and reports which keys wait. Any thread may use it."""

    configure = blocking(configure_topic)
    finish = blocking(finish_attempts)
    carry = blocking(carry_places)
    look = blocking(look_at_topic)
    topics = blocking(list_topics)


class AsyncFairShares(AsyncCapability):
    """The asyncio twin of `FairShares`."""

    configure = awaited(configure_topic)
    finish = awaited(finish_attempts)
    carry = awaited(carry_places)
    look = awaited(look_at_topic)
    topics = awaited(list_topics)
