"""How writes are confirmed on real servers: slow replicas, repeats on other connections, clusters, both store APIs.

The replica follows the primary through a proxy. The proxy can stop passing data: then the replica is connected and
confirms nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import redis
import redis.asyncio

from retry_topic import connect
from retry_topic.connection import Connection
from retry_topic.message import Message
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import BrokerUnavailable, ConfigError, InDoubt, StoreError, StoreUnavailable
from wheel_sched.store import AttemptCounts, Done, Item, open_async_store, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.redis import durability
from wheel_sched.store.redis.durability import Durability

if TYPE_CHECKING:
    from redis.cluster import RedisCluster

pytestmark = pytest.mark.real


class Pair:
    """A primary server, and a replica behind a proxy."""

    def __init__(self, primary: TemporaryServer, replica: TemporaryServer, link: FaultyProxy) -> None:
        self.primary = primary
        self.replica = replica
        self.link = link


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with (
        temporary_server(tcp=True) as primary,
        FaultyProxy(primary.tcp_url) as link,
        temporary_server(extra={"replicaof": f"127.0.0.1 {link.port}"}) as replica,
    ):
        yield Pair(primary, replica, link)


@pytest.fixture
def pair(servers: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The replica has all writes of the primary. A wait for a replica that does not confirm lasts 60 ms only."""
    monkeypatch.setattr(durability, "CONFIRM_MS", 5_000)
    with redis.Redis.from_url(servers.primary.url) as client:
        client.set("settled", "")
        assert client.wait(1, 20_000) == 1
    monkeypatch.setattr(durability, "CONFIRM_MS", 60)
    yield servers
    servers.link.heal()


def on_new_connections(pair: Pair) -> None:
    """Close all client connections, so that the next call of each client uses a new one."""
    with redis.Redis.from_url(pair.primary.url) as admin:
        admin.client_kill_filter(_type="normal")


def test_a_repeat_on_another_connection_confirms_the_write_of_the_first(pair: Pair, name: str) -> None:
    """While the replica confirms nothing, a repeat of a write is in doubt too, although the repeat writes nothing."""
    items = [Item(f"i{n}", 0, b"") for n in range(3)]
    with open_store(pair.primary.url, namespace=name, durability="replicated") as store:
        store.schedule(items)
        claim = store.claim(3)
        pair.link.blackhole()
        for _ in range(3):
            on_new_connections(pair)
            with pytest.raises(InDoubt, match="only 0 of 1"):
                store.settle(claim, [Done(item.id) for item in claim.items], token="settle")
            with pytest.raises(InDoubt, match="only 0 of 1"):
                store.schedule([Item("b", None, b"")], token="schedule")
        with pytest.raises(InDoubt, match="only 0 of 1"):
            store.schedule([Item("b", None, b"")])  # the answer DUPLICATE depends on the same unconfirmed write


def test_nothing_is_acknowledged_while_no_replica_confirms(pair: Pair, name: str) -> None:
    """Every write is in doubt: publish, delayed publish, ack, forward, and the creation of a topic. Each repeat of a
    write is in doubt too."""
    with connect(pair.primary.url, namespace=name, durability="replicated", prefix=f"{name}:") as connection:
        connection.broker.create_topic("orders")
        consumer = connection.broker.consumer(["orders"], "group")
        connection.publish("orders", b"1")
        connection.publish("orders", b"2")
        first, second = consumer.poll(2, 1_000)
        pair.link.blackhole()
        for _ in range(2):
            (failure,) = consumer.forward([(first, Message("orders", b"forwarded"))])
            assert failure is not None
            assert failure.in_doubt
            on_new_connections(pair)
            with pytest.raises(BrokerUnavailable, match="only 0 of 1"):
                consumer.ack([second])
            with pytest.raises(BrokerUnavailable, match="may be sent"):
                connection.publish("orders", b"3", id="three")
            with pytest.raises(InDoubt):
                connection.publish("orders", b"4", delay=60, id="four")
            on_new_connections(pair)
            with pytest.raises(BrokerUnavailable):
                connection.broker.create_topic("orders")
            on_new_connections(pair)


