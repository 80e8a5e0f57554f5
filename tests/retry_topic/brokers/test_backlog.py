"""The backlog of a group in a topic, read without joining the group."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import BacklogBroker, Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message import Message


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    made: Broker
    if request.param == "memory":
        made = MemoryBroker(create_topics=True)
    else:
        made = RedisStreamsBroker(request.getfixturevalue("redis_url"), create_topics=True)
    yield made
    made.close()


def look(broker: Broker) -> tuple[int, bytes | None, bool]:
    """Return how many records wait, the value of the oldest one, and whether the group has members."""
    assert isinstance(broker, BacklogBroker)
    found = broker.backlog("g.retry", "g")
    return found.waiting, None if found.oldest is None else found.oldest.value, found.silent_ms is not None


def test_the_backlog_is_what_the_group_has_not_settled(broker: Broker) -> None:
    """The backlog counts records that nobody has read and records that a member holds. Settled records do not count."""
    assert look(broker) == (0, None, False)
    assert not any(broker.publish([Message("g.retry", b"%d" % n) for n in range(3)]))
    assert look(broker) == (3, b"0", False)
    consumer = broker.consumer(["g.retry"], "g")
    (first,) = consumer.poll(1, 0)
    assert look(broker) == (3, b"1", True)
    rest = consumer.poll(9, 0)
    assert look(broker) == (3, b"0", True)
    consumer.ack([first, *rest])
    assert look(broker) == (0, None, True)
    consumer.close()
    assert look(broker) == (0, None, False)


def test_the_oldest_shows_when_it_was_published(broker: Broker) -> None:
    """The oldest record of the backlog has the time at which it was published."""
    broker.publish([Message("g.retry", b"1")])
    assert isinstance(broker, BacklogBroker)
    oldest = broker.backlog("g.retry", "g").oldest
    assert oldest is not None
    assert oldest.source is not None
    assert abs((oldest.source.timestamp_ms or 0) - time.time() * 1000) < 30_000


def test_a_member_that_asks_no_more_falls_silent(broker: Broker) -> None:
    """`silent_ms` grows while the member does not poll, and a poll resets it."""
    assert isinstance(broker, BacklogBroker)
    consumer = broker.consumer(["g.retry"], "g")
    consumer.poll(1, 0)
    time.sleep(0.06)  # the test measures this silence
    silent_ms = broker.backlog("g.retry", "g").silent_ms
    assert silent_ms is not None
    assert silent_ms >= 50
    consumer.poll(1, 0)
    assert (broker.backlog("g.retry", "g").silent_ms or 0) < silent_ms


@pytest.mark.real
def test_entries_that_were_deleted_do_not_count(redis_url: str) -> None:
    """If Redis cannot tell the lag because entries were deleted, the broker counts the remaining entries."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        broker = RedisStreamsBroker(client, create_topics=True)
        broker.publish([Message("g.retry", b"%d" % n) for n in range(4)])
        consumer = broker.consumer(["g.retry"], "g")
        consumer.ack(consumer.poll(1, 0))
        stream = broker.stream_key("g.retry")
        client.xdel(stream, client.xrange(stream)[2][0])
        assert look(broker)[:2] == (2, b"1")
        broker.close()
