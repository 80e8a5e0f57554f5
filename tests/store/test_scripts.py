"""The scripts on a server: damaged records, loading, two versions of this package, and namespaces with other
settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import fakeredis
import pytest

from wheel_sched.errors import ConfigError, NamespaceMismatch, StoreError, StoreTooOld, StoreUnavailable
from wheel_sched.store import Documents, WriterFences, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Count
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.get import Find
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.death_groups import EMPTY_FOR_MS
from wheel_sched.store.maintenance.operations import Inspect, Mend
from wheel_sched.store.redis.backend import RedisBackend, check_version
from wheel_sched.store.redis.library import library, shard_keys
from wheel_sched.store.redis.round_trips import Dialect, Send, Sleep
from wheel_sched.store.writer_fence import Fence
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis


@pytest.fixture(params=["imitation", pytest.param("server", marks=pytest.mark.real)])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("shared_fake" if request.param == "imitation" else "shared_client")


@pytest.fixture
def bench(client: Any, namespace: str) -> Bench:
    return Bench(RedisBackend(client, Dialect(namespace)), 1)


@pytest.mark.parametrize("damage", [None, b"", b"garbage", b"2:1:0:0:0:x", b"1:1:0:0:"])
def test_an_unreadable_record_is_quarantined(bench: Bench, client: Any, namespace: str, damage: bytes | None) -> None:
    """An item whose record cannot be read is never claimed. When it is due it becomes dead, with the reason, and
    blocks no other item."""
    bench.put("bad", "good", topic="t")
    body = shard_keys(namespace, 0)[3]
    if damage is None:
        client.hdel(body, "bad")
    else:
        client.hset(body, "bad", damage)
    claim = bench.claim()
    assert [item.id for item in claim.items] == ["good"]
    found = bench.one("bad")
    assert (found.state, found.body) == ("dead", damage or b"")
    assert found.reason.startswith("quarantine: the record")
    assert bench.store.counts().unreadable == 1
    assert bench.settle_all(claim) == [Outcome.DONE]
    assert bench.store.requeue([("bad", bench.now_ms, None)]) == [Outcome.WRONG_STATE]
    assert bench.store.requeue([("bad", bench.now_ms, Item("bad", 0, b"repaired", "t"))]) == [Outcome.DONE]
    assert [(item.id, item.body) for item in bench.claim().items] == [("bad", b"repaired")]


def test_a_damaged_item_can_be_read_and_listed(bench: Bench, client: Any, namespace: str) -> None:
    """`get` and listings show an item with a damaged record, with the bytes as they are."""
    bench.put("bad", in_ms=50)
    client.hset(shard_keys(namespace, 0)[3], "bad", b"garbage")
    assert (bench.one("bad").reason, bench.one("bad").body) == ("unreadable record", b"garbage")
    assert [found.id for found in bench.everything("due")] == ["bad"]
    assert bench.store.cancel(["bad"]) == [Outcome.WRONG_STATE]


def test_every_key_carries_the_shards_hash_tag(bench: Bench, client: Any, namespace: str) -> None:
    """All keys of a shard have the same hash tag, so a cluster keeps a shard on one node.

    A shard without items keeps only its metadata, its marker, answers that expire, and for 30 days the groups of its
    dead letters.
    """
    bench.put("a", "b", topic="t", refs=("r",))
    bench.store.pause("t")
    bench.store.resume("t")
    bench.claim(lease_ms=10)
    bench.clock.advance(10)
    bench.settle_all(bench.claim())
    bench.bury("d")
    bench.store.delete_dead(["d"])
    keys = [key for key in client.scan_iter(match="*", count=1000) if namespace.encode() in key]
    start = b"{%s:0}:" % namespace.encode()
    assert all(key.startswith(start) for key in keys)
    left = {key.removeprefix(start).partition(b":")[0] for key in keys}
    assert left == {b"meta", b"mark", b"op", b"deathgroups", b"deathgroups_empty"}
    bench.clock.advance(EMPTY_FOR_MS)
    bench.store.sweep()
    assert not client.exists(start + b"deathgroups", start + b"deathgroups_empty")
    assert all(0 < client.pttl(key) <= 60_000 for key in keys if key.startswith(start + b"op:"))


def test_two_versions_share_a_namespace(client: Any, namespace: str) -> None:
    """Two versions of this package claim each other's items. Neither overwrites the other's functions on the server."""
    now, then = Dialect(namespace), Dialect(namespace, variant="another release")
    assert library("another release").name != library().name
    one, two = Bench(RedisBackend(client, now), 1), Bench(RedisBackend(client, then), 1)
    for writer, reader, item_id in ((one, two, "a"), (two, one, "b")):
        writer.put(item_id, topic="t", refs=("r",))
        claim = reader.claim()
        assert [item.id for item in claim.items] == [item_id]
        assert writer.settle_all(claim) == [Outcome.DONE]
        writer.check()
    assert one.store.counts() == two.store.counts()


@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.real
def test_a_flushed_library_is_loaded_again(redis_client: redis.Redis, namespace: str, functions: bool) -> None:
    """A call that finds no function library, after a restart or an administrator's flush, loads it and succeeds."""
    bench = Bench(RedisBackend(redis_client, Dialect(namespace, functions=functions)), 3)
    for n in range(3):
        redis_client.function_flush()
        redis_client.script_flush()
        bench.put(*(f"{n}-{i}" for i in range(10)))
        redis_client.function_flush()
        redis_client.script_flush()
        assert len(bench.claim_all()) == 10
    bench.check()


