"""The data source behind `format("wheelsched-kafka")`.

| option | |
|---|---|
| `kafka.bootstrap.servers`, `kafka.*` | librdkafka settings |
| `subscribe` | topics to read |
| `startingOffsets` | `earliest`, `latest` or JSON. Default: `earliest` for a batch, `latest` for a stream |
| `endingOffsets` | only for a batch: `latest` (default) or JSON |
| `maxOffsetsPerTrigger` | about how many offsets one batch of a stream has |
| `failOnDataLoss` | Defaults to true: the query fails when the cluster deleted records before they were read |
| `includeHeaders` | Defaults to true |
| `topic` | topic of all rows; without it each row needs a column `topic` |
| `job_id` | for a batch write: the same rows with the same id are written once |
| `in_doubt` | `write`: a stream goes on without its epoch marks, which the cluster deleted. It may write rows twice |
"""

from __future__ import annotations

import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from retry_topic.spark.kafka.options import broker_of, check_topics, include_headers, read_options, write_options
from retry_topic.spark.kafka.schemas import COLUMNS, check_written
from retry_topic.spark.source.schemas import ddl
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from retry_topic.spark.kafka.options import KafkaWriteOptions
    from retry_topic.spark.kafka.reading import KafkaReader
    from retry_topic.spark.kafka.streaming import KafkaStreamReader
    from retry_topic.spark.kafka.writing import KafkaBatchWriter, KafkaStreamWriter


class WheelSchedKafkaSource(DataSource):
    """Kafka topics as a data source. `retry_topic.spark.register` registers it."""

    @classmethod
    def name(cls) -> str:
        return "wheelsched-kafka"

    def schema(self) -> str:
        shown = {name: kind for name, kind in COLUMNS.items() if name != "headers" or include_headers(self.options, [])}
        return ddl(MappingProxyType(shown))

    def reader(self, schema: StructType) -> KafkaReader:
        from retry_topic.spark.kafka.reading import KafkaReader

        _check_read(schema)
        return KafkaReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802  # PySpark's name
        try:
            from retry_topic.spark.kafka.streaming import KafkaStreamReader
        except ImportError as error:
            raise ConfigError(
                "a stream from Kafka needs PySpark 4.2 or newer, or the JVM connector: nothing was read"
            ) from error
        _check_read(schema)
        return KafkaStreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        from retry_topic.spark.kafka.writing import KafkaBatchWriter

        if overwrite:
            raise ConfigError("expected mode append: a topic cannot be overwritten; nothing was written")
        return KafkaBatchWriter(self._target(schema), self.options.get("job_id") or uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802  # PySpark's name
        from retry_topic.spark.kafka.writing import KafkaStreamWriter

        if "job_id" in self.options:
            raise ConfigError("expected no option job_id: the checkpoint identifies a stream; nothing was written")
        return KafkaStreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> KafkaWriteOptions:
        """Check the columns and the options of a write, and create the topic of epoch marks. Returns the options."""
        from retry_topic.spark.kafka.marks import MARKS

        check_written({field.name: field.dataType.simpleString() for field in schema}, "topic" in self.options)
        target = write_options(self.options)
        broker = broker_of(target.settings)
        if target.topic is not None:
            check_topics(broker, (target.topic,))
        broker.topology.create([MARKS], partitions=1, settings={"cleanup.policy": "compact"})
        return target


def _check_read(schema: StructType) -> None:
    strange = [field.name for field in schema if COLUMNS.get(field.name) != field.dataType.simpleString()]
    if strange:
        raise ConfigError(f"there is no column {', '.join(strange)}: expected some of {ddl(COLUMNS)}")
