"""Reads the attempt history from the store: one Spark partition for each shard, each row once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from retry_topic.history import Attempt, Exported, attempts_in
from retry_topic.spark.source.options import Scope, StorePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH = 5_000  # rows


@dataclass(frozen=True)
class ShardLog(InputPartition):
    """What one task reads: the attempt history of one shard."""

    shard: int


class HistoryReader(DataSourceReader):
    """Reads the attempt history (option `form`: `attempts`).

    An unreadable row becomes a row of nulls. The jobs leave such rows out and count them.

    Args:
        place: the store.
        scope: which shards to read.
        schema: the columns to return.
    """

    def __init__(self, place: StorePlace, scope: Scope, schema: StructType) -> None:
        self._place = place
        self._scope = scope
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._scope.shards
        return [ShardLog(shard) for shard in range(self._place.shards) if wanted is None or shard in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ShardLog):
            return  # without partitions Spark makes one of its own
        seen = Exported()
        with self._place.opened() as store:
            rows = attempts_in(store, partition.shard, seen)
            while page := [*islice(rows, _BATCH)]:
                yield self._batch(page)
        if seen.unreadable:
            yield self._batch([_NOTHING] * seen.unreadable)

    def _batch(self, rows: list[Attempt]) -> pa.RecordBatch:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = dict(zip(Attempt._fields, zip(*rows, strict=True), strict=True))
        schema = to_arrow_schema(self._schema)
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )


_NOTHING = Attempt(*[None] * len(Attempt._fields))  # type: ignore[arg-type]  # stands for an unreadable row
