"""Reads topics for the jobs, with the JVM connector or with this package's source (see `choose`).

A batch ends at the offsets at which the topics ended when the batch was created. So a report that reads the batch
several times gets the same rows each time.
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
    """Client settings from `host:port,host:port` or from librdkafka settings with `bootstrap.servers`.

    Adds a text to `problems` if they name no server.
    """
    settings = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
    if not settings.get("bootstrap.servers"):
        problems.append("expected kafka to be host:port, or settings with bootstrap.servers")
    return tuple(sorted(settings.items()))


def read_settings(kafka: Kafka) -> Settings:
    """Client settings for reading a cluster, as `settings_of_cluster` returns them.

    Raises:
        ConfigError: `kafka` names no server; nothing was read.
    """
    problems: list[str] = []
    settings = settings_of_cluster(kafka, problems)
    if problems:
        raise ConfigError([*problems, "nothing was read"])
    return settings


def choose(spark: SparkSession, settings: Settings, wanted: str) -> str:
    """Choose the connector: "jvm" or "python". `wanted` may also be "auto".

    "auto" means "jvm" if the session has its jars and the settings are only an address, otherwise "python".

    Raises:
        ConfigError: `wanted` is "jvm" and the session lacks its jars, or `wanted` is unknown; nothing was read.
    """
    from pyspark.errors import AnalysisException

    if wanted not in ("auto", "jvm", "python"):
        raise ConfigError(f"expected connector to be 'auto', 'jvm' or 'python', got: {wanted!r}; nothing was read")
    plain = [name for name, _ in settings] == ["bootstrap.servers"]  # other settings have other names in Java
    if wanted == "python" or (wanted == "auto" and not plain):
        return "python"
    options = {"kafka.bootstrap.servers": dict(settings)["bootstrap.servers"], "subscribe": "x"}
    try:
        _ = spark.readStream.format("kafka").options(**options).load().schema
    except AnalysisException as error:
        if wanted == "auto":
            return "python"
        raise ConfigError(
            "the session does not have the jars of the JVM connector: nothing was read; start Spark with --packages "
            "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, or set connector to 'python'"
        ) from error
    return "jvm"


def stream(spark: SparkSession, connector: str, settings: Settings, start: Offsets, most: int | None) -> DataFrame:
    """Topics as a stream that begins at these offsets, with about `most` offsets in a batch."""
    options = _options(settings, start)
    if most is not None:
        options["maxOffsetsPerTrigger"] = str(most)
    return spark.readStream.format(_FORMATS[connector]).options(**options, **_COMMITTED[connector]).load()


def batch(spark: SparkSession, settings: Settings, topics: Sequence[str], wanted: Connector = "auto") -> DataFrame:
    """All records that the topics hold now.

    Raises:
        ConfigError: a topic is missing, or the JVM connector is wanted and its jars are missing.
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
    ours = {"subscribe": ",".join(start), "startingOffsets": json.dumps(start), "includeHeaders": "true"}
    return {f"kafka.{name}": str(value) for name, value in settings} | ours