def test_a_doubt_about_opening_says_that_no_message_was_sent(pair: Pair, name: str) -> None:
    """If opening a store or creating a topic is unconfirmed, the error says that no message was sent. It names no token
    and no id for a repeat."""
    with connect(pair.primary.url, namespace=name, durability="replicated", create_topics=True) as connection:
        pair.link.blackhole()
        with pytest.raises(StoreUnavailable, match=r"not opened, and no message.*only 0 of 1.*open it again") as raised:
            open_store(pair.primary.url, namespace=name, durability="replicated")
        with pytest.raises(
            StoreUnavailable, match=r"not opened, and no message.*only 0 of 1.*open it again"
        ) as awaited:
            asyncio.run(open_async_store(pair.primary.url, namespace=name, durability="replicated"))
        with pytest.raises(BrokerUnavailable, match=r"list of topics.*only 0 of 1.*no message was sent") as published:
            connection.publish(name, b"")
        for error in (raised, awaited, published):
            assert not getattr(error.value, "in_doubt", False)
            assert "token" not in str(error.value)
            assert "may be sent" not in str(error.value)
        assert redis.Redis.from_url(pair.primary.url).xlen(name) == 0


def test_a_doubt_about_a_batch_of_messages_names_no_token(pair: Pair, name: str) -> None:
    """A batch has no token that would make a repeat safe. Its failure says that a repeat may store a second record."""
    with connect(pair.primary.url, namespace=name, durability="replicated") as connection:
        connection.broker.create_topic(name)
        pair.link.blackhole()
        (failure,) = connection.broker.publish([Message(name, b"")])
        assert failure is not None
        assert "a repeat may be a second record" in failure.reason


def test_what_was_acknowledged_is_on_the_replica(pair: Pair, name: str) -> None:
    """After each acknowledged write, the test finds the write on the replica without waiting."""
    with (
        connect(pair.primary.url, namespace=name, durability="replicated", prefix=f"{name}:") as connection,
        redis.Redis.from_url(pair.replica.url) as replica,
    ):
        connection.broker.create_topic("orders")
        for n in range(20):
            connection.publish("orders", b"now")
            assert replica.xlen(f"{name}:orders") == n + 1
            connection.publish("orders", b"later", delay=60)
            assert replica.zcard(f"{{{name}:0}}:due") == n + 1


def test_a_primary_without_the_replicas_it_wants_writes_nothing(pair: Pair, name: str) -> None:
    """With too few replicas for `min-replicas-to-write`, a write fails for now, and the error says that nothing was
    written."""
    with (
        connect(pair.primary.url, namespace=name, prefix=f"{name}:") as connection,
        redis.Redis.from_url(pair.primary.url) as admin,
    ):
        connection.broker.create_topic("orders")
        admin.config_set("min-replicas-to-write", 2)
        try:
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                connection.publish("orders", b"later", delay=60)
            with pytest.raises(BrokerUnavailable, match="the message was not sent"):
                connection.publish("orders", b"now")
        finally:
            admin.config_set("min-replicas-to-write", 0)
        assert connection.broker.topics() == {"orders": 0}
        assert connection.store.counts().total("due") == 0


@pytest.mark.slow
def test_a_primary_that_is_cut_off_soon_refuses_writes(pair: Pair, name: str) -> None:
    """A primary without its replica refuses writes after `min-replicas-max-lag` and about one second more."""
    with (
        connect(pair.primary.url, namespace=name, create_topics=True) as connection,
        redis.Redis.from_url(pair.primary.url) as admin,
    ):
        for setting in ("min-replicas-max-lag", "min-replicas-to-write"):
            admin.config_set(setting, 1)
        try:
            connection.publish(name, b"")
            pair.link.blackhole()
            began_s = time.monotonic()
            with contextlib.suppress(BrokerUnavailable):
                while time.monotonic() < began_s + 10:
                    connection.publish(name, b"")
            assert time.monotonic() - began_s < 5  # 2 s, and more on a busy machine
        finally:
            admin.config_set("min-replicas-to-write", 0)


