"""The case `shards`: the life of a message on a Redis Cluster of three masters, with more and more shards.

Messages are stored 500 a call, then claimed and settled 80 a call, shard by shard. A shard's keys lie in one hash slot,
so one master has them all. The busiest master decides the rate of the whole. Which master has a shard follows from the
namespace's name and the hash slots, so the model of the busiest master's share has no constant.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from statistics import mean, median
from typing import Any

from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, Formula, fit
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.shared_server import MICROSECONDS
from benchmarks.growth.store_costs import CLAIM
from benchmarks.messages import BATCH, ids, plain_items
from benchmarks.narration import Narration
from benchmarks.server import NAMESPACE
from tests.servers.topologies import slot_ranges, temporary_cluster
from wheel_sched.store import Done, open_store

MASTERS = 3
_MOST = 128  # shards up to which a knee is looked for
_NAMESPACES = 50
_FIRST_SLOTS = [first for first, _ in slot_ranges(MASTERS)]

QUANTITIES = (
    Quantity("servers_us", "µs", "time of all masters in scripts for a message", (CONSTANT, LINEAR)),
    Quantity("busiest_us", "µs", "time of the busiest master in scripts for a message, in the namespace `bench`"),
    Quantity("client_us", "µs", "processor time of the client for a message", (CONSTANT, LINEAR)),
    Quantity(
        "full_per_s", "1/s", "messages a second at which the busiest master is full, mean over namespaces", drawn=False
    ),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Store, claim and settle the same number of messages with each number of shards."""
    points: dict[str, dict[int, float]] = {"servers_us": {}, "busiest_us": {}, "client_us": {}}
    with _cluster() as client:
        masters = [node.redis_connection for node in client.get_primaries()]
        pace = Pace(masters[0])
        for size in sizes.measured:
            narration.step(f"{size} shards")
            _live(client, masters, size, min(sizes.work, 1_000))  # loads the scripts, opens the connections
            pace.look(size)
            rounds = [_live(client, masters, size, sizes.work) for _ in range(sizes.rounds)]
            pace.look(size)
            for key in points:
                points[key][size] = median(found[key] for found in rounds)
    pace.even(points, points)
    return points


@contextmanager
def _cluster() -> Iterator[Any]:
    """Yield a client of a new Cluster of three masters."""
    with temporary_cluster(MASTERS, {"auto-aof-rewrite-percentage": "0"}) as nodes:
        client: Any = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in nodes])
        try:
            yield client
        finally:
            client.close()


def _live(client: Any, masters: list[Any], shards: int, count: int) -> dict[str, float]:
    """Store, claim and settle `count` messages in an empty namespace with `shards` shards."""
    for master in masters:
        master.flushall()
    store = open_store(client, namespace=NAMESPACE, shards=shards)
    items = plain_items(ids(count), store.now_ms() - 1_000)
    settled = 0
    began_s = time.process_time()
    with ScriptTime(*masters) as living:
        for at in range(0, count, BATCH):
            store.schedule(items[at : at + BATCH])
        for shard in range(shards):
            while (claim := store.claim(CLAIM, shard=shard)).items:
                store.settle(claim, [Done(item.id) for item in claim.items])
                settled += len(claim.items)
    spent_s = time.process_time() - began_s
    assert settled == count
    return {
        "servers_us": living.us / count,
        "busiest_us": max(living.each_us) / count,
        "client_us": spent_s * MICROSECONDS / count,
    }


def busiest_share(shards: int, namespace: str = NAMESPACE) -> float:
    """The share of the shards that the master with the most of them has, for a namespace of this name."""
    slots = (key_slot(f"{{{namespace}:{shard}}}".encode()) for shard in range(shards))
    found = Counter(bisect(_FIRST_SLOTS, slot) for slot in slots)
    return max(found.values()) / shards


@cache
def usual_share(shards: int) -> float:
    """The mean of `busiest_share` over many namespaces, because the name decides which master has which shard."""
    return mean(busiest_share(shards, f"namespace{number}") for number in range(_NAMESPACES))


def models(points: Points) -> Models:
    """The models of the busiest master: its share of the shards, times the time of all masters."""
    servers = fit(points["servers_us"], (CONSTANT, LINEAR))
    return {
        "busiest_us": Formula("servers_us * share", lambda size: servers.at(size) * busiest_share(int(size))),
        "full_per_s": Formula(
            "1000000 / (servers_us * usual share)",
            lambda size: MICROSECONDS / servers.at(size) / usual_share(int(size)),
        ),
    }


def knees(models: Models) -> list[Knee]:
    """Where further shards do not let the masters do more, and where they cost the client too much."""
    full = models["full_per_s"]
    best = max(range(1, _MOST + 1), key=full.at)
    dear = next(
        (count for count in range(1, _MOST + 1) if models["client_us"].at(count) > 2 * models["client_us"].at(1)), None
    )
    return [
        Knee(
            "further shards do not let the masters do more",
            best,
            "more masters, or a namespace for a part of the topics: with more shards, smaller calls cost more",
        ),
        Knee(
            "a message costs the client twice the processor time of one shard",
            dear,
            "fewer shards, or more clients: a call of 500 messages becomes a call for each shard",
        ),
    ]


CASE = Case(
    name="shards",
    across="shards",
    axis="time for a message, µs",
    quantities=QUANTITIES,
    full=Sizes((1, 2, 4, 8, 16), (32, 64), 20_000, rounds=5),
    quick=Sizes((1, 2, 4, 8), (16,), 4_000, rounds=3),
    measure=measure,
    models=models,
    knees=knees,
)
