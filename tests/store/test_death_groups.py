"""Death groups on a server: letters of older releases, damaged rows, damaged letters, and what a claim costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store import DeathGroups, Done, Item
from wheel_sched.store.core.call import Call
from wheel_sched.store.maintenance.operations import Mend
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.library import shard_keys
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis


@pytest.fixture(params=["imitation", pytest.param("server", marks=pytest.mark.real)])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("shared_fake" if request.param == "imitation" else "shared_client")


@pytest.fixture
def bench(client: Any, namespace: str) -> Bench:
    return Bench(RedisBackend(client, Dialect(namespace)), 1)


def as_an_older_release(client: Any, namespace: str) -> None:
    """Change the dead letters of a shard into the form of a release that had no death groups."""
    graves = shard_keys(namespace, 0)[8]
    for key, value in client.hgetall(graves).items():
        client.hset(graves, key, value.removeprefix(b"0"))
    client.delete(f"{{{namespace}:0}}:deathgroups")


def counts_of(bench: Bench) -> dict[tuple[str, str], int]:
    return {(group.topic, group.group): group.count for group in bench.death_groups.groups().groups}


def test_letters_of_an_older_release_are_in_no_group(bench: Bench, client: Any, namespace: str) -> None:
    """Letters of an older release are reported as uncounted. When one of them leaves, no count becomes smaller."""
    bench.bury("old", "older", "oldest", topic="t", reason="x: y")
    as_an_older_release(client, namespace)
    assert bench.death_groups.groups().uncounted == 3
    bench.bury("new", topic="t", reason="x: y")
    bench.store.delete_dead(["old"])
    bench.store.requeue([("older", bench.now_ms, None)])
    deaths = bench.death_groups.groups()
    assert (counts_of(bench), deaths.dead, deaths.uncounted) == ({("t", "x"): 1}, 2, 1)
    assert (bench.one("new").reason, bench.one("oldest").reason) == ("x: y", "x: y")


def test_a_recount_counts_them_once(bench: Bench, client: Any, namespace: str) -> None:
    """A recount counts each old letter in its group, at its time of death, in bounded steps. Another finds none."""
    first_ms = bench.now_ms
    bench.store.bury([(Item(f"{n}", first_ms - n % 3, b"%d" % n, "t", ("fp:e",)), "x") for n in range(600)])
    as_an_older_release(client, namespace)
    bench.bury("new", topic="t")
    for expected in (600, 0):
        counted, cursor, steps = 0, None, 0
        while True:
            step = bench.death_groups.recount(0, cursor)
            counted, cursor, steps = counted + step.counted, step.cursor, steps + 1
            assert step.counted <= 250
            if cursor is None:
                break
        assert (counted, steps) == (expected, 4)
    assert counts_of(bench) == {("t", "e"): 600, ("t", "broken"): 1}
    (group,) = [one for one in bench.death_groups.groups().groups if one.group == "e"]
    assert (group.first_ms, group.last_ms) == (first_ms - 2, first_ms)
    bench.store.delete_dead([f"{n}" for n in range(500)])
    assert counts_of(bench)["t", "e"] == 100
    bench.check()


@pytest.mark.parametrize("row", [b"", b"garbage", b"1:2:3", b"9" * 5000 + b":1:1:1:1::x"])
def test_a_damaged_row_starts_anew(bench: Bench, client: Any, namespace: str, row: bytes) -> None:
    """A row that cannot be read is not listed. The next death in its group replaces it, and no count is negative."""
    bench.bury("a", "b", topic="t", reason="x")
    client.hset(f"{{{namespace}:0}}:deathgroups", "1:tx", row)
    bench.store.delete_dead(["a"])
    assert counts_of(bench) == {}
    assert bench.death_groups.groups().uncounted == 1
    bench.bury("c", topic="t", reason="x")
    bench.store.delete_dead(["b", "c"])
    assert counts_of(bench) == {("t", "x"): 0}
    client.delete(f"{{{namespace}:0}}:deathgroups")
    bench.bury("d", topic="t", reason="x")
    assert not client.exists(f"{{{namespace}:0}}:deathgroups_empty")  # a group with letters is not removed


def test_letters_with_damage_are_counted(bench: Bench, client: Any, namespace: str) -> None:
    """A quarantined item is counted until it is deleted. The dead copy of a living item is counted until `Mend`."""
    keys = shard_keys(namespace, 0)
    bench.put("bad", topic="t")
    client.hset(keys[3], "bad", b"garbage")
    bench.put("poison", topic="t")
    bench.clock.advance(1)
    bench.claim()
    assert counts_of(bench) == {("", "quarantine"): 1}
    client.hset(keys[3], "poison", b"garbage")
    bench.clock.advance(60_000)
    bench.store.sweep(lapse_cap=1)
    assert counts_of(bench) == {("", "quarantine"): 1, ("", "poison"): 1}
    bench.store.delete_dead(["bad", "poison"])
    assert counts_of(bench) == {("", "quarantine"): 0, ("", "poison"): 0}
    bench.bury("copy", topic="t")
    value = client.hget(keys[8], "copy")
    client.hset(keys[3], "copy", value.removeprefix(b"06:broken"))
    client.zadd(keys[1], {"copy": 5})
    bench.store.execute([Call(0, Mend(["copy"]))])
    assert bench.states("copy") == ["due"]
    assert counts_of(bench)["t", "broken"] == 0


@pytest.mark.real
def test_a_life_without_a_death_costs_no_command_more(shared_client: redis.Redis, namespace: str) -> None:
    """Scheduling, claiming and settling items call none of the commands of the death groups."""
    bench = Bench(RedisBackend(shared_client, Dialect(namespace)), 1)

    def commands(function: Any) -> dict[str, int]:
        shared_client.config_resetstat()
        function()
        stats = shared_client.info("commandstats")
        names = ("zpopmin", "hlen", "zrem", "hdel", "hget", "hset", "hincrby", "zadd", "hmget")
        return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names}

    def live() -> None:
        bench.put(*(f"{n}" for n in range(100)), topic="t")
        claim = bench.claim()
        bench.store.settle(claim, [Done(item.id) for item in claim.items])

    commands(live)
    before = commands(live)
    DeathGroups(bench.store).groups()
    bench.bury("a")
    assert commands(live) == before
    assert (before["hlen"], before["zpopmin"], before["hget"]) == (0, 0, 0)
