"""What `connect` opens: which store, which broker, and how due messages get from the store to the broker."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path

import fakeredis
import pytest

from retry_topic import connect
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.connection import Connection
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import temporary_server
from wheel_sched.errors import BrokerUnavailable, ConfigError, StoreUnavailable
from wheel_sched.store import DelayStore
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect


def test_memory_is_the_default() -> None:
    """Without an address, store and broker are in this process."""
    with connect() as connection:
        assert isinstance(connection.broker, MemoryBroker)
        assert repr(connection).startswith("<Connection <DelayStore MemoryBackend")


@pytest.mark.parametrize(
    ("durability", "replicas", "problem"),
    [
        ("fsync", 1, "'fsync' needs a server.*embedded:FOLDER.*nothing was opened"),
        ("replicated", 1, "'replicated' needs a server"),
        ("nonsense", 1, "one of memory, everysec, fsync, replicated, got: 'nonsense'"),
        ("everysec", -3, "replicas to be a whole number from 1 up, got: -3"),
    ],
)
def test_a_store_in_memory_does_not_take_a_level_it_cannot_keep(durability: str, replicas: int, problem: str) -> None:
    """`connect("memory:")` refuses a durability level, because a store in memory loses everything when the process
    ends."""
    with pytest.raises(ConfigError, match=problem):
        connect("memory:", durability=durability, replicas=replicas)


def test_an_address_nobody_understands_is_told() -> None:
    """For an unknown address, the error lists the kinds of addresses that `connect` knows."""
    with pytest.raises(ConfigError, match="redis://"):
        connect("ftp://somewhere")


def test_a_wrong_broker_setting_closes_the_store_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker's settings are wrong, `connect` closes the store that it has opened."""
    closed: list[DelayStore] = []

    def close(store: DelayStore) -> None:
        closed.append(store)

    monkeypatch.setattr(DelayStore, "close", close)
    with pytest.raises(ConfigError, match="maxlen"):
        connect("memory:", keep=-1)
    assert len(closed) == 1


LEVELS = [("memory", 1), ("everysec", 1), ("fsync", 1), ("replicated", 1), ("replicated", 2)]
KEEPS = {  # for each durability of a store: the durabilities of topics that are not weaker
    ("memory", 1): LEVELS,
    ("everysec", 1): LEVELS[1:],
    ("fsync", 1): [("fsync", 1)],
    ("replicated", 1): [("replicated", 1), ("replicated", 2)],
    ("replicated", 2): [("replicated", 2)],
}


@pytest.mark.parametrize(("asked", "kept"), list(product(LEVELS, LEVELS)))
def test_topics_keep_no_less_than_their_store(asked: tuple[str, int], kept: tuple[str, int]) -> None:
    """A broker with weaker durability than its store is refused. Disk and replica do not replace each other."""
    client = fakeredis.FakeRedis()
    store = DelayStore(RedisBackend(client, Dialect("n", *asked)))
    broker = RedisStreamsBroker(client, durability=kept[0], replicas=kept[1])
    if kept in KEEPS[asked]:
        assert Connection(store, broker).broker is broker
        return
    with pytest.raises(ConfigError, match="nothing was opened") as raised:
        Connection(store, broker)
    assert f"durability={asked[0]!r}" in str(raised.value)


@pytest.mark.real
def test_one_server_holds_both(redis_url: str) -> None:
    """If store and topics are on one server, one script moves due messages. Closing twice is harmless."""
    connection = connect(redis_url)
    assert isinstance(connection.broker, RedisStreamsBroker)
    assert connection.hand_over == "one script"
    connection.close()
    connection.close()


@pytest.mark.real
def test_a_server_that_hangs_holds_a_publish_for_a_few_timeouts_of_the_address(redis_url: str) -> None:
    """`publish` to a server that does not answer lasts 2 times `socket_timeout`, or 3 times for a delayed message."""
    with (
        FaultyProxy(redis_url) as proxy,
        connect(f"{proxy.url}{'&' if '?' in proxy.url else '?'}socket_timeout=0.1", create_topics=True) as connection,
    ):
        connection.publish("orders", b"1")
        proxy.blackhole()
        for delay, least_s in ((None, 0.2), (60, 0.3)):
            began_s = time.monotonic()
            with pytest.raises((BrokerUnavailable, StoreUnavailable), match="no answer from the server"):
                connection.publish("orders", b"2", delay=delay)
            assert least_s <= time.monotonic() - began_s < least_s + 1.5
        proxy.heal()


@pytest.mark.real
def test_another_database_is_another_place(redis_url: str) -> None:
    """The store and the topics are in two databases of one server. A script reaches only one database, so no script
    moves messages."""
    other = redis_url.replace("db=0", "db=1")
    assert other != redis_url
    with connect(redis_url, broker=RedisStreamsBroker(other)) as connection:
        assert connection.hand_over == "claim, publish, settle"


@pytest.mark.real
@pytest.mark.slow
def test_showing_a_connection_needs_no_server(tmp_path: Path) -> None:
    """`repr` of a connection neither fails nor waits while the server is down."""
    with temporary_server() as server, connect(server.url) as connection:
        server.stop()
        assert repr(connection).startswith("<Connection <DelayStore RedisBackend")
        with pytest.raises(StoreUnavailable):
            connection.publish("orders", b"m", delay=1)
        server.restart()
        connection.broker.create_topic("orders")
        connection.publish("orders", b"m", delay=1)


@pytest.mark.real
@pytest.mark.slow
def test_an_embedded_connection_keeps_its_messages(tmp_path: Path) -> None:
    """After the folder was closed and opened again, the waiting messages and the topics are still there."""
    folder = f"embedded:{tmp_path / 'data'}"
    with connect(folder) as connection:
        connection.broker.create_topic("orders")
        message_id = connection.publish("orders", b"m", delay=3_600)
    with connect(folder) as connection:
        assert [found.id for found in connection.store.list_items("due").found] == [message_id]
        assert "orders" in connection.broker.topics()


@pytest.mark.real
def test_prefixes_keep_topics_apart(redis_url: str) -> None:
    """Two connections to one server with different namespaces and prefixes do not see each other's data."""
    with (
        connect(redis_url, namespace="one", prefix="one:") as one,
        connect(redis_url, namespace="two", prefix="two:") as two,
    ):
        one.broker.create_topic("orders")
        one.publish("orders", b"m", delay=3_600)
        assert two.broker.topics() == {}
        assert two.store.counts().total("due") == 0
