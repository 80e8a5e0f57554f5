"""Fair shares under random weights, arrivals, limits and changes: no key starves, and memory equals the scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wheel_sched.store.core.delay_store import Backend
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Done, Next
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.fair_shares.taking_in_memory import KEYS_OF_A_CLAIM
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis

KEYS = ("", "a", "b", "c", "é")
weights = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0.25, 0.5, 1, 2, 3, 8]), max_size=4)
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_in_flight": st.integers(1, 4),
        "key_interval_us": st.sampled_from([500, 20_000]),
        "key_burst": st.integers(1, 5),
        "interval_us": st.sampled_from([300, 10_000]),
        "burst": st.integers(1, 40),
        "in_flight_ms": st.sampled_from([50, 600_000]),
        "ends": st.sampled_from(["settled", "reported"]),
    },
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from(KEYS),
            st.integers(1, 40),
            st.one_of(st.integers(-50, 30), st.sampled_from([59_999, 60_001])),
        ),
        st.tuples(st.just("plain"), st.just(""), st.integers(1, 30), st.integers(-50, 10)),
        st.tuples(st.just("claim"), st.just(""), st.integers(1, 60), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.just(""), st.one_of(st.integers(1, 40), st.just(60_000)), st.just(0)),
        st.tuples(
            st.just("change"),
            st.sampled_from(["cancel", "hold", "release", "later", "rekey"]),
            st.integers(1, 9),
            st.just(0),
        ),
        st.tuples(st.just("back"), st.just(""), st.integers(1, 20_000), st.just(0)),
        st.tuples(st.just("pause"), st.sampled_from(["t", "u"]), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("off"), st.just(""), st.integers(0, 1), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


class History:
    """Carries out random steps on one store, and keeps all answers of the store."""

    def __init__(self, backend: Backend, chosen: FairSettings) -> None:
        self.bench = Bench(backend, 1)
        self.shares = FairShares(self.bench.store)
        self.chosen = chosen
        self.shares.configure("t", chosen)
        self.made = 0
        self.open: list[str] = []
        self.seen: list[Any] = []

    def step(self, kind: str, name: str, number: int, more: int) -> None:
        bench, store = self.bench, self.bench.store
        if kind == "put":
            ids = [f"{self.made + n}" for n in range(number)]
            bench.put(*ids, in_ms=more, topic="t", refs=(fair_ref(name),) if name else ())
            self.made += number
        elif kind == "plain":
            bench.put(*[f"{self.made + n}" for n in range(number)], in_ms=more, topic="u")
            self.made += number
        elif kind == "claim":
            claim = bench.claim(number, lease_ms=30)
            self.seen.append(([item.id for item in claim.items], claim.due_head_ms, claim.lease_head_ms))
            done = [Next(i.id, bench.now_ms + 5) if more == 1 else Done(i.id) for i in claim.items if more != 2]
            self.seen.append(store.settle(claim, done).outcomes)
            self.open += [item.id for item in claim.items]
            if more == 3:
                self.seen.append(self.shares.finish(self.open))
                self.open = []
        elif kind == "wait":
            bench.clock.advance(number)
        elif kind == "back":
            bench.clock.advance(-number)
        elif kind == "change":
            ids = [f"{n}" for n in range(0, self.made, 10 - number)]
            rekeyed = [Item(one, None, b"new", "t", (fair_ref("moved"),)) for one in ids[::2]]
            change: dict[str, Callable[[], object]] = {
                "cancel": lambda: store.cancel(ids[::3]),
                "hold": lambda: store.hold(ids, "why"),
                "release": lambda: store.release(ids),
                "later": lambda: store.reschedule(ids, bench.now_ms + 7),
                "rekey": lambda: [store.replace(item, keep_due=True) for item in rekeyed],
            }
            self.seen.append(change[name]() if ids else None)
        elif kind == "pause":
            self.seen.append(store.resume(name) if number else store.pause(name))
        else:
            self.shares.configure("t", self.chosen if number else None)
        self.seen.append(self.shares.look("t"))
        (window,) = store.windows(10, 500)
        self.seen.append((window.due_head_ms, window.dues))

    def drain(self) -> None:
        """Claim and settle all items. Asserts that none stays behind."""
        store = self.bench.store
        for topic in ("t", "u"):
            store.resume(topic)
        store.release([found.id for found in self.bench.everything("held")])
        for _ in range(10_000):
            claim = self.bench.claim(500, lease_ms=1000)
            self.bench.settle_all(claim)
            self.seen.append([item.id for item in claim.items])
            heads = [head for head in (claim.due_head_ms, claim.lease_head_ms) if head is not None]
            if not heads:
                break
            self.bench.clock.now_ms = max(self.bench.now_ms, *heads) if claim.items == [] else self.bench.now_ms
        self.bench.check()
        assert store.counts().total("due") == 0


def histories(backend: Backend, other: Backend, chosen: FairSettings, drawn: list[tuple[str, str, int, int]]) -> None:
    one, two = History(backend, chosen), History(other, chosen)
    for step in drawn:
        one.step(*step)
        two.step(*step)
        assert one.seen[-4:] == two.seen[-4:], step
    one.drain()
    two.drain()
    assert one.seen == two.seen


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(weights=weights, limited=limits, drawn=steps)
@example(
    weights={},
    limited={},
    drawn=[("plain", "", 1, 0), ("put", "", 1, 0), ("plain", "", 1, 0), ("claim", "", 1, 0), ("put", "", 1, 1)],
)  # a key in the ring whose next item is not due yet
def test_the_memory_store_shares_as_the_scripts_do(
    shared_fake: redis.Redis, weights: dict[str, float], limited: dict[str, Any], drawn: list[tuple[str, str, int, int]]
) -> None:
    for key in shared_fake.keys("{fair-model:*"):
        shared_fake.delete(key)
    backend = RedisBackend(shared_fake, Dialect("fair-model"))
    histories(MemoryBackend(1, clock="test"), backend, FairSettings(weights=weights, **limited), drawn)


@settings(max_examples=25, deadline=None)
@given(weights=weights, batch=st.integers(1, 60), seed=st.integers(0, 2**16), backlog=st.integers(0, 2000))
def test_no_key_waits_longer_than_its_share_allows(
    weights: dict[str, float], batch: int, seed: int, backlog: int
) -> None:
    """While keys have waiting items, the items that each got, divided by its weight, stay close for all keys.

    Between two keys the difference is at most one turn of each: the items that a key gets before the next key.
    """
    bench = Bench(MemoryBackend(1, clock="test"), 1)
    shares = FairShares(bench.store)
    shares.configure("t", FairSettings(weights=weights))
    bench.put(*[f"a.{n}" for n in range(min(backlog, 500))], topic="t", refs=("fair:a",), in_ms=-1000)
    for number, key in enumerate(("b", "c", "é")):
        bench.put(*[f"{key}.{n}" for n in range(200 + (seed >> number) % 100)], topic="t", refs=(fair_ref(key),))
    while (topic := shares.look("t")) is None or topic.waiting < bench.store.counts().total("due"):
        bench.claim(0)  # until all items are in the queues of their keys
    quantum = -(-batch // KEYS_OF_A_CLAIM)
    served = Counter[str]()
    left = Counter(found.id.partition(".")[0] for found in bench.everything("due"))
    while all(left[key] > 0 for key in ("b", "c", "é")):
        claim = bench.claim(batch)
        bench.settle_all(claim)
        for item in claim.items:
            key = item.id.partition(".")[0]
            served[key] += 1
            left[key] -= 1
            if min(left[key] for key in ("b", "c", "é")) == 0:
                break
            rates = {key: served[key] / weights.get(key, 1) for key in ("b", "c", "é")}
            turns = [min(quantum, max(1, int(quantum * weights.get(key, 1)))) / weights.get(key, 1) for key in rates]
            slack = sum(sorted(turns)[-2:])
            assert max(rates.values()) - min(rates.values()) <= slack + 0.01, (rates, weights)


arrivals = st.lists(
    st.tuples(st.sampled_from(["a", "d"]), st.integers(0, 150), st.integers(-2_000, -1)), min_size=5, max_size=12
)


@settings(max_examples=25, deadline=None)
@given(weights=weights, batch=st.integers(11, 60), arriving=arrivals)
def test_whatever_arrives_no_key_waits_longer_than_its_share_allows(
    weights: dict[str, float], batch: int, arriving: list[tuple[str, int, int]]
) -> None:
    """Keys that always have items get equal shares by weight, although items of other keys arrive, some long overdue.

    A key that gets its first item is served in the next claim.
    """
    bench = Bench(MemoryBackend(1, clock="test"), 1)
    shares = FairShares(bench.store)
    shares.configure("t", FairSettings(weights=weights))
    steady = ("b", "c", "é")
    for key in steady:
        bench.put(*[f"{key}.{n}" for n in range(60 * len(arriving))], topic="t", refs=(fair_ref(key),))
    while (topic := shares.look("t")) is None or topic.waiting < bench.store.counts().total("due"):
        bench.claim(0)
    turn = -(-batch // KEYS_OF_A_CLAIM)
    turns = [min(turn, max(1, int(turn * weights.get(key, 1)))) / weights.get(key, 1) for key in steady]
    served = Counter[str]()
    for number, (key, count, in_ms) in enumerate(arriving):
        bench.put(*[f"{key}.{number}.{n}" for n in range(count)], topic="t", refs=(fair_ref(key),), in_ms=in_ms)
        bench.put(f"z.{number}", topic="t", refs=(fair_ref(f"z{number}"),))
        claim = bench.claim(batch)
        bench.settle_all(claim)
        served.update(item.id.partition(".")[0] for item in claim.items)
        assert f"z.{number}" in [item.id for item in claim.items]
        rates = [served[key] / weights.get(key, 1) for key in steady]
        assert max(rates) - min(rates) <= sum(sorted(turns)[-2:]) + 0.01, (rates, weights)
