"""Publishing to Redis streams: failures of single messages, lost replies, servers that refuse, and any
client settings."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import pytest
import redis

from retry_topic.brokers.protocol import Broker, Delivery
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message import Message
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError


@pytest.fixture
def broker(redis_url: str) -> Iterator[RedisStreamsBroker]:
    """A broker that refuses absent topics."""
    broker = RedisStreamsBroker(redis_url, prefix="p:")
    yield broker
    broker.close()


def one(broker: RedisStreamsBroker, topic: str, group: str = "g") -> Delivery:
    """Return the first delivery to a new member."""
    (delivery,) = broker.consumer([topic], group, idle_ms=60_000).poll(1, 5_000)
    return delivery


def test_it_is_a_broker(broker: RedisStreamsBroker) -> None:
    """`isinstance` recognises the Redis Streams broker as a `Broker`."""
    assert isinstance(broker, Broker)


def test_a_topic_is_a_stream_under_the_prefix(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """The stream entry has the documented fields, and the list of topics has the topic's name."""
    broker.create_topic("orders")
    assert broker.stream_key("orders") == "p:orders"
    assert redis_client.xlen("p:orders") == 0
    assert redis_client.xinfo_groups("p:orders") == []
    assert broker.publish([Message("orders", b"v", b"k", (("h", b"1"),))]) == [None]
    ((_, fields),) = redis_client.xrange("p:orders")
    assert fields == {b"value": b"v", b"key": b"k", b"h": b"1"}
    assert redis_client.smembers("p:topics") == {b"orders"}


def test_create_topics_creates_and_registers_what_is_published_to(redis_url: str) -> None:
    """With `create_topics`, publishing to an absent topic creates it, and `topics` lists it."""
    broker = RedisStreamsBroker(redis_url, create_topics=True)
    assert broker.publish([Message("new", b"1"), Message("other", b"2"), Message("new", b"3")]) == [None] * 3
    assert broker.topics() == {"new": 2, "other": 1}
    broker.close()


def test_a_topic_whose_stream_was_deleted_is_not_listed(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """`topics` lists existing streams. Creating the topic again lists it again."""
    broker.create_topic("t")
    redis_client.delete("p:t")
    assert broker.topics() == {}
    broker.create_topic("t")
    assert broker.topics() == {"t": 0}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("", b""), "non-empty name"),
        (Message("topics", b""), "registry of topics"),
        (Message("\ud800", b""), "unpaired surrogate"),
        (Message("absent", b""), "unknown topic 'absent'"),
        (Message("text", b""), "is not a stream"),
        (Message("t", b"", None, (("\ud800", b""),)), "not text"),
        (Message("t", b"", None, (("h", b""),) * 1_800), "too many headers"),
    ],
    ids=["empty", "registry", "surrogate", "absent", "no-stream", "header-name", "headers"],
)
def test_a_message_that_can_never_go_fails_alone(
    broker: RedisStreamsBroker, redis_client: redis.Redis, message: Message, reason: str
) -> None:
    """A message that can never be published fails permanently, with a readable reason. The other messages of the batch
    are published."""
    broker.create_topic("t")
    redis_client.set("p:text", "a string")
    first, failure, last = broker.publish([Message("t", b"1"), message, Message("t", b"2")])
    assert (first, last) == (None, None)
    assert failure is not None
    assert (failure.transient, failure.in_doubt) == (False, False)
    assert reason in failure.reason
    assert len(failure.reason) <= 500
    assert redis_client.xlen("p:t") == 2


