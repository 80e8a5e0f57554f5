"""`format("wheelsched-kafka")` reads and writes topics of a real broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message import Message
from retry_topic.spark.faults import plain
from retry_topic.spark.kafka.schemas import COLUMNS
from wheel_sched.errors import BrokerError, ConfigError, Rejected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def in_transactions(servers: str, topic: str, count: int) -> None:
    """Write ten transactions of `count` records each. Every second transaction is aborted."""
    producer: Any = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(60)
    for turn in range(10):
        producer.begin_transaction()
        for n in range(count):
            producer.produce(topic, f"{turn}-{n}".encode())
        producer.flush(60)
        producer.abort_transaction(60) if turn % 2 else producer.commit_transaction(60)


def test_a_batch_reads_what_was_committed(
    spark: SparkSession, kafka: TemporaryKafka, broker: KafkaBroker, at: dict[str, str], name: str
) -> None:
    """A batch read returns all columns byte for byte, and leaves out records of aborted transactions."""
    broker.create_topic(name)
    broker.publish([Message(name, b"v\0", b"k", (("a", b"1"), ("a", b"")))])
    in_transactions(kafka.bootstrap, name, 30)
    frame = spark.read.format("wheelsched-kafka").options(**at, subscribe=name).load()
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == dict(COLUMNS)
    rows = frame.collect()
    assert len(rows) == 1 + 5 * 30
    (first,) = (row for row in rows if row.key is not None)
    assert (bytes(first.value), bytes(first.key), first.topic, first.timestampType) == (b"v\0", b"k", name, 0)
    assert [(pair.key, bytes(pair.value)) for pair in first.headers] == [("a", b"1"), ("a", b"")]
    assert first.timestamp is not None
    ends = {str(row.partition): 0 for row in rows}
    some = spark.read.format("wheelsched-kafka").options(
        **at, subscribe=name, startingOffsets=json.dumps({name: {"0": -1}}), endingOffsets=json.dumps({name: ends})
    )
    assert some.load().count() == 0


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str, tmp_path: Path
) -> None:
    """A first run reads the present records in batches of limited size. A second run reads only the new records."""
    broker.create_topic(name)

    def run() -> tuple[list[int], set[str]]:
        stream = spark.readStream.format("wheelsched-kafka").options(
            **at, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="100"
        )
        out = stream.load().selectExpr("cast(value as string) value").writeStream.format("json")
        query = out.trigger(availableNow=True).start(str(tmp_path / "out"), checkpointLocation=str(tmp_path / "c"))
        assert query.awaitTermination(200)
        assert query.exception() is None
        rows = spark.read.json(str(tmp_path / "out")).collect()
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]], {row.value for row in rows}

    broker.publish([Message(name, b"%d" % n, b"%d" % n) for n in range(250)])
    batches, values = run()
    assert len(batches) == 3
    assert values == {str(n) for n in range(250)}
    broker.publish([Message(name, b"%d" % n, b"%d" % n) for n in range(250, 300)])
    batches, values = run()
    assert batches == [50]
    assert values == {str(n) for n in range(300)}


def test_a_batch_is_written_once_under_its_job_id(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str, committed: Callable[[str], Counter[str]]
) -> None:
    """A second run with the same job id writes nothing, however its rows are partitioned. A run with another id
    writes all rows again."""
    broker.create_topic(name)
    rows = spark.range(500).selectExpr("concat('v', id) value", "cast(id as string) key")
    once = {f"v{n}": 1 for n in range(500)}

    def write(frame: Any, job: str) -> None:
        frame.write.format("wheelsched-kafka").mode("append").options(**at, topic=name, job_id=job).save()

    write(rows.repartition(2), "a")
    write(rows.repartition(2), "a")
    assert committed(name) == once
    write(rows.repartition(3), "a")
    assert committed(name) == once
    write(rows.repartition(2), "b")
    assert committed(name) == dict.fromkeys(once, 2)


def test_headers_and_tombstones_survive_the_way_through(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str
) -> None:
    """A query copies records from one topic to two others, which its rows name. Headers and tombstones do not
    change."""
    for topic in (name, f"{name}-a", f"{name}-b"):
        broker.create_topic(topic)
    broker.publish(
        [Message(name, b"x", b"1", (("h", b"\xff"),)), Message(name, b"", b"2", (("kafka-tombstone", b"1"),))]
    )
    frame = spark.read.format("wheelsched-kafka").options(**at, subscribe=name).load()
    way = "if(key = cast('1' as binary), concat(topic, '-a'), concat(topic, '-b')) topic"
    out = frame.selectExpr(way, "key", "value", "headers")
    out.write.format("wheelsched-kafka").mode("append").options(**at).save()
    found = spark.read.format("wheelsched-kafka").options(**at, subscribe=f"{name}-a,{name}-b").load().collect()
    rows = {row.topic: row for row in found}
    assert bytes(rows[f"{name}-a"].headers[0].value) == b"\xff"
    assert rows[f"{name}-b"].value is None
    assert len(found) == 2


def test_what_is_wrong_is_refused_before_anything_is_written(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str, committed: Callable[[str], Counter[str]]
) -> None:
    """Missing topics and partitions, columns of wrong types, and rows without a topic are errors."""
    broker.create_topic(name)

    def refused(run: Any, kind: type[Exception], words: str) -> None:
        with pytest.raises(PySparkException) as caught:
            run()
        found = plain(caught.value)
        assert isinstance(found, kind), found
        assert words in str(found)

    def reading(**options: str) -> Any:
        return lambda: spark.read.format("wheelsched-kafka").options(**at, **options).load().count()

    def writing(*columns: str, **options: str) -> Any:
        frame = spark.range(4).selectExpr(*columns).coalesce(1)
        return lambda: frame.write.format("wheelsched-kafka").mode("append").options(**at, **options).save()

    refused(reading(subscribe=f"{name}-no"), ConfigError, "there is no topic")
    refused(
        reading(subscribe=name, startingOffsets=json.dumps({name: {"9": 1}})), ConfigError, "there is no partition 9"
    )
    refused(reading(subscribe=name, colour="red"), ConfigError, "no option 'colour'")
    refused(writing("'x' value", topic=f"{name}-no"), ConfigError, "there is no topic")
    refused(writing("id value", topic=name), ConfigError, "value to be binary or string")
    refused(writing("'x' value", f"if(id < 3, '{name}', null) topic"), Rejected, "no topic")
    refused(writing("'x' value", f"if(id < 3, '{name}', '{name}-no') topic"), Rejected, "there is no topic")
    assert committed(name) == {}


def test_records_that_were_deleted_fail_the_query_unless_they_may(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str
) -> None:
    """A query fails if the cluster deleted records before they were read. With failOnDataLoss=false it reads the
    others."""
    from confluent_kafka import TopicPartition

    broker.create_topic(name)
    broker.publish([Message(name, b"%d" % n, b"same") for n in range(20)])
    place = next(
        TopicPartition(name, number, 15)
        for number in range(3)
        if broker.topology.ends([TopicPartition(name, number)])[name, number]
    )
    broker.topology.admin.delete_records([place])[place].result(60)
    options = {**at, "subscribe": name, "startingOffsets": json.dumps({name: {str(place.partition): 3}})}
    reader = spark.read.format("wheelsched-kafka").options(**options)
    with pytest.raises(PySparkException) as caught:
        reader.load().count()
    assert isinstance(plain(caught.value), BrokerError)
    assert "have been deleted" in str(caught.value)
    assert reader.option("failOnDataLoss", "false").load().count() == 5


def test_a_job_that_failed_is_finished_by_a_second_run(
    spark: SparkSession, broker: KafkaBroker, at: dict[str, str], name: str, committed: Callable[[str], Counter[str]]
) -> None:
    """A job fails when one of its two tasks is written. A second run writes only the other task's rows, so no row is
    doubled.

    If the rows of the written task differ in the second run, the job fails.
    """
    broker.create_topic(name)

    def parts(first: int, second: str) -> Any:
        """The rows of two tasks. The first task can be written; the topic of the second, `second`, may not exist."""
        sound = spark.range(first).coalesce(1).selectExpr("concat('a', id) value", f"'{name}' topic")
        return sound.union(spark.range(30).coalesce(1).selectExpr("concat('b', id) value", f"'{second}' topic"))

    def run(frame: Any) -> None:
        frame.write.format("wheelsched-kafka").mode("append").options(**at, job_id=name).save()

    with pytest.raises(PySparkException):
        run(parts(20, f"{name}-no"))
    before = committed(name)
    assert set(before.values()) <= {1}
    assert all(value.startswith("a") for value in before)
    if before:  # otherwise the job was given up before its task without a fault had ended
        with pytest.raises(PySparkException) as caught:
            run(parts(19, f"{name}-no"))
        assert "rows" in str(caught.value) or "no topic" in str(caught.value)
    run(parts(20, name))
    assert committed(name) == {f"a{n}": 1 for n in range(20)} | {f"b{n}": 1 for n in range(30)}
