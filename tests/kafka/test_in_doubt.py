"""The broker has deleted the numbers of published claims, so nobody knows which open claims were published.

Each transaction commits the number of its claim to the broker, as an offset of a consumer group. After a crash this
number tells which open claims were published. Kafka deletes offsets that are not committed again for a week
(`offsets.retention.minutes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition

from retry_topic import Message, RetryService
from retry_topic.brokers.kafka.transactions import claims_topic
from retry_topic.message.encoding import encode_body
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from wheel_sched.store import Item
from wheel_sched.store.core.plans import shard_of

if TYPE_CHECKING:
    from conftest import Crew

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


def forget(crew: Crew) -> None:
    """Delete the numbers of the published claims, as the broker does after a week."""
    group = claims_topic(crew.name)
    admin: Any = crew.broker.topology.admin
    admin.delete_consumer_groups([group], request_timeout=30)[group].result(30)


def numbers(crew: Crew) -> dict[int, int]:
    """The number of the last published claim of each shard, read from the broker."""
    topic = claims_topic(crew.name)
    places = [TopicPartition(topic, shard) for shard in range(2)]
    return {shard: number for (_, shard), number in crew.broker.groups.committed(topic, places).items()}


def fail(crew: Crew, first: int, last: int) -> None:
    """Write failed messages with the numbers from `first` up to, not including, `last` to the retry topic."""
    messages = [Message(retry_topic_of(crew.name), b"%d" % n, b"%d" % n) for n in range(first, last)]
    assert not any(crew.broker.publish(messages))


def test_claims_that_nobody_knows_of_wait_for_a_person(
    crew_of: Callable[..., Crew], committed: Callable[[str], list[Message]]
) -> None:
    """The service was killed, and the broker has deleted the number of the last published claim. The messages of the
    service's open claims are neither published again nor dropped: they are held, until a person releases them."""
    crew = crew_of(delay_ms=1, dispatcher={"lease_ms": 1_000, "batch": 20})
    done, count = redelivery_topic_of(crew.name), 0

    def feed() -> None:
        nonlocal count
        fail(crew, count, count + 200)
        count += 200

    crew.start_service().up()
    crew.strike(crew.services, crew.has_claims, crew.has_claims, feed)
    forget(crew)
    open_ids = crew.connection.store.counts().total("leased")
    assert open_ids > 0
    successor = crew.start_service().up()
    crew.until(lambda: not crew.busy() and crew.lag(range(crew.partitions)) == 0, crew.connection.store.counts)
    held = crew.connection.store.list_items("held", limit=500).found
    assert len(held) == crew.connection.store.counts().total("held") == open_ids
    assert all("in-doubt" in one.reason for one in held)
    assert f"ownership.in_doubt: shard 0: {open_ids} messages are held" in successor.log_text()
    before = Counter(int(message.value) for message in committed(done))
    doubtful = crew.stored("held")
    assert set(before) | set(doubtful) == set(range(count))
    assert max(before.values(), default=1) == 1
    crew.connection.store.release([one.id for one in held], 0)
    crew.until(crew.done, crew.connection.store.counts)
    assert Counter(int(message.value) for message in committed(done)) == before + doubtful


def send_from(crew: Crew, shard: int) -> None:
    """Store a due message in a shard, and wait until it is published."""
    topic = redelivery_topic_of(crew.name)
    route = next(route for route in map(str, range(1_000)) if shard_of(route, 2) == shard)
    crew.connection.store.schedule([Item(uuid4().hex, 0, encode_body(Message(topic, b"0")), topic, route=route)])
    crew.until(crew.done, crew.connection.store.counts)


def test_the_number_of_a_shard_that_rests_is_committed_again(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka would delete the number of a shard that publishes nothing for a week. So the owner commits the number again
    once a day (in this test after 0.2 s), when it publishes for another shard."""
    monkeypatch.setattr("retry_topic.brokers.kafka.transactions.AGAIN_S", 0.2)
    crew = crew_of(shards=2)
    with RetryService(crew.connection, crew.name):
        send_from(crew, 0)
        send_from(crew, 1)
        known = numbers(crew)
        assert known.keys() == {0, 1}
        forget(crew)
        assert numbers(crew) == {}

        def recommitted() -> bool:
            send_from(crew, 1)
            return 0 in numbers(crew)

        crew.until(recommitted, lambda: (known, numbers(crew)))
        assert numbers(crew)[0] == known[0]
