"""The audit job finds every kind of damage and repairs what is safe to repair. In a healthy store it finds nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from retry_topic.spark.jobs import audit
from retry_topic.spark.jobs.store import place_of
from wheel_sched.store import DelayStore, Item
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.redis.library import KEY_NAMES, shard_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LATER_MS = 4_000_000_000_000


def key(item_id: str, name: str, shards: int = 3) -> bytes:
    return shard_keys("wheel", shard_of(item_id, shards))[KEY_NAMES.index(name)]


def test_a_healthy_store_has_nothing_wrong(spark: SparkSession, store: DelayStore, redis_url: str) -> None:
    """An audit finds nothing in a store with items in every state, with and without routes."""
    store.schedule([Item(f"m{n}", LATER_MS + n, b"x", "t") for n in range(300)])
    store.schedule([Item(f"r{n}", LATER_MS, b"x", "t", route="one") for n in range(20)])
    store.schedule([Item(f"p{n}", None, b"x", "t") for n in range(20)])
    store.schedule([Item(f"f{n}", 0, b"x", "t") for n in range(20)])
    for shard in range(store.shards):
        store.claim(100, shard=shard, lease_ms=600_000)
    store.bury([(Item(f"d{n}", 5, b"x", "t"), "broken") for n in range(20)])
    found = audit(spark, place_of(redis_url))
    assert (found.items, found.findings, found.drifted, found.healthy) == (380, [], [], True)


def test_every_kind_of_damage_is_found_and_mended(
    spark: SparkSession, store: DelayStore, redis_url: str, redis_client: Any
) -> None:
    """An audit finds each kind of damage. A repair loses no item that has a record.

    An audit after the repair finds only damage about which a person must decide.
    """
    store.schedule([Item(f"m{n}", LATER_MS + n, b"x", "t") for n in range(50)])
    store.bury([(Item("grave", 5, b"x", "t"), "broken")])
    store.schedule([Item("leased", 0, b"x", "t"), Item("late", 1, b"x", "t")])
    for shard in range(store.shards):
        store.claim(100, shard=shard, lease_ms=1)
    redis_client.zadd(key("leased", "leased"), {"leased": 1_000})
    store.schedule([Item("overdue", 1, b"x", "t")])
    redis_client.hdel(key("m1", "body"), "m1")
    redis_client.hset(key("m2", "body"), "m2", b"garbage")
    redis_client.zrem(key("m3", "due"), "m3")
    redis_client.zrem(key("grave", "dead"), "grave")
    redis_client.zadd(key("m4", "held"), {"m4": 0})
    elsewhere = (shard_of("m5", 3) + 1) % 3
    other = shard_keys("wheel", elsewhere)
    redis_client.zadd(other[KEY_NAMES.index("due")], {"m5": LATER_MS})
    redis_client.hset(other[KEY_NAMES.index("body")], "m5", redis_client.hget(key("m5", "body"), "m5"))
    found = audit(spark, place_of(redis_url), grace_ms=1_000)
    flaws = {(finding.flaw, finding.id) for finding in found.findings}
    assert {
        ("no record", "m1"),
        ("unreadable record", "m2"),
        ("no place", "m3"),
        ("no place", "grave"),
        ("two places", "m4"),
        ("two shards", "m5"),
        ("wrong shard", "m5"),
        ("expired lease", "leased"),
        ("overdue", "overdue"),
    } <= flaws
    assert {item_id for _, item_id in flaws} <= {*(f"m{n}" for n in range(1, 6)), "grave", "leased", "overdue", "late"}
    assert found.drifted
    repaired = audit(spark, place_of(redis_url), grace_ms=1_000, repair=True)
    assert repaired.repaired == 4
    assert repaired.recovered >= 1
    ids = ("m1", "m3", "m4", "grave")
    states = {item_id: found and found.state for item_id, found in zip(ids, store.get(ids), strict=True)}
    assert states == {"m1": None, "m3": "held", "m4": "due", "grave": "dead"}
    again = audit(spark, place_of(redis_url), grace_ms=1_000)
    assert {finding.flaw for finding in again.findings} == {
        "unreadable record",
        "two shards",
        "wrong shard",
        "overdue",
    }
