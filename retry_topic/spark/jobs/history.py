"""The attempt history that `backtest` and `slo` read: one row for each delivery that ended. Version 1.

| column | type | |
|---|---|---|
| `id` | string | the message, the same for all its attempts |
| `topic` | string | where it first failed |
| `attempt` | int | number of the delivery, from 1 |
| `due_ms` | bigint | when it was to start; null for the first one, which nobody scheduled |
| `started_ms` | bigint | when it started |
| `outcome` | string | `ok`, `failed` or `dead` (failed and given up) |
| `error_class` | string | of a failure, null otherwise |
| `shard` | int | optional: which shard held it |

Rows that cannot be (no id, an attempt below 1, a start before 1970, another outcome) are left out and counted.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from retry_topic.history import OUTCOMES
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import Place
from retry_topic.spark.source.schemas import ATTEMPTS
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from retry_topic.spark.kafka.connector import Connector, Kafka

COLUMNS = MappingProxyType({name: kind for name, kind in ATTEMPTS.items() if name != "shard"})
OPTIONAL = MappingProxyType({"shard": ATTEMPTS["shard"]})


def load_table(spark: SparkSession, path: str, schema: str | None = None) -> DataFrame:
    """A table of Parquet files, or of JSON Lines when its name ends with .json or .jsonl.

    The files of a folder must agree: a column may be absent in some, but not be of two types.

    Raises:
        ConfigError: it cannot be read; nothing was changed.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    is_json = path.removesuffix(".gz").endswith((".json", ".jsonl"))
    if "://" not in path and not Path(path).exists() and "*" not in path:
        raise ConfigError(f"there is no file or folder {path}; nothing was read")
    try:
        if not is_json:
            return spark.read.option("mergeSchema", "true").parquet(path)
        reader = spark.read.option("mode", "FAILFAST")
        return (reader.schema(schema) if schema else reader).json(path)
    except PySparkException as error:
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}; nothing was read") from error
    except Py4JJavaError as error:  # a broken file is none of the errors that PySpark translates
        told = str(error.java_exception.getMessage()).splitlines()[0]
        raise ConfigError(f"{path} cannot be read: {told}; nothing was read") from error


def load_history(spark: SparkSession, path: str) -> DataFrame:
    """A history from files.

    Raises:
        ConfigError: it cannot be read, or a column is missing or of another type.
    """
    return check_history(load_table(spark, path, _described()))


def store_history(spark: SparkSession, place: Place) -> DataFrame:
    """The history that services and consumers have left in a store's log.

    It is bounded, and read once: all of a report is about the same rows.

    Raises:
        ConfigError: there is none.
    """
    history = read(spark, place, form="attempts").persist()
    if history.isEmpty():
        raise ConfigError(
            "there is no attempt history in the store: nothing was read; run services and consumers with one "
            "(`wheel-sched serve --history 100000`, ConsumerConfig.history), or name a file"
        )
    return history


def topic_history(spark: SparkSession, kafka: Kafka, topic: str, *, connector: Connector = "auto") -> DataFrame:
    """The history in a topic of a Kafka cluster: a JSON object with the columns in the value of each record.

    A row that a producer has brought twice counts once. A value that is no such object is a row of nulls, which the
    jobs count as left out.

    Raises:
        ConfigError: there is no such topic, or nothing in it.
        BrokerError: the cluster does not answer.
    """
    from pyspark.sql import functions as f

    from retry_topic.spark.kafka.connector import batch, settings_of_cluster

    problems: list[str] = []
    settings = settings_of_cluster(kafka, problems)
    if problems:
        raise ConfigError([*problems, "nothing was read"])
    rows = batch(spark, settings, [topic], connector)
    if rows.isEmpty():
        raise ConfigError(f"there is no attempt history in topic {topic}: nothing was read")
    parsed = f.from_json(f.col("value").cast("string"), _described()).alias("row")
    history = check_history(rows.select(parsed).select("row.*"))
    return history.where(sound(history)).dropDuplicates().unionByName(history.where(~sound(history)))


def _described() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in (COLUMNS | OPTIONAL).items())


def check_history(history: DataFrame) -> DataFrame:
    """The history's own columns, when all of them are there.

    Raises:
        ConfigError: with every column that is missing or of another type.
    """
    return check_columns(history, COLUMNS, OPTIONAL)


def check_columns(
    table: DataFrame, needed: MappingProxyType[str, str], optional: MappingProxyType[str, str] = MappingProxyType({})
) -> DataFrame:
    """The table with these columns alone; whole numbers of another width are taken.

    Raises:
        ConfigError: with every column that is missing or of another type.
    """
    from pyspark.sql import functions as f

    there = {field.name: field.dataType.simpleString() for field in table.schema}
    problems = [f"expected a column {name} {kind}, got none" for name, kind in needed.items() if name not in there]
    whole = {"int", "bigint", "smallint", "tinyint"}
    kept: list[Column] = []
    for name, kind in {**needed, **optional}.items():
        if name not in there:
            continue
        if there[name] != kind and not {there[name], kind} <= whole and there[name] != "void":
            problems.append(f"expected column {name} to be {kind}, got: {there[name]}")
        kept.append(f.col(name).cast(kind).alias(name))
    if problems:
        raise ConfigError([*problems, "nothing was changed"])
    return table.select(*kept)


def sound(history: DataFrame) -> Column:
    """Whether a row of a history can be."""
    from pyspark.sql import functions as f

    return f.coalesce(
        (f.col("id") != "")
        & f.col("topic").isNotNull()
        & (f.col("attempt") >= 1)
        & (f.col("started_ms") >= 0)
        & f.col("outcome").isin(*OUTCOMES),
        f.lit(False),
    )
