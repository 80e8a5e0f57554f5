"""Intake from a retry topic of a real broker: by the connectors "python" and "jvm", in turn with services, and by
killed drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import TopicPartition

from retry_topic import RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.topic_names import dead_topic_of, intake_group_of, retry_topic_of, source_of
from retry_topic.policy import Fixed
from retry_topic.spark.jobs import intake
from retry_topic.spark.jobs.store import place_of
from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore, Found, LogIntake, Position, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "processes" / "intake.py"
POLICY = RetryPolicy(delay=Fixed(base_ms=86_400_000), max_attempts=3)
SHARDS = 3
NOW_MS = int(time.time() * 1000)


def failure(group: str, n: int) -> Message:
    """The retry record `n`. Every tenth record has no attempts left, every seventh has an id."""
    state = RetryState(
        id=f"own-{n}" if n % 7 == 0 else None,
        attempt=3 if n % 10 == 0 else 1,
        original_topic="orders",
        first_failed_ms=NOW_MS,
        last_failed_ms=NOW_MS,
        error_class="Broken",
        error_message=f"no {n % 3}",
    )
    return Message(retry_topic_of(group), b"%d" % n, b"k%d" % n, write((("h", b"\xff"),), state))


@pytest.fixture
def opened(redis_url: str) -> Iterator[Callable[[str], tuple[DelayStore, StorePlace]]]:
    """Return a function that opens the store of a new namespace. It returns the store, and its address for Spark
    jobs."""
    with ExitStack() as stack:

        def namespace(name: str) -> tuple[DelayStore, StorePlace]:
            store = stack.enter_context(open_store(redis_url, namespace=name, shards=SHARDS))
            return store, place_of(redis_url, name)

        yield namespace


def topics(broker: KafkaBroker, group: str) -> None:
    for topic in (retry_topic_of(group), dead_topic_of(group)):
        broker.create_topic(topic)


def every(store: DelayStore, state: Literal["due", "dead"]) -> Iterator[Found]:
    cursor: str | None = None
    while True:
        page = store.list_items(state, cursor=cursor, limit=500)
        yield from page.found
        cursor = page.cursor
        if cursor is None:
            return


def contents(store: DelayStore) -> dict[str, Any]:
    """The items of a store by id, without values that depend on the clock."""
    found = {}
    states: tuple[Literal["due", "dead"], ...] = ("due", "dead")
    for state in states:
        for item in every(store, state):
            message = decode_body(item.body)
            retry_state = read(message.headers)
            facts = (
                retry_state.attempt,
                retry_state.error_class,
                retry_state.error_fingerprint,
                retry_state.consumer_group,
                retry_state.policy,
            )
            others = tuple(pair for pair in message.headers if pair[0] == "h")
            found[item.id] = (state, item.topic, message.topic, message.value, message.key, others, facts)
    return found


def positions(store: DelayStore, broker: KafkaBroker, group: str) -> list[int | None]:
    topic_id = broker.topic_id(retry_topic_of(group))
    return LogIntake(store).positions([source_of(intake_group_of(group), topic_id, number) for number in range(3)])


def test_both_connectors_give_the_same_store(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    name: str,
    opened: Callable[[str], tuple[DelayStore, StorePlace]],
) -> None:
    """The connectors "python" and "jvm" store equal ids, states, payloads, headers and positions, with any size of
    batches."""
    topics(broker, name)
    broker.publish([failure(name, n) for n in range(700)])
    ways: list[tuple[Literal["jvm", "python"], int | None]] = [("python", None), ("python", 200), ("jvm", 300)]
    stores = []
    for way, most in ways:
        # without a position in the store, the intake begins at the group's committed offset
        beginning = [TopicPartition(retry_topic_of(name), number, 0) for number in range(3)]
        retry_until_available(lambda: broker.groups.put(intake_group_of(name), beginning))  # noqa: B023  # done at once
        store, place = opened(f"{name}-{way}-{most}")
        done = intake(spark, place, kafka.bootstrap, name, POLICY, connector=way, most=most)
        assert (done.connector, done.records, done.waiting, done.dead, done.repeated, done.lag) == (
            way,
            700,
            630,
            70,
            0,
            0,
        )
        assert [part.position for part in done.partitions] == positions(store, broker, name)
        stores.append((contents(store), positions(store, broker, name)))
    assert len(stores[0][0]) == 700
    assert all(store == stores[0] for store in stores[1:])


def test_it_takes_turns_with_services(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    redis_url: str,
    name: str,
    opened: Callable[[str], tuple[DelayStore, StorePlace]],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    """A service, Spark, a service and Spark take in records of one topic, one after the other.

    Each continues at the position in the topic where the one before it ended. The store keeps this position.
    """
    topics(broker, name)
    store, place = opened(name)
    sent = 0

    def more(count: int) -> None:
        nonlocal sent
        broker.publish([failure(name, n) for n in range(sent, sent + count)])
        sent += count

    def by_service() -> None:
        connection = connect(redis_url, broker=KafkaBroker(kafka.bootstrap), namespace=name, shards=SHARDS)
        with connection, RetryService(connection, name, POLICY):
            until(lambda: sum(store.counts().now.values()) == sent)

    more(150)
    by_service()
    more(130)
    assert intake(spark, place, kafka.bootstrap, name, POLICY).records == 130
    assert intake(spark, place, kafka.bootstrap, name, POLICY).records == 0
    more(120)
    by_service()
    more(100)
    assert intake(spark, place, kafka.bootstrap, name, POLICY).records == 100
    found = contents(store)
    assert Counter(entry[3] for entry in found.values()) == Counter(b"%d" % n for n in range(sent))


def test_a_store_that_is_behind_the_checkpoint_is_given_what_it_lacks(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    name: str,
    opened: Callable[[str], tuple[DelayStore, StorePlace]],
    tmp_path: Path,
) -> None:
    """A store has lost its last records, as in a failover, so it is behind Spark's checkpoint.

    The intake reads these records from the topic again.
    """
    topics(broker, name)
    checkpoint = str(tmp_path / "checkpoint")
    broker.publish([failure(name, n) for n in range(300)])
    assert intake(spark, opened(name)[1], kafka.bootstrap, name, POLICY, checkpoint=checkpoint).records == 300
    store, place = opened(f"{name}-behind")
    topic_id = broker.topic_id(retry_topic_of(name))
    for number in range(3):  # the store took in the first five records of each partition, and their items have left it
        LogIntake(store).accept(Position(source_of(intake_group_of(name), topic_id, number), None, 5), [])
    broker.publish([failure(name, n) for n in range(300, 340)])
    done = intake(spark, place, kafka.bootstrap, name, POLICY, checkpoint=checkpoint)
    assert (done.records, done.lag) == (340 - 3 * 5, 0)
    assert len(contents(store)) == 340 - 3 * 5


def test_drivers_that_are_killed_take_each_record_in_once(
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    redis_url: str,
    name: str,
    store: DelayStore,
    consumer: Any,
    kill_session: Callable[[subprocess.Popen[bytes]], None],
    tmp_path: Path,
) -> None:
    """The driver is killed twice, and the last run has no checkpoint. Still each record is stored once."""
    topics(broker, name)
    count = 4_000
    broker.publish([Message(retry_topic_of(name), b"%d" % n, b"k%d" % n) for n in range(count)])
    checkpoint = str(tmp_path / "checkpoint")
    for folder, reached in ((checkpoint, 300), (checkpoint, 1_300), ("", None)):
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kafka.bootstrap, redis_url, name, folder],
            start_new_session=True,
            env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if reached is None:
                assert process.wait(300) == 0
            else:
                ended = lambda: process.poll() is not None  # noqa: B023, E731
                consumer.wait_until(lambda: ended() or len(consumer.seen) >= reached, "the kill point", 300)  # noqa: B023
                assert process.poll() is None
        finally:
            kill_session(process)
    consumer.drain()
    assert len(consumer.seen) == count
    assert set(consumer.seen.values()) == {1}


def test_what_is_wrong_is_refused_before_anything_is_taken_in(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    redis_url: str,
    name: str,
    opened: Callable[[str], tuple[DelayStore, StorePlace]],
) -> None:
    """A dry run changes nothing. Wrong topics, namespaces, arguments and columns are errors, and nothing is stored."""
    store, place = opened(name)
    with pytest.raises(ConfigError, match="there is no topic"):
        intake(spark, place, kafka.bootstrap, name)
    topics(broker, name)
    broker.publish([failure(name, n) for n in range(9)])
    assert intake(spark, place, kafka.bootstrap, name, dry_run=True).lag == 9
    wrong: dict[str, Any] = {"redelivery": "there", "headers": "none", "most": 0, "every_s": -1}
    with pytest.raises(ConfigError) as caught:
        intake(spark, place, kafka.bootstrap, name, **wrong)
    assert len(caught.value.problems) == 5
    with pytest.raises(ConfigError, match="connector"):
        intake(spark, place, kafka.bootstrap, name, connector="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no namespace"):
        place_of(redis_url, f"{name}-no")
    from retry_topic.spark.jobs.intake import take_in

    with pytest.raises(ConfigError, match="expected columns"):
        take_in(spark.range(3), None)
    assert not any(store.counts().now.values())