def test_a_message_beyond_the_servers_limit_is_not_sent(
    broker: RedisStreamsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses a message that is too large for the server. Otherwise the server would close the connection,
    and the whole batch would fail."""
    monkeypatch.setattr("retry_topic.brokers.redis_streams.publisher.MAX_BYTES", 1_000)
    broker.create_topic("t")
    done, failure = broker.publish([Message("t", b"x" * 900), Message("t", b"x" * 1_100)])
    assert done is None
    assert failure is not None
    assert not failure.transient
    assert "too large" in failure.reason


def test_a_batch_beyond_one_pipeline_keeps_its_order(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """The broker splits a batch by count and by size. All messages arrive in order."""
    broker.create_topic("t")
    sizes = [1] * 1_200 + [6 * 1024 * 1024] * 4
    assert broker.publish([Message("t", b"x" * size) for size in sizes]) == [None] * len(sizes)
    assert [len(fields[b"value"]) for _, fields in redis_client.xrange("p:t")] == sizes


def test_a_lost_reply_is_reported_and_not_repeated(redis_url: str, redis_client: redis.Redis) -> None:
    """`publish` raises an error with `in_doubt` and does not send the message again, so the stream has one entry."""
    with FaultyProxy(redis_url) as proxy:
        broker = RedisStreamsBroker(proxy.url)
        broker.create_topic("t")
        proxy.drop_next_reply(b"XADD")
        with pytest.raises(BrokerUnavailable, match="in doubt") as caught:
            broker.publish([Message("t", b"1")])
        assert "if it is sent again, there may be a second record" in str(caught.value)
        assert "repeat" not in str(caught.value)
        assert caught.value.in_doubt
        assert redis_client.xlen("t") == 1
        assert broker.publish([Message("t", b"2")]) == [None]
        broker.close()


@pytest.mark.parametrize(
    ("command", "lost", "advice", "in_doubt"),
    [
        ("topics", b"SMEMBERS", "nothing was changed; repeat", False),
        ("create_topic", b"EVALSHA", "may have been executed; repeat it, which does no harm", True),
    ],
)
def test_a_lost_reply_says_what_was_asked_for(
    redis_url: str, command: str, lost: bytes, advice: str, in_doubt: bool
) -> None:
    """If the reply of a read is lost, nothing was changed. If the reply of a write is lost, the write is in doubt. Both
    errors say that a repeat is safe."""
    with FaultyProxy(redis_url) as proxy, contextlib.closing(RedisStreamsBroker(proxy.url)) as broker:
        broker.create_topic("t")
        for _ in range(2):
            proxy.drop_next_reply(lost)
        with pytest.raises(BrokerUnavailable, match=advice) as caught:
            getattr(broker, command)(*(["t"] if in_doubt else []))
        assert caught.value.in_doubt == in_doubt


def test_a_lost_reply_of_a_message_with_an_id_is_repeated(redis_url: str, redis_client: redis.Redis) -> None:
    """The broker repeats `publish_once`, and the caller may repeat it too. The stream has the entry once."""
    with FaultyProxy(redis_url) as proxy:
        broker = RedisStreamsBroker(proxy.url)
        broker.create_topic("t")
        assert broker.publish_once(Message("t", b"0"), "before", 60_000) is None
        for lost in (1, 2):
            for _ in range(lost):
                proxy.drop_next_reply(b"wheel-sched:sent")
            failure = broker.publish_once(Message("t", b"1"), f"id-{lost}", 60_000)
            assert (failure is not None and failure.in_doubt) == (lost == 2)
            assert broker.publish_once(Message("t", b"1"), f"id-{lost}", 60_000) is None
        assert redis_client.xlen("t") == 3
        broker.close()


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("create", [False, True])
def test_a_topic_recreated_does_not_know_what_the_one_before_held(
    redis_url: str, redis_client: redis.Redis, create: bool, others: int
) -> None:
    """A message was published with an id, and then its stream was deleted and created again. The next `publish_once`
    with this id publishes the message again. A further call publishes nothing."""
    broker = RedisStreamsBroker(redis_url, create_topics=create)
    broker.create_topic("t")
    assert broker.publish_once(Message("t", b"m"), "id", 60_000) is None
    redis_client.delete("t")
    time.sleep(0.002)  # entry ids begin with the time in ms: a stream made in the same ms would have the same ids
    failure = None if create else broker.publish_once(Message("t", b"m"), "id", 60_000)
    assert create or (failure is not None and not failure.transient)
    broker.create_topic("t")
    assert broker.publish([Message("t", b"other")] * others) == [None] * others
    for _ in range(2):
        assert broker.publish_once(Message("t", b"m"), "id", 60_000) is None
        assert redis_client.xlen("t") == others + 1
    broker.close()


def test_an_entry_that_was_trimmed_is_known(redis_url: str, redis_client: redis.Redis) -> None:
    """After trimming, a repeat with the same id publishes nothing, even if the stream is empty."""
    broker = RedisStreamsBroker(redis_url)
    broker.create_topic("t")
    for value in (b"m", b"other"):
        assert broker.publish_once(Message("t", value), value.decode(), 60_000) is None
    for length in (1, 0):
        redis_client.xtrim("t", maxlen=length, approximate=False)
        assert broker.publish_once(Message("t", b"m"), "m", 60_000) is None
        assert redis_client.xlen("t") == length
    broker.close()


def test_what_was_confirmed_before_the_connection_broke_stays_confirmed(redis_url: str) -> None:
    """The connection breaks before the reply to the second of two pipelines. Only the messages of the second pipeline
    are in doubt."""
    with FaultyProxy(redis_url) as proxy:
        broker = RedisStreamsBroker(proxy.url)
        broker.create_topic("t")
        proxy.drop_next_reply(b"the last one")
        answers = broker.publish([*(Message("t", b"x") for _ in range(500)), Message("t", b"the last one")])
        broker.close()
    assert answers[:500] == [None] * 500
    assert answers[500] is not None
    assert answers[500].in_doubt


def test_a_server_that_is_away_is_unavailable_and_comes_back() -> None:
    """While the server is down nothing is sent, and the error says so. The same broker works after the restart."""
    with temporary_server() as server:
        broker = RedisStreamsBroker(server.url)
        broker.create_topic("t")
        server.stop()
        with pytest.raises(BrokerUnavailable, match="nothing was sent"):
            broker.publish([Message("t", b"1")])
        with pytest.raises(BrokerUnavailable):
            broker.topics()
        server.restart()
        assert broker.publish([Message("t", b"1")]) == [None]
        broker.close()


def test_a_full_server_is_named() -> None:
    """At `maxmemory` a message fails transiently, not in doubt, and the error says what to do."""
    with temporary_server(extra={"maxmemory": "4mb"}) as server:
        broker = RedisStreamsBroker(server.url)
        broker.create_topic("t")
        failure = None
        for _ in range(1_000):  # far more than fits
            (failure,) = broker.publish([Message("t", b"x" * 20_000)])
            if failure is not None:
                break
        broker.close()
    assert failure is not None
    assert (failure.transient, failure.in_doubt) == (True, False)
    assert "maxmemory" in failure.reason


@pytest.mark.real
def test_a_read_only_replica_is_named() -> None:
    """Publishing to a replica fails with the advice to connect to the primary."""
    with temporary_server(tcp=True) as primary, temporary_server(replica_of=primary) as replica:
        RedisStreamsBroker(primary.tcp_url).create_topic("t")
        broker = RedisStreamsBroker(replica.url)
        (failure,) = broker.publish([Message("t", b"1")])
        with pytest.raises(BrokerUnavailable, match="connect to the primary"):
            broker.create_topic("other")
        broker.close()
    assert failure is not None
    assert failure.transient
    assert "connect to the primary" in failure.reason


def test_refused_credentials_are_named(real_server: TemporaryServer, redis_client: redis.Redis) -> None:
    """A wrong password or a missing right is a temporary failure of `publish` that names the cause. Opening a consumer
    fails permanently."""
    redis_client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">right", "~*", "+@read", "+select")
    try:
        for url, words in ((with_user(real_server, "wrong"), "credentials"), (with_user(real_server, "right"), "ACL")):
            broker = RedisStreamsBroker(url)
            (failure,) = broker.publish([Message("t", b"1")])
            assert failure is not None
            assert (failure.transient, failure.in_doubt) == (True, False)
            assert words in failure.reason
            with pytest.raises(BrokerError, match=words) as raised:
                broker.consumer(["t"], "g")
            assert not raised.value.transient
            broker.close()
        assert RedisStreamsBroker(with_user(real_server, "right")).server_identity() is None
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")


def with_user(server: TemporaryServer, password: str) -> str:
    return re.sub("^unix://", f"unix://reader:{password}@", server.url)


def test_a_client_of_any_settings_is_only_an_address(redis_url: str) -> None:
    """The broker takes only the address from the caller's client. The client's other settings do not matter, and the
    client stays open."""
    for settings in ({"decode_responses": True}, {"protocol": 3}, {"protocol": 2, "socket_timeout": 1}):
        client = redis.Redis.from_url(redis_url, **settings)
        broker = RedisStreamsBroker(client, create_topics=True)
        message = Message("t", b"\xff\x00", b"\xfe", (("twice", b"1"), ("twice", b"\xff")))
        assert broker.publish([message]) == [None]
        assert one(broker, "t", group=str(settings)).message.to("t") == message
        broker.close()
        assert client.ping()
        client.flushdb()
        client.close()


def test_the_server_says_who_it_is(real_server: TemporaryServer, redis_url: str, redis_client: redis.Redis) -> None:
    """`server_identity` is the server's run id and the database, so two databases of one server differ."""
    run_id = redis_client.info("server")["run_id"]
    client = redis.Redis(unix_socket_path=str(real_server.socket_path), db=3)
    for target, database in ((redis_url, 0), (client, 3)):
        broker = RedisStreamsBroker(target)
        assert broker.server_identity() == (run_id, database)
        broker.close()
    client.close()


def test_a_closed_broker_refuses_work(redis_url: str) -> None:
    """After `close` the broker and its consumers raise `BrokerUnavailable`."""
    broker = RedisStreamsBroker(redis_url, create_topics=True)
    consumer = broker.consumer(["t"], "g")
    broker.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        broker.publish([Message("t", b"1")])
    with pytest.raises(BrokerUnavailable, match="closed"):
        consumer.poll(1, 0)


@pytest.mark.parametrize("wrong", ["http://localhost", 6379, None])
def test_what_is_no_client_is_refused(wrong: object) -> None:
    """Anything but a client or a Redis URL is a configuration error."""
    with pytest.raises(ConfigError, match=r"expected (client_or_url|the store)"):
        RedisStreamsBroker(wrong)  # type: ignore[arg-type]


def test_its_repr_shows_its_state(redis_url: str) -> None:
    """The broker's `repr` has the kind of server, the prefix and `maxlen`, and says when it is closed."""
    broker = RedisStreamsBroker(redis_url, prefix="p:", maxlen=5)
    assert repr(broker) == "<RedisStreamsBroker server prefix='p:' maxlen=5>"
    broker.close()
    assert repr(broker) == "<RedisStreamsBroker server closed prefix='p:' maxlen=5>"
