"""What reads topics for the jobs: the JVM connector where its jars are among the session's, else our own source.

Batches are read up to where topics end when they are asked for: a report looks at its rows several times, and all of it
is about the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from retry_topic.spark.kafka.offsets import ends_of
from retry_topic.spark.kafka.options import Offsets, Settings, broker_of, check_topics
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kafka = str | Mapping[str, str]
Connector = Literal["auto", "jvm", "python"]


def settings_of_cluster(kafka: Kafka, problems: list[str]) -> Settings:
    """`host:port,host:port`, or librdkafka settings that name `bootstrap.servers`, as settings."""
    settings = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
    if not settings.get("bootstrap.servers"):
        problems.append("expected kafka to be host:port, or settings with bootstrap.servers")
    return tuple(sorted(settings.items()))


def choose(spark: SparkSession, settings: Settings, wanted: str) -> str:
    """Who reads: "jvm" or "python".

    Raises:
        ConfigError: the JVM connector was asked for and is not there.
    """
    from pyspark.errors import AnalysisException

    if wanted not in ("auto", "jvm", "python"):
        raise ConfigError(f"expected connector to be 'auto', 'jvm' or 'python', got: {wanted!r}; nothing was read")
    plain = [name for name, _ in settings] == ["bootstrap.servers"]  # others have other names in Java
    if wanted == "python" or (wanted == "auto" and not plain):
        return "python"
    options = {"kafka.bootstrap.servers": dict(settings)["bootstrap.servers"], "subscribe": "x"}
    try:
        _ = spark.readStream.format("kafka").options(**options).load().schema
    except AnalysisException as error:
        if wanted == "auto":
            return "python"
        raise ConfigError(
            "the JVM connector is not among the session's jars: nothing was read; start Spark with --packages "
            "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, or let connector be 'python'"
        ) from error
    return "jvm"


def stream(spark: SparkSession, connector: str, settings: Settings, start: Offsets, most: int | None) -> DataFrame:
    """Topics as a stream from these offsets on, about `most` offsets in a batch."""
    options = _options(settings, start)
    if most is not None:
        options["maxOffsetsPerTrigger"] = str(most)
    return spark.readStream.format(_FORMATS[connector]).options(**options, **_COMMITTED[connector]).load()


def batch(spark: SparkSession, settings: Settings, topics: Sequence[str], wanted: Connector = "auto") -> DataFrame:
    """All that topics hold now.

    Raises:
        ConfigError: there is no such topic, or the JVM connector was asked for and is not there.
        BrokerError: the cluster does not answer.
    """
    connector = choose(spark, settings, wanted)
    broker = broker_of(settings)
    check_topics(broker, tuple(topics))
    options = _options(settings, ends_of(broker, topics, earliest=True))
    options["endingOffsets"] = json.dumps(ends_of(broker, topics))
    return spark.read.format(_FORMATS[connector]).options(**options, **_COMMITTED[connector]).load()


_FORMATS = {"python": "wheelsched-kafka", "jvm": "kafka"}
_COMMITTED: dict[str, dict[str, str]] = {"python": {}, "jvm": {"kafka.isolation.level": "read_committed"}}


def _options(settings: Settings, start: Offsets) -> dict[str, str]:
    told = {"subscribe": ",".join(start), "startingOffsets": json.dumps(start), "includeHeaders": "true"}
    return {f"kafka.{name}": str(value) for name, value in settings} | told