@pytest.mark.real
def test_a_user_without_functions_gets_scripts(real_server: Any, shared_client: Any, namespace: str) -> None:
    """If the server's user may not use FCALL and FUNCTION, the store uses EVALSHA."""
    import redis

    rights = ["on", ">pw", "+@all", "-fcall", "-fcall_ro", "-function", "~*", "&*"]
    shared_client.execute_command("ACL", "SETUSER", namespace, *rights)
    try:
        with redis.Redis.from_url(real_server.url, username=namespace, password="pw") as client:
            dialect = Dialect(namespace)
            bench = Bench(RedisBackend(client, dialect), 1)
            bench.put("a")
            assert bench.settle_all(bench.claim()) == [Outcome.DONE]
            assert not dialect.functions
    finally:
        shared_client.execute_command("ACL", "DELUSER", namespace)


def run_round_trips(
    dialect: Dialect, calls: list[Call[Any]], reply: Callable[[Send], list[Any]]
) -> tuple[list[int | str], list[Any]]:
    """Let `reply` answer each step as a server would. Return how many commands each step sent, and the answers of
    the calls."""
    trips = dialect.round_trips(calls, None)
    sent: list[int | str] = []
    try:
        step = next(trips)
        while len(sent) < 100:
            sent.append("sleep" if isinstance(step, Sleep) else len(step.commands))
            step = trips.send([] if isinstance(step, Sleep) else reply(step))
    except StopIteration as end:
        return sent, end.value
    raise AssertionError("the conversation has no end")


def test_a_library_that_vanishes_each_time_is_given_up() -> None:
    """If the server never finds the function library, a call loads it a few times and then raises an error."""
    import redis

    gone = redis.exceptions.NoScriptError("No matching script")
    calls: list[Call[Any]] = [Call(0, Find("r", 5))]
    sent, (answer,) = run_round_trips(
        Dialect("n", functions=False), calls, lambda step: [b"sha" if step.commands[0][0] == "SCRIPT" else gone]
    )
    assert isinstance(answer, StoreError)
    assert len(sent) < 10


def test_a_lost_call_is_repeated_twice() -> None:
    """A call whose reply is lost is repeated twice, each time after a pause and without the other calls of the batch.

    Then the error is raised.
    """
    import redis

    calls: list[Call[Any]] = [Call(0, Find("r", 5)), Call(0, Count())]
    replies = iter([[[b"0", b"a"], redis.exceptions.ConnectionError("lost")]])
    late = [redis.exceptions.TimeoutError("late")]
    sent, (found, lost) = run_round_trips(Dialect("n"), calls, lambda step: next(replies, late))
    assert sent == [2, "sleep", 1, "sleep", 1]
    assert found.ids == ["a"]
    assert isinstance(lost, StoreUnavailable)


def test_a_call_that_must_not_wait_longer_takes_one_timeout() -> None:
    """With `repeat_timeouts=False`, a call is not repeated after a timeout. After a broken connection, which costs
    no time, it is repeated."""
    import redis

    calls: list[Call[Any]] = [Call(0, Find("r", 5))]
    late, lost = redis.exceptions.TimeoutError("late"), redis.exceptions.ConnectionError("lost")
    sent, (answer,) = run_round_trips(Dialect("n", repeat_timeouts=False), calls, lambda _step: [late])
    assert sent == [1]
    assert isinstance(answer, StoreUnavailable)
    replies = iter([[lost]])
    sent, (answer,) = run_round_trips(
        Dialect("n", repeat_timeouts=False), calls, lambda _step: next(replies, [[b"0", b"a"]])
    )
    assert (sent, answer.ids) == ([1, "sleep", 1], ["a"])


@pytest.mark.parametrize(("shards", "clock"), [(2, "test"), (1, "server")])
def test_a_namespace_with_other_settings_is_refused(client: Any, namespace: str, shards: int, clock: str) -> None:
    """Opening a namespace with another shard count or clock than its own fails and changes nothing. The error names
    the namespace's own setting."""
    bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
    bench.put("a")
    now = None if clock == "server" else bench.clock
    other = DelayStore(RedisBackend(client, Dialect(namespace)), shards=shards, test_clock=now)
    with pytest.raises(NamespaceMismatch, match=r"1 shards|'test'"):
        other.open()
    assert client.exists(shard_keys(namespace, 1)[0]) == 0
    bench.check()


