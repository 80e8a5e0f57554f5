"""The attempt history that `backtest` and `slo` read: one row for each delivery that ended. Version 1.

| column | type | |
|---|---|---|
| `id` | string | the message; all its attempts have the same id |
| `topic` | string | where the message first failed |
| `attempt` | int | number of the delivery, from 1 |
| `due_ms` | bigint | when the delivery was due; null for the first delivery, or if its start is not known |
| `started_ms` | bigint | when the handler started; if that is not known, when the delivery failed |
| `outcome` | string | `ok`, `failed`, `dead` (failed and given up) or `superseded` (failed, another one goes out) |
| `error_class` | string | class of the error; null for `ok` |
| `shard` | int | optional: the shard that held the message |

The jobs leave out and count impossible rows: no id, no topic, an attempt below 1, a start before 1970, an unknown
outcome.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from retry_topic.history import OUTCOMES
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import StorePlace
from retry_topic.spark.source.schemas import ATTEMPTS
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from retry_topic.spark.kafka.connector import Connector, Kafka

COLUMNS = MappingProxyType({name: kind for name, kind in ATTEMPTS.items() if name != "shard"})
OPTIONAL = MappingProxyType({"shard": ATTEMPTS["shard"]})


def load_table(spark: SparkSession, path: str, schema: str | None = None) -> DataFrame:
    """Read Parquet files, or JSON Lines when the path ends with .json, .jsonl, .json.gz or .jsonl.gz.

    The files of a folder must agree: a column may be missing in some files, but it must have one type. `schema` (DDL)
    is for JSON Lines; without it Spark infers the columns.

    Raises:
        ConfigError: the files cannot be read; nothing was changed.
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
    except Py4JJavaError as error:  # PySpark does not translate the error of a broken file
        reason = str(error.java_exception.getMessage()).splitlines()[0]
        raise ConfigError(f"{path} cannot be read: {reason}; nothing was read") from error


def load_history(spark: SparkSession, path: str) -> DataFrame:
    """Read an attempt history from files.

    Raises:
        ConfigError: the files cannot be read, or a column is missing or has a wrong type.
    """
    return check_history(load_table(spark, path, _ddl()))


def store_history(spark: SparkSession, place: StorePlace) -> DataFrame:
    """Read the attempt history that services and consumers wrote to a store.

    The store limits the length of the history. This function reads it once and keeps the rows, so all figures of a
    report come from the same rows.

    Raises:
        ConfigError: the store has no history.
    """
    history = read(spark, place, form="attempts").persist()
    if history.isEmpty():
        raise ConfigError(
            "there is no attempt history in the store; nothing was read. Run services and consumers with a history "
            "(`wheel-sched serve --history 100000`, ConsumerConfig.history), or name a file"
        )
    return history


def topic_history(spark: SparkSession, kafka: Kafka, topic: str, *, connector: Connector = "auto") -> DataFrame:
    """Read an attempt history from a Kafka topic. The value of each record is a JSON object with the columns.

    Equal rows count once: a producer may write a row twice. A value that is no such object becomes a row of nulls. The
    jobs leave such a row out and count it.

    Raises:
        ConfigError: there is no such topic, or it is empty.
        BrokerError: the cluster does not answer.
    """
    from pyspark.sql import functions as f

    from retry_topic.spark.kafka.connector import batch, read_settings

    rows = batch(spark, read_settings(kafka), [topic], connector)
    if rows.isEmpty():
        raise ConfigError(f"there is no attempt history in topic {topic}: nothing was read")
    parsed = f.from_json(f.col("value").cast("string"), _ddl()).alias("row")
    history = check_history(rows.select(parsed).select("row.*"))
    return history.where(sound(history)).dropDuplicates().unionByName(history.where(~sound(history)))


def _ddl() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in (COLUMNS | OPTIONAL).items())


def check_history(history: DataFrame) -> DataFrame:
    """Check the columns of a history and drop all others.

    Raises:
        ConfigError: lists every column that is missing or has a wrong type.
    """
    return check_columns(history, COLUMNS, OPTIONAL)


def check_columns(
    table: DataFrame, needed: MappingProxyType[str, str], optional: MappingProxyType[str, str] = MappingProxyType({})
) -> DataFrame:
    """Select the `needed` and the `optional` columns of a table, and cast integers of another width.

    Raises:
        ConfigError: lists every column that is missing or has a wrong type.
    """
    from pyspark.sql import functions as f

    found = {field.name: field.dataType.simpleString() for field in table.schema}
    problems = [f"expected a column {name} {kind}, got none" for name, kind in needed.items() if name not in found]
    whole = {"int", "bigint", "smallint", "tinyint"}
    kept: list[Column] = []
    for name, kind in {**needed, **optional}.items():
        if name not in found:
            continue
        if found[name] != kind and not {found[name], kind} <= whole and found[name] != "void":
            problems.append(f"expected column {name} to be {kind}, got: {found[name]}")
        kept.append(f.col(name).cast(kind).alias(name))
    if problems:
        raise ConfigError([*problems, "nothing was changed"])
    return table.select(*kept)


def sound(history: DataFrame) -> Column:
    """A column that says whether the values of a row are possible, such as an attempt number of at least 1."""
    from pyspark.sql import functions as f

    return f.coalesce(
        (f.col("id") != "")
        & f.col("topic").isNotNull()
        & (f.col("attempt") >= 1)
        & (f.col("started_ms") >= 0)
        & f.col("outcome").isin(*OUTCOMES),
        f.lit(False),
    )
