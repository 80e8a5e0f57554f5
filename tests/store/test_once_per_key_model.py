"""Random histories of collapse and debounce: the store in memory and the scripts give the same answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wheel_sched.store import Item, Outcome
from wheel_sched.store.core.settle import Dead, Done
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.once_per_key import collapse_ref, debounce_ref
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis

refs = st.sampled_from(
    [(), ("r",), (collapse_ref("k"),), (debounce_ref("k", 0),), (debounce_ref("k", 40), "r"), (collapse_ref("l"),)]
)
items = st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 60), st.sampled_from(["", "t"]), refs), max_size=4)
steps = st.one_of(
    st.tuples(st.just("store"), items),
    st.tuples(st.sampled_from(["claim", "sweep", "pause", "resume"]), st.just([])),
    st.tuples(st.just("wait"), st.integers(1, 70_000)),
    st.tuples(st.sampled_from(["cancel", "requeue", "later"]), st.integers(0, 9)),
)


def run(bench: Bench, kind: str, what: Any) -> Any:
    """Take one step on one store. Returns the store's answer, and what the store then contains."""
    store, answer = bench.store, None
    if kind == "store":
        batch = [Item(f"i{n}", bench.now_ms + due, b"", topic, refs_) for n, due, topic, refs_ in what]
        stored = store.schedule(batch)
        answer = stored.outcomes, stored.others
        assert [
            at for at, outcome in enumerate(stored.outcomes) if outcome in (Outcome.SUPERSEDED, Outcome.REPLACED)
        ] == (sorted(stored.others))
    elif kind == "claim":
        claim = bench.claim(lease_ms=20, lapse_cap=3)
        ends = [Dead(item.id, "x") if n % 3 == 0 else Done(item.id) for n, item in enumerate(claim.items) if n % 2 == 0]
        answer = [item.id for item in claim.items], store.settle(claim, ends).outcomes
    elif kind == "wait":
        bench.clock.advance(what)
    elif kind in ("pause", "resume"):
        answer = getattr(store, kind)("t")
    elif kind == "sweep":
        store.sweep()
    elif kind == "cancel":
        answer = store.cancel([f"i{what}"])
    elif kind == "requeue":
        answer = store.requeue([(f"i{what}", bench.now_ms, None)])
    else:
        answer = store.reschedule([f"i{what}"], bench.now_ms + 30)
    bench.check()
    there = [(one.state, one.score_ms, one.refs) if one else None for one in store.get([f"i{n}" for n in range(10)])]
    return answer, there, store.counts().ever


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=14))
def test_the_store_in_memory_is_the_twin_of_the_scripts(
    history: list[tuple[str, Any]], shared_fake: redis.Redis, namespace: str
) -> None:
    """After any steps, in any order, the store in memory and the scripts have the same items and counts."""
    twins = [Bench(MemoryBackend(1, clock="test"), 1), Bench(RedisBackend(shared_fake, Dialect(namespace)), 1)]
    try:
        for kind, what in history:
            memory, scripts = (run(bench, kind, what) for bench in twins)
            assert memory == scripts
    finally:
        keys = shared_fake.keys(f"{{{namespace}:*")
        if keys:
            shared_fake.delete(*keys)
