"""Reads topics as a stream. The query's checkpoint holds the offsets, as `{topic: {partition: next}}`.

It needs PySpark 4.2 or newer: older versions do not pass the start and the limit of a batch to a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from retry_topic.spark.kafka.offsets import check_follow, ends_of, resolved, within
from retry_topic.spark.kafka.options import KafkaReadOptions, Offsets, broker_of
from retry_topic.spark.kafka.reading import ranges, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. One instance, in a process of the driver, plans the batches. Its copies read the
    records in the tasks."""

    def __init__(self, options: KafkaReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # PySpark's name
        return resolved(broker_of(self._options.settings), self._options.topics, self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # PySpark's name
        return ReadAllAvailable() if self._options.most is None else ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # PySpark's name
        ends = self._ends() if self._target is None else self._target
        if not self._options.lossy:
            check_follow(start, ends)
        return within(start, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # PySpark's name
        return self._ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return ranges(self._options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._schema)

    def _ends(self) -> Offsets:
        return ends_of(broker_of(self._options.settings), self._options.topics)