def test_more_replicas_than_there_are_is_refused_by_both_faces(pair: Pair, name: str) -> None:
    """Opening a store fails, with and without asyncio. The error has the number of connected replicas."""
    with pytest.raises(StoreError, match="needs connected replicas: 2, this server has 1"):
        open_store(pair.primary.url, namespace=name, durability="replicated", replicas=2)
    with pytest.raises(StoreError, match="needs connected replicas: 2, this server has 1"):
        asyncio.run(open_async_store(pair.primary.url, namespace=name, durability="replicated", replicas=2))


@pytest.fixture(scope="module")
def syncing() -> Iterator[TemporaryServer]:
    with temporary_server(fsync="always") as server:
        yield server


def test_every_acknowledged_write_goes_through_the_confirmation(
    syncing: TemporaryServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no confirmation succeeds, every kind of write raises an error."""
    with connect(syncing.url, namespace=name, durability="fsync", prefix=f"{name}:") as connection:
        connection.broker.create_topic("orders")
        consumer = connection.broker.consumer(["orders"], "group")
        connection.publish("orders", b"1")
        connection.store.schedule([Item("a", 0, b""), Item("b", None, b""), Item("c", 0, b"")])
        claim = connection.store.claim(1)
        (delivery,) = consumer.poll(1, 1_000)
        monkeypatch.setattr(Durability, "doubt", lambda *_, **__: InDoubt("doubted"))
        store = connection.store
        writes: dict[str, Callable[[], object]] = {
            "publish": lambda: connection.publish("orders", b"2"),
            "publish later": lambda: connection.publish("orders", b"2", delay=60),
            "ack": lambda: consumer.ack([delivery]),
            "create_topic": lambda: connection.broker.create_topic("others"),
            "consumer": lambda: connection.broker.consumer(["new"], "group"),
            "settle": lambda: store.settle(claim, []),
            "cancel": lambda: store.cancel(["c"]),
            "reschedule": lambda: store.reschedule(["b"], 9),
            "hold": lambda: store.hold(["c"], "why"),
            "release": lambda: store.release(["c"]),
            "pause": lambda: store.pause("t"),
            "resume": lambda: store.resume("t"),
            "remember": lambda: AttemptCounts(store).raise_to([("k", 1, 10**15)]),
        }
        for write in writes.values():
            with pytest.raises((InDoubt, BrokerUnavailable), match="doubted"):
                write()
        (forwarded,) = consumer.forward([(delivery, Message("orders", b"3"))])
        assert forwarded is not None
        assert forwarded.in_doubt
        assert store.counts().total("due") >= 1  # a read needs no confirmation


def test_a_server_that_stops_syncing_is_noticed_at_the_next_write(syncing: TemporaryServer, name: str) -> None:
    """After `appendfsync always` was switched off, the next write is in doubt, and the error names this setting."""
    with (
        connect(syncing.url, namespace=name, durability="fsync", create_topics=True) as connection,
        redis.Redis.from_url(syncing.url) as admin,
    ):
        connection.publish(name, b"1")
        admin.config_set("appendfsync", "everysec")
        try:
            with pytest.raises(InDoubt, match="CONFIG SET appendfsync always"):
                connection.publish(name, b"2", delay=60)
            with pytest.raises(BrokerUnavailable, match="CONFIG SET appendfsync always"):
                connection.publish(name, b"2")
            with pytest.raises(StoreError, match="CONFIG SET appendfsync always"):
                asyncio.run(open_async_store(syncing.url, namespace=name, durability="fsync"))
        finally:
            admin.config_set("appendfsync", "always")
        connection.publish(name, b"3")


@contextlib.contextmanager
def first_file_under_way(admin: redis.Redis) -> Iterator[None]:
    """Keep the server in the state after `CONFIG SET appendonly yes`, in which it writes its first append-only file.

    A replica is in the same state after a full resynchronisation.
    """
    admin.config_set("appendonly", "no")
    admin.config_set("rdb-key-save-delay", 1_000_000)
    admin.config_set("appendonly", "yes")
    try:
        yield
    finally:
        admin.config_set("appendonly", "no")  # this ends the child process that writes the file
        admin.config_set("rdb-key-save-delay", 0)
        admin.config_set("appendonly", "yes")
        rewritten(admin)


def rewritten(admin: redis.Redis) -> None:
    deadline_s = time.monotonic() + 10
    while any(admin.info("persistence")[f"aof_rewrite_{state}"] for state in ("in_progress", "scheduled")):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)  # polls: a child process of the server writes the file


def test_nothing_is_acknowledged_while_the_first_append_only_file_is_made(
    syncing: TemporaryServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server makes its first append-only file, writes are in doubt: a crash would lose them in spite of
    `appendfsync always`. This also holds if the server had such a file before."""

    async def later() -> None:
        store = await open_async_store(syncing.url, namespace=name, durability="fsync")
        with first_file_under_way(admin), pytest.raises(InDoubt, match="first append-only file"):
            await store.schedule([Item("asyncio", None, b"")])
        await store.close()

    with (
        connect(syncing.url, namespace=name, durability="fsync", create_topics=True) as connection,
        redis.Redis.from_url(syncing.url) as admin,
    ):
        connection.publish(name, b"1")
        admin.bgrewriteaof()
        rewritten(admin)
        monkeypatch.setattr(durability, "CONFIRM_MS", 60)
        with first_file_under_way(admin):
            assert admin.info("persistence")["aof_base_size"] > 0
            with pytest.raises(InDoubt, match="first append-only file"):
                connection.publish(name, b"2", delay=60, id="later")
            with pytest.raises(BrokerUnavailable, match="first append-only file"):
                connection.publish(name, b"2", id="now")
            admin.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(InDoubt, match="first append-only file"):  # answered from memory: nothing is written
                connection.store.schedule([Item("later", None, b"")])
            admin.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(BrokerUnavailable, match="first append-only file"):
                connection.publish(name, b"2", id="now")
        connection.publish(name, b"2", delay=60, id="later")
        connection.publish(name, b"2", id="now")
        assert connection.broker.topics()[name] == 2
        asyncio.run(later())


def test_an_ordinary_rewrite_of_the_file_leaves_nothing_in_doubt(
    syncing: TemporaryServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewriting server keeps the old file until the new one is complete, so writes are confirmed. On Redis 7.0, which
    has no WAITAOF, writes are in doubt."""
    with (
        connect(syncing.url, namespace=name, durability="fsync", create_topics=True) as connection,
        redis.Redis.from_url(syncing.url) as admin,
    ):
        monkeypatch.setattr(durability, "CONFIRM_MS", 2_000)
        tells = admin.info("server")["redis_version"] >= "7.2"
        connection.publish(name, b"1")
        admin.config_set("rdb-key-save-delay", 10_000)
        try:
            admin.bgrewriteaof()
            with contextlib.nullcontext() if tells else pytest.raises(InDoubt):
                connection.publish(name, b"2", delay=60)
            with contextlib.nullcontext() if tells else pytest.raises(BrokerUnavailable):
                connection.publish(name, b"2")
            assert admin.info("persistence")["aof_rewrite_in_progress"]
        finally:
            admin.config_set("rdb-key-save-delay", 0)
            rewritten(admin)


def test_the_asyncio_face_confirms_as_the_other_does(
    syncing: TemporaryServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asyncio store opens on a server that syncs, and confirms its writes."""

    async def scenario() -> None:
        store = await open_async_store(syncing.url, namespace=name, durability="fsync")
        assert (await store.schedule([Item("a", None, b"")])).accepted == 1
        monkeypatch.setattr(Durability, "doubt", lambda *_, **__: InDoubt("doubted"))
        with pytest.raises(InDoubt):
            await store.schedule([Item("b", None, b"")])
        await store.close()

    asyncio.run(scenario())


def test_a_user_who_may_not_look_is_told_how_to_allow_it(syncing: TemporaryServer, name: str) -> None:
    """Without the permission `CONFIG GET`, opening with `fsync` fails and the error names the permission."""
    with redis.Redis.from_url(syncing.url) as admin:
        admin.acl_setuser(name, enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=["-config"])
        url = syncing.url.replace("unix://", f"unix://{name}:pw@")
        with pytest.raises(StoreError, match=r"\+config\|get"):
            open_store(url, namespace=name, durability="fsync")
        admin.execute_command("ACL", "SETUSER", name, "+config|get")
        with open_store(url, namespace=name, durability="fsync") as store:
            assert store.schedule([Item("a", None, b"")]).accepted == 1


def test_on_a_cluster_every_primary_is_asked_and_every_write_confirmed(cluster: RedisCluster, name: str) -> None:
    """Opening a store with `fsync` fails if one primary does not sync. If a primary stops syncing later, only writes to
    its shards are in doubt."""
    one, two = (node.redis_connection for node in cluster.get_primaries())
    items = [Item(f"i{n}", None, b"") for n in range(60)]
    try:
        for node in (one, two):
            with pytest.raises(StoreError, match="appendfsync always"):
                open_store(cluster, namespace=name, shards=6, durability="fsync")
            node.config_set("appendfsync", "always")
        with open_store(cluster, namespace=name, shards=6, durability="fsync") as store:
            assert store.schedule(items).accepted == 60
            two.config_set("appendfsync", "everysec")
            answers = store.execute([Call(shard, Schedule([Item("x", None, b"")])) for shard in range(6)])
            assert {type(answer) is InDoubt for answer in answers} == {True, False}
    finally:
        for node in (one, two):
            node.config_set("appendfsync", "everysec")


def test_on_a_cluster_the_asyncio_face_confirms_as_well(cluster: RedisCluster, name: str) -> None:
    """The asyncio store refuses a cluster whose primaries do not sync. Otherwise it confirms its writes."""
    primaries = [node.redis_connection for node in cluster.get_primaries()]
    port = primaries[0].connection_pool.connection_kwargs["port"]

    async def scenario() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
        with pytest.raises(StoreError, match="appendfsync always"):
            await open_async_store(client, namespace=name, shards=6, durability="fsync")
        for node in primaries:
            node.config_set("appendfsync", "always")
        store = await open_async_store(client, namespace=name, shards=6, durability="fsync")
        assert (await store.schedule([Item(f"i{n}", None, b"") for n in range(60)])).accepted == 60
        for node in primaries:
            node.config_set("appendfsync", "everysec")
        with pytest.raises(InDoubt, match="appendfsync always"):
            await store.schedule([Item("x", None, b"")])
        await client.aclose()

    try:
        asyncio.run(scenario())
    finally:
        for node in primaries:
            node.config_set("appendfsync", "everysec")


def test_a_topic_cannot_have_the_name_of_a_key_that_confirms(syncing: TemporaryServer, name: str) -> None:
    """With a hash tag in the prefix, the topic `wheel-sched:confirmed` would have the key that the broker uses for
    confirmations. So the topic is refused."""
    from retry_topic.brokers.redis_streams import RedisStreamsBroker

    broker = RedisStreamsBroker(syncing.url, prefix="{one}:", create_topics=True)
    with pytest.raises(ConfigError, match="wheel-sched:"):
        broker.create_topic("wheel-sched:confirmed")
    (failure,) = broker.publish([Message("wheel-sched:confirmed", b"")])
    assert failure is not None
    assert not failure.transient
    broker.close()


def test_a_broker_that_keeps_less_than_the_store_is_refused(syncing: TemporaryServer, name: str) -> None:
    """A connection's durability level must hold for its broker too, because it is promised for all
    acknowledged writes."""
    from retry_topic.brokers.redis_streams import RedisStreamsBroker

    with open_store(syncing.url, namespace=name, durability="fsync") as store:
        with pytest.raises(ConfigError, match="durability='fsync'"):
            Connection(store, RedisStreamsBroker(syncing.url))
        Connection(store, RedisStreamsBroker(syncing.url, durability="fsync")).broker.close()
