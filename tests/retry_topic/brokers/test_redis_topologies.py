"""Redis Streams on a Cluster and behind Sentinel, with real server processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis
from redis.sentinel import Sentinel

from retry_topic.brokers.conformance import BrokerConformance, absent_topic, fresh_topic, publish, receive, values
from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message import Message
from tests.servers.topologies import HALVES
from tests.servers.valkey import TemporaryServer
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    from redis.cluster import RedisCluster

pytestmark = [pytest.mark.real, pytest.mark.slow]


class TestOnACluster(BrokerConformance):
    """The conformance suite with topics on different hash slots, where publishing and settling are two steps."""

    exact_forward = False

    @pytest.fixture
    def broker(self, cluster: RedisCluster) -> Iterator[Broker]:
        """A broker without a hash tag in its prefix."""
        broker = RedisStreamsBroker(cluster)
        yield broker
        broker.close()


class TestOnOneSlotOfACluster(BrokerConformance):
    """The conformance suite with all topics in one hash slot, so everything works as on one server."""

    @pytest.fixture
    def broker(self, cluster: RedisCluster) -> Iterator[Broker]:
        """A broker with a hash tag in its prefix."""
        broker = RedisStreamsBroker(cluster, prefix="{one}:")
        yield broker
        broker.close()


def topics_on_both_nodes(broker: RedisStreamsBroker, cluster: RedisCluster) -> tuple[str, str]:
    """Create two topics, the first on the first node and the second on the other."""
    found: dict[bool, str] = {}
    while len(found) < 2:
        topic = absent_topic()
        found.setdefault(cluster.keyslot(broker.stream_key(topic)) > HALVES[0][1], topic)
    for topic in found.values():
        broker.create_topic(topic)
    return found[False], found[True]


def test_a_cluster_has_no_one_identity(cluster: RedisCluster) -> None:
    """`server_identity` is None for a cluster, so the dispatcher does not claim and publish in one script."""
    broker = RedisStreamsBroker(cluster)
    assert broker.server_identity() is None
    broker.close()


def test_one_batch_reaches_both_nodes(cluster: RedisCluster) -> None:
    """Each message is sent to the node of its topic. A message that fails does not affect the others."""
    broker = RedisStreamsBroker(cluster)
    one, two = topics_on_both_nodes(broker, cluster)
    answers = broker.publish(
        [Message(one, b"1"), Message(two, b"2"), Message(absent_topic(), b"?"), Message(one, b"3")]
    )
    assert [answer is None for answer in answers] == [True, True, False, True]
    assert (broker.topics()[one], broker.topics()[two]) == (2, 1)
    broker.close()


def test_a_stale_map_of_slots_is_followed_once(cluster: RedisCluster) -> None:
    """A node redirects a message instead of storing it. The broker sends it once more, to the right node."""
    broker = RedisStreamsBroker(cluster)
    one, two = topics_on_both_nodes(broker, cluster)
    slots = cluster.nodes_manager.slots_cache
    slots[cluster.keyslot(one)] = list(slots[cluster.keyslot(two)])
    publish(broker, Message(one, b"1"), Message(two, b"2"))
    assert (broker.topics()[one], broker.topics()[two]) == (1, 1)
    broker.close()


@pytest.mark.parametrize("name", ["a}b", "{}a", "a{b}c", "plain", "a{"])
def test_a_publish_by_id_works_for_any_name_of_a_topic(cluster: RedisCluster, name: str) -> None:
    """The key that remembers the id is in the topic's hash slot, whatever braces the topic name has."""
    broker = RedisStreamsBroker(cluster, create_topics=True)
    for _ in range(2):
        assert broker.publish_once(Message(name, b"x"), "id", 60_000) is None
    assert broker.topics()[name] == 1
    broker.close()


def test_a_forward_across_slots_settles_what_it_published(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If settling fails after publishing, the forward is in doubt. The repeat settles and publishes nothing more."""
    broker = RedisStreamsBroker(cluster)
    source, target = topics_on_both_nodes(broker, cluster)
    consumer = broker.consumer([source], "g", idle_ms=60_000)
    publish(broker, Message(source, b"1"))
    pairs = [(delivery, delivery.message.to(target)) for delivery in receive(consumer, 1)]

    def no_answer(*_: object) -> None:
        raise BrokerError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(consumer._settler, "ack", no_answer)
        (failure,) = consumer.forward(pairs)
    assert failure is not None
    assert failure.in_doubt
    assert consumer.forward(pairs) == [None]
    assert broker.topics()[target] == 1
    assert cluster.xpending(source, "g")["pending"] == 0
    broker.close()


def test_topics_of_several_slots_are_waited_for_in_turn(cluster: RedisCluster) -> None:
    """A member receives a message of any slot within two seconds, although one read cannot wait for several slots."""
    broker = RedisStreamsBroker(cluster)
    topics = topics_on_both_nodes(broker, cluster)
    consumer = broker.consumer(topics, "g", idle_ms=60_000)
    for topic in topics:
        publish(broker, Message(topic, topic.encode()))
        start = time.monotonic()
        assert values(receive(consumer, 1)) == [topic.encode()]
        assert time.monotonic() - start < 2
    broker.close()


def test_a_client_made_by_sentinel_leads_to_the_primary(primary: TemporaryServer, sentinel_port: int) -> None:
    """The broker asks Sentinel for the primary, as the client does. It publishes and consumes there."""
    sentinel = Sentinel([("127.0.0.1", sentinel_port)])
    client = sentinel.master_for("main", decode_responses=True)
    broker = RedisStreamsBroker(client)
    topic = fresh_topic(broker)
    consumer = broker.consumer([topic], "g")
    publish(broker, Message(topic, b"\xff"))
    assert values(receive(consumer, 1)) == [b"\xff"]
    assert broker.server_identity() == (client.info("server")["run_id"], 0)
    with redis.Redis(port=primary.port or 0) as direct:
        assert direct.xlen(topic) == 1
    broker.close()
    assert client.ping()
    client.close()
    for watcher in sentinel.sentinels:
        watcher.close()
