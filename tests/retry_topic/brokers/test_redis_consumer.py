"""Consumers of Redis streams: dead members, lost replies, retention, and servers that lose their data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import redis

from retry_topic.brokers.protocol import Delivery
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message import Message
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import temporary_server
from wheel_sched.errors import BrokerUnavailable, ConfigError


@pytest.fixture
def broker(redis_url: str) -> Iterator[RedisStreamsBroker]:
    """A broker that creates absent topics."""
    broker = RedisStreamsBroker(redis_url, create_topics=True)
    yield broker
    broker.close()


def numbered(topic: str, count: int) -> list[Message]:
    return [Message(topic, str(n).encode()) for n in range(count)]


def values(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.value for delivery in deliveries]


def hold_messages(url: str, pipe: Connection) -> None:
    """Run in the process that the test kills: it polls messages, sends them to the test and waits."""
    consumer = RedisStreamsBroker(url).consumer(["t"], "g", idle_ms=400)
    pipe.send(values(consumer.poll(3, 10_000)))
    signal.pause()


@pytest.mark.slow
def test_a_killed_process_loses_nothing(redis_url: str, broker: RedisStreamsBroker) -> None:
    """The messages that a killed process held go to another member after `idle_ms`, not before."""
    broker.publish(numbered("t", 5))
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold_messages, args=(redis_url, there))
    process.start()
    assert here.poll(30)
    assert here.recv() == [b"0", b"1", b"2"]
    consumer = broker.consumer(["t"], "g", idle_ms=400)
    start = time.monotonic()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    got: list[Delivery] = []
    while len(got) < 5 and time.monotonic() < start + 30:
        found = consumer.poll(10, 200)
        consumer.ack(found)
        got += found
    assert sorted((int(d.message.value), d.deliveries) for d in got) == [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)]
    assert consumer.poll(10, 600) == []


def test_every_orphan_is_found_among_many_that_are_held(broker: RedisStreamsBroker) -> None:
    """A member finds all entries of a dead member, although another member keeps 1,990 earlier entries alive."""
    broker.publish(numbered("t", 2_000))
    # long, so that the loop renews all entries in time on a busy machine
    busy, dead, alive = (broker.consumer(["t"], "g", idle_ms=5_000) for _ in range(3))
    held = busy.poll(1_990, 1_000)
    dead.poll(10, 1_000)
    got: list[Delivery] = []
    until = time.monotonic() + 30
    while len(got) < 10 and time.monotonic() < until:
        busy.beat(held)
        got += alive.poll(3, 100)
    assert values(got) == [str(n).encode() for n in range(1_990, 2_000)]


def test_what_was_read_beyond_the_limit_is_handed_out_next(broker: RedisStreamsBroker) -> None:
    """Redis counts COUNT per stream, so a read may return more than asked for. The next polls return the rest, once."""
    topics = ["a", "b", "c"]
    consumer = broker.consumer(topics, "g", idle_ms=60_000)
    broker.publish([Message(topic, f"{topic}{n}".encode()) for n in range(4) for topic in topics])
    got: list[bytes] = []
    while found := values(consumer.poll(2, 0)):
        assert len(found) <= 2
        got += found
    assert sorted(got) == [f"{topic}{n}".encode() for topic in topics for n in range(4)]


def test_a_surplus_that_somebody_took_over_is_not_handed_out(broker: RedisStreamsBroker) -> None:
    """A slow member has read more entries than it handed out, and another member claims them. Each entry is handed out
    once."""
    slow = broker.consumer(["a", "b"], "g", idle_ms=1_500)
    broker.publish([Message("a", b"1"), Message("b", b"2")])
    assert len(slow.poll(1, 1_000)) == 1
    quick = broker.consumer(["a", "b"], "g", idle_ms=1_500)
    got: list[Delivery] = []
    until = time.monotonic() + 30
    while len(got) < 2 and time.monotonic() < until:
        got += quick.poll(2, 50)
    assert sorted(values(got)) == [b"1", b"2"]
    quick.beat(got)
    assert slow.poll(1, 0) == []


def test_an_ack_whose_reply_was_lost_is_repeated(redis_url: str, broker: RedisStreamsBroker) -> None:
    """`ack` is idempotent, so the broker repeats it after a lost reply and reports no error."""
    broker.publish(numbered("t", 1))
    with FaultyProxy(redis_url) as proxy:
        behind = RedisStreamsBroker(proxy.url)
        consumer = behind.consumer(["t"], "g", idle_ms=50)
        got = consumer.poll(1, 1_000)
        proxy.drop_next_reply(b"XACK")
        consumer.ack(got)
        assert proxy.counts.dropped_replies == 1
        behind.close()
    time.sleep(0.1)  # longer than idle_ms: an unsettled message would be handed out
    assert broker.consumer(["t"], "g", idle_ms=50).poll(1, 0) == []


def test_a_forward_whose_reply_was_lost_publishes_once(
    redis_url: str, broker: RedisStreamsBroker, redis_client: redis.Redis
) -> None:
    """If the reply of `forward` is lost, the broker repeats the script, which publishes nothing the second time."""
    broker.publish(numbered("t", 2))
    broker.create_topic("target")
    with FaultyProxy(redis_url) as proxy:
        behind = RedisStreamsBroker(proxy.url)
        consumer = behind.consumer(["t"], "g")
        pairs = [(delivery, delivery.message.to("target")) for delivery in consumer.poll(2, 1_000)]
        consumer.forward(pairs[:1])  # the server knows the script now
        proxy.drop_next_reply(b"EVALSHA")
        assert consumer.forward(pairs[1:]) == [None]
        assert proxy.counts.dropped_replies == 1
        behind.close()
    assert [fields[b"value"] for _, fields in redis_client.xrange("target")] == [b"0", b"1"]


def test_a_forward_in_doubt_may_be_repeated(
    redis_url: str, broker: RedisStreamsBroker, redis_client: redis.Redis
) -> None:
    """If the repeated script gets no reply either, the failure is in doubt. The caller may repeat `forward`, which
    publishes nothing more."""
    broker.publish(numbered("t", 2))
    broker.create_topic("target")
    with FaultyProxy(redis_url) as proxy:
        behind = RedisStreamsBroker(proxy.url)
        consumer = behind.consumer(["t"], "g")
        pairs = [(delivery, delivery.message.to("target")) for delivery in consumer.poll(2, 1_000)]
        consumer.forward(pairs[:1])
        proxy.drop_next_reply(b"EVALSHA")
        proxy.drop_next_reply(b"EVALSHA")
        (failure,) = consumer.forward(pairs[1:])
        assert failure is not None
        assert (failure.transient, failure.in_doubt) == (True, True)
        assert consumer.forward(pairs[1:]) == [None]
        behind.close()
    assert redis_client.xlen("target") == 2
    assert redis_client.xpending("t", "g")["pending"] == 0


def test_one_bad_target_does_not_stop_the_others(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """In the middle of a batch, one target is not a stream. Only the message for that target fails."""
    redis_client.set("text", "a string")
    broker.publish(numbered("t", 3))
    consumer = broker.consumer(["t"], "g")
    targets = ["first", "text", "last"]
    pairs = [(delivery, delivery.message.to(to)) for delivery, to in zip(consumer.poll(3, 1_000), targets, strict=True)]
    first, bad, last = consumer.forward(pairs)
    assert (first, last) == (None, None)
    assert bad is not None
    assert not bad.transient
    assert "is not a stream" in bad.reason
    assert redis_client.xpending("t", "g")["pending"] == 1


def test_a_member_survives_a_server_that_forgot_everything(
    broker: RedisStreamsBroker, redis_client: redis.Redis
) -> None:
    """After FLUSHALL the member creates its group again and continues, even if it was waiting in a poll."""
    consumer = broker.consumer(["t"], "g", idle_ms=400)
    redis_client.flushall()
    redis_client.script_flush()
    assert consumer.poll(1, 0) == []
    broker.publish(numbered("t", 1))
    assert values(consumer.poll(1, 1_000)) == [b"0"]
    got: list[Delivery] = []
    waiting = threading.Thread(target=lambda: got.extend(consumer.poll(1, 20_000)))
    waiting.start()
    time.sleep(0.05)  # time to begin the wait in XREADGROUP; without it the test would check less
    redis_client.flushall()
    broker.publish(numbered("t", 1))
    waiting.join(30)
    assert values(got) == [b"0"]


@pytest.mark.real
def test_a_member_goes_on_after_the_server_was_killed() -> None:
    """While the server is down, `poll` raises. After the restart the same member continues, and nothing is lost."""
    with temporary_server(fsync="always") as server:
        broker = RedisStreamsBroker(server.url, create_topics=True)
        consumer = broker.consumer(["t"], "g", idle_ms=300)
        broker.publish(numbered("t", 2))
        first = consumer.poll(1, 1_000)
        time.sleep(1.5)  # beyond idle_ms: the first poll after the restart gets both messages
        server.sigkill()
        with pytest.raises(BrokerUnavailable, match=r"no (answer|connection)"):
            consumer.poll(1, 1_000)
        server.restart()
        got: list[Delivery] = []
        until = time.monotonic() + 30
        while len(got) < 2 and time.monotonic() < until:
            got += consumer.poll(2, 200)
        assert sorted(values(got)) == [b"0", b"1"]
        assert values(first) == [b"0"]
        broker.close()


def test_a_short_socket_timeout_does_not_cut_a_wait(redis_url: str) -> None:
    """A `poll` that is longer than the client's socket timeout lasts its full time."""
    with redis.Redis.from_url(redis_url, socket_timeout=0.2) as client:
        broker = RedisStreamsBroker(client)
        consumer = broker.consumer(["t"], "g")
        start = time.monotonic()
        assert consumer.poll(1, 700) == []
        assert time.monotonic() - start >= 0.69
        broker.close()


