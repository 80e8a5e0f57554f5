"""The case `ordering-keys`: what one more closed key costs when many keys are closed already.

A failure closes the ordering key of its message; later messages of the key are parked. At each number of closed keys,
some keys are closed, one message is parked behind each of these, and the heads succeed, so that the parked messages are
due. Then these messages are claimed and settled, and the keys open.
"""

from __future__ import annotations

from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, LOGARITHM, passes
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.store_costs import CLAIM
from benchmarks.messages import BATCH, TOPIC, VALUE
from benchmarks.narration import Narration
from benchmarks.server import BenchServer, bench_server
from wheel_sched.store import DelayStore, Done, Item
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, route_of, scope_of

_MIB, _GIB = 2**20, 2**30
_SCOPE = scope_of("billing", TOPIC)
_LEASE_MS = 3_600_000
_CAP = 1_000_000

QUANTITIES = (
    Quantity("close_us", "µs", "server's time to close a key, 500 a call", (CONSTANT, LOGARITHM)),
    Quantity("park_us", "µs", "server's time to park a message behind a key", (CONSTANT, LOGARITHM)),
    Quantity("pass_us", "µs", "server's time to let the next message of a key go", (CONSTANT, LOGARITHM)),
    Quantity("memory_mib", "MiB", "memory of the server, without parked messages", (CONSTANT, LINEAR), drawn=False),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Close more and more keys. At each number of closed keys, measure all values."""
    points: dict[str, dict[int, float]] = {quantity.key: {} for quantity in QUANTITIES}
    with bench_server() as server:
        store = server.empty_store()
        keys = OrderedKeys(store)
        owner = Owner(_SCOPE, "reader", keys.acquire(_SCOPE, "reader", _LEASE_MS).epoch)
        closed, pace = 0, Pace(server.client)
        for size in sizes.measured:
            narration.step(f"{size:,} closed keys")
            for at in range(closed, size, 50_000):  # this process never holds all names at once
                _close(keys, owner, [f"order-{number}" for number in range(at, min(at + 50_000, size))])
            closed = size
            pace.look(size)
            for key, value in _measured_at(
                server, store, owner, [f"probe{size}-{n}" for n in range(sizes.work)]
            ).items():
                points[key][size] = value
            pace.look(size)
    pace.even(points, [key for key in points if key.endswith("_us")])
    return points


def _measured_at(server: BenchServer, store: DelayStore, owner: Owner, names: list[str]) -> dict[str, float]:
    """Close these further keys, park a message behind each, let the messages go, and open the keys. Measure each."""
    keys = OrderedKeys(store)
    memory = server.used_memory()
    rows_a_call = min(BATCH, len(names))
    locks = [lock_of(_SCOPE, name.encode()) for name in names]
    with ScriptTime(server.client) as closing:
        _close(keys, owner, names)
    due_ms = store.now_ms()
    items = [
        Item(f"{name}:2.1", due_ms, VALUE, TOPIC, (ref_of(lock),), route=route_of(lock))
        for name, lock in zip(names, locks, strict=True)
    ]
    rows = [(lock, f"{name}:2", True, item) for name, lock, item in zip(names, locks, items, strict=True)]
    with ScriptTime(server.client) as parking:
        assert set(keys.park(owner, _CAP, rows)) == {Outcome.HELD}
    with ScriptTime(server.client) as passing:
        assert set(keys.succeeded([(lock, f"{name}:1") for name, lock in zip(names, locks, strict=True)])) == {
            Outcome.DONE
        }
    while (claim := store.claim(CLAIM)).items:
        store.settle(claim, [Done(item.id) for item in claim.items])
    keys.succeeded([(lock, f"{name}:2") for name, lock in zip(names, locks, strict=True)])
    return {
        "close_us": closing.typical_us / rows_a_call,
        "park_us": parking.typical_us / rows_a_call,
        "pass_us": passing.typical_us / rows_a_call,
        "memory_mib": memory / _MIB,
    }


def _close(keys: OrderedKeys, owner: Owner, names: list[str]) -> None:
    rows = [(lock_of(_SCOPE, name.encode()), f"{name}:1", True, name) for name in names]
    assert set(keys.close(owner, rows)) == {Outcome.DONE}


def knees(models: Models) -> list[Knee]:
    """Where the memory is full, and where the calls are long."""
    return [
        Knee(
            "the closed keys need over 4 GiB of the server",
            passes(models["memory_mib"], 4 * _GIB / _MIB),
            "shards: a partition of the topic decides the shard of its keys",
        ),
        Knee(
            "letting 500 messages go keeps the server busy for over 50 ms",
            passes(models["pass_us"], 100),
            "more partitions, so that a reader has fewer keys; shards on several servers",
        ),
    ]


CASE = Case(
    name="ordering-keys",
    across="closed ordering keys",
    axis="server's time, µs",
    quantities=QUANTITIES,
    full=Sizes((2_500, 10_000, 40_000, 160_000, 640_000, 1_280_000), (5_120_000,), 5_000),
    quick=Sizes((1_250, 5_000, 10_000, 20_000), (1_280_000,), 1_000),
    measure=measure,
    knees=knees,
)