def test_a_flushed_namespace_is_not_created_again(client: Any, namespace: str) -> None:
    """A write to a namespace whose keys were deleted raises an error."""
    bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
    client.delete(shard_keys(namespace, 0)[0])
    with pytest.raises(NamespaceMismatch, match="flushed"):
        bench.put("a")


def test_a_frozen_namespace_takes_no_writes(client: Any, namespace: str) -> None:
    """During maintenance a namespace is frozen. It refuses writes, but it can be read, and items can be restored
    into it."""
    bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
    bench.put("a")
    found = bench.one("a")
    client.hset(shard_keys(namespace, 0)[0], "frozen", "reshard")
    with pytest.raises(NamespaceMismatch, match="reshard"):
        bench.put("b")
    assert bench.store.counts().frozen == "reshard"
    found.id = "b"
    assert bench.store.restore([found]) == 1


@pytest.mark.parametrize(
    ("info", "fits"),
    [
        ({"redis_version": "6.2.14"}, False),
        ({"redis_version": "7.0.0"}, True),
        ({"redis_version": "8.2.1"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.9"}, False),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "10.0.0"}, True),
        ({}, True),
    ],
)
def test_old_servers_are_refused(info: dict[str, Any], fits: bool) -> None:
    """Redis below 7.0 and Valkey below 8.0 are refused. A server that gives no version is accepted."""
    if fits:
        check_version(info)
        return
    with pytest.raises(StoreTooOld, match="upgrade"):
        check_version(info)


@pytest.mark.parametrize("namespace", ["", "a{b}", "a:b", "x" * 65, "a b", "a\nb"])
def test_a_namespace_that_would_break_the_keys_is_refused(namespace: str) -> None:
    """A namespace must not have braces or colons, because the keys use them for the hash tag."""
    with pytest.raises(ConfigError):
        open_store(fakeredis.FakeRedis(), namespace=namespace)


def test_records_without_a_place_are_found_and_held(bench: Bench, client: Any, namespace: str) -> None:
    """`Mend` gives a state to an item that has none: held, or dead for a dead letter. An item with two states gets
    one.

    It removes an id without a record, and changes no other item.
    """
    keys = shard_keys(namespace, 0)
    due, body, held, dead = keys[1], keys[3], keys[5], keys[7]
    bench.put("sound", "lost", "empty", "twice", in_ms=50, topic="t")
    bench.bury("grave", topic="t")
    client.zrem(due, "lost")
    client.hdel(body, "empty")
    client.zadd(held, {"twice": 0})
    client.zrem(dead, "grave")
    for name, ids in (("body", ["lost"]), ("deadbody", ["grave"])):
        assert bench.store.execute([Call(0, Inspect(name))]) == [("0", ids)]
    (outcomes,) = bench.store.execute([Call(0, Mend(["sound", "lost", "empty", "twice", "grave", "unknown"]))])
    wrong, done = Outcome.WRONG_STATE, Outcome.DONE
    assert outcomes == [wrong, done, done, done, done, wrong]
    assert bench.states("sound", "lost", "empty", "twice", "grave") == ["due", "held", None, "due", "dead"]
    assert bench.one("lost").reason.startswith("quarantine")
    assert bench.store.execute([Call(0, Inspect("body"))]) == [("0", [])]
    assert bench.store.release(["lost"], bench.now_ms) == [done]
    assert [item.body for item in bench.claim().items] == [b"lost"]


def test_the_ids_of_an_open_epoch_are_forgotten_after_a_week(bench: Bench, client: Any, namespace: str) -> None:
    """A writer fence keeps the ids of an open epoch for a week at most. When the epoch is closed, only its number
    is kept."""
    WriterFences(bench.store).schedule([Item("a", bench.now_ms, b"")], Fence("query", 2))
    seen = f"{{{namespace}:0}}:seen:2:query".encode()
    assert 0 < client.ttl(seen) <= 7 * 86_400
    WriterFences(bench.store).close_epoch(Fence("query", 2))
    assert client.exists(seen) == 0
    assert client.hgetall(f"{{{namespace}:0}}:fences") == {b"query": b"2"}


def test_a_damaged_collection_does_not_stop_a_sweep(bench: Bench, client: Any, namespace: str) -> None:
    """If a key of the documents has another type, a sweep still does the rest of its work."""
    documents = Documents(bench.store)
    for collection in ("bad", "good"):
        documents.put(collection, "a", b"", ttl_ms=5)
    client.delete(f"{{{namespace}:0}}:docends:bad")
    client.set(f"{{{namespace}:0}}:docends:bad", "another type")
    bench.clock.advance(5)
    bench.store.sweep()
    assert not client.exists(f"{{{namespace}:0}}:docs:good")
    client.delete(f"{{{namespace}:0}}:docversions")
    client.set(f"{{{namespace}:0}}:docversions", "another type")
    bench.store.sweep()