def test_waiting_does_not_hold_up_settling(broker: RedisStreamsBroker) -> None:
    """`beat` does not wait for a running `poll`, because it uses another connection."""
    consumer = broker.consumer(["t"], "g")
    broker.publish(numbered("t", 1))
    held = consumer.poll(1, 1_000)
    waiting = threading.Thread(target=lambda: consumer.poll(1, 40_000))
    waiting.start()
    for _ in range(5):
        consumer.beat(held)
    assert waiting.is_alive()
    broker.publish(numbered("t", 1))
    waiting.join(30)
    assert not waiting.is_alive()


def test_the_count_of_deliveries_survives_beats(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """A beat resets the idle time of an entry and leaves its delivery count as it was."""
    broker.publish(numbered("t", 1))
    consumer = broker.consumer(["t"], "g", idle_ms=60_000)
    held = consumer.poll(1, 1_000)
    time.sleep(0.3)  # so that the idle time is visibly above 0
    began_s = time.monotonic()
    for _ in range(3):
        consumer.beat(held)
    (pending,) = redis_client.xpending_range("t", "g", "-", "+", 1)
    took_ms = (time.monotonic() - began_s) * 1_000
    assert pending["times_delivered"] == 1
    assert pending["time_since_delivered"] < took_ms + 100  # the server's clock has whole ms and differs from this one


def test_a_late_beat_brings_no_delivery_back(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """A beat after `idle_ms` renews nothing, so the next member that polls may take the message."""
    broker.publish(numbered("t", 1))
    consumer = broker.consumer(["t"], "g", idle_ms=200)
    held = consumer.poll(1, 1_000)
    time.sleep(0.3)
    consumer.beat(held)
    (pending,) = redis_client.xpending_range("t", "g", "-", "+", 1)
    assert pending["time_since_delivered"] >= 300


def test_a_settled_delivery_stays_settled_under_beats(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """A beat after `ack` does not make the message pending again."""
    broker.publish(numbered("t", 1))
    consumer = broker.consumer(["t"], "g")
    held = consumer.poll(1, 1_000)
    consumer.ack(held)
    consumer.beat(held)
    assert redis_client.xpending("t", "g")["pending"] == 0


def test_members_that_are_gone_are_forgotten(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """`close` removes a member that holds no entries from the group at once. Silent members without entries are removed
    later."""
    broker.publish(numbered("t", 1))
    leaving, holding, silent, present = (broker.consumer(["t"], "g") for _ in range(4))
    held = holding.poll(1, 1_000)
    for member in (leaving, silent, present):
        assert member.poll(1, 0) == []
    leaving.close()
    holding.close()
    names = {member["name"].decode() for member in redis_client.xinfo_consumers("t", "g")}
    assert names == {holding.name, silent.name, present.name}
    assert present._reap(3_600_000) == 0
    time.sleep(1.6)  # time in which the other members are silent
    present.poll(1, 0)
    assert present._reap(1_500) == 1
    holding.ack(held)
    time.sleep(1.6)  # silence once more
    present.poll(1, 0)
    assert present._reap(1_500) == 1
    assert [member["name"].decode() for member in redis_client.xinfo_consumers("t", "g")] == [present.name]


def test_nothing_is_trimmed_by_default(broker: RedisStreamsBroker, redis_client: redis.Redis) -> None:
    """Without `maxlen`, a group that joins later finds all records."""
    broker.publish(numbered("t", 300))
    consumer = broker.consumer(["t"], "g")
    consumer.ack(consumer.poll(300, 1_000))
    consumer.close()
    assert redis_client.xlen("t") == 300


def test_maxlen_never_takes_what_a_group_has_yet_to_settle(redis_url: str, redis_client: redis.Redis) -> None:
    """Trimming keeps every entry that at least one group holds or has not read, whatever the other
    groups have settled."""
    broker = RedisStreamsBroker(redis_url, create_topics=True, maxlen=0)
    broker.publish(numbered("t", 250))
    fast, slow, late = (broker.consumer(["t"], group) for group in ("fast", "slow", "late"))
    fast.ack(fast.poll(250, 1_000))
    assert redis_client.xlen("t") == 250
    held = slow.poll(250, 1_000)
    slow.ack([*held[:120], *held[121:]])
    late.ack(late.poll(130, 1_000))
    assert [fields[b"value"] for _, fields in redis_client.xrange("t", count=1)] == [b"120"]
    slow.ack(held[120:121])
    assert slow.poll(1, 0) == []  # an idle poll trims what is left
    assert [fields[b"value"] for _, fields in redis_client.xrange("t", count=1)] == [b"130"]
    late.ack(late.poll(250, 1_000))
    late.poll(1, 0)
    assert redis_client.xlen("t") == 0
    broker.publish(numbered("t", 1))
    assert values(fast.poll(1, 1_000)) == [b"0"]
    broker.close()


def test_maxlen_keeps_about_as_many_settled_entries(redis_url: str, redis_client: redis.Redis) -> None:
    """About `maxlen` settled entries stay. Redis trims whole nodes of a stream, so the number is not exact."""
    broker = RedisStreamsBroker(redis_url, create_topics=True, maxlen=500)
    consumer = broker.consumer(["t"], "g")
    for _ in range(10):
        broker.publish(numbered("t", 200))
        consumer.ack(consumer.poll(200, 1_000))
    assert 500 <= redis_client.xlen("t") <= 800
    broker.close()


def test_trimming_understands_ids_beyond_what_a_double_counts(redis_url: str, redis_client: redis.Redis) -> None:
    """Trimming distinguishes entry ids above 2**53 that differ by 1, where a floating-point number would not."""
    broker = RedisStreamsBroker(redis_url, maxlen=0)
    consumer = broker.consumer(["t"], "g")
    for seq in (2**63, 2**63 + 1, 2**63 + 2):
        redis_client.xadd("t", {"value": str(seq)}, id=f"9-{seq}")
    got = consumer.poll(3, 1_000)
    consumer.ack(got[:2])
    consumer.poll(1, 0)
    assert [entry_id for entry_id, _ in redis_client.xrange("t")] == [f"9-{2**63 + 2}".encode()]
    broker.close()


def test_a_topic_that_cannot_be_is_refused(broker: RedisStreamsBroker) -> None:
    """The name of the key that lists the topics cannot be the name of a topic."""
    with pytest.raises(ConfigError, match="registry"):
        broker.create_topic("topics")
    with pytest.raises(ConfigError, match="registry"):
        broker.consumer(["t", "topics"], "g")
