"""The data source behind `format("wheelsched")`.

| option | |
|---|---|
| `store` | redis://, rediss:// or unix:// address that the workers reach |
| `namespace` | Defaults to `wheel` |
| `states`, `topic`, `shards`, `from_ms`, `until_ms` | items to read; filters on state, shard and at_ms do the same |
| `form` | which columns to read: `items` (default), `letters`, `damage` or `attempts`; see `read_form` |
| `job_id` | for a batch write: the same rows with the same id are stored once |
| `durability`, `replicas` | what a write waits for. Defaults to `everysec` |
| `spread_ms` | delay each due time by up to this; a hash of the id chooses the delay |
| `rate` | for a batch: about this many rows become due per second from now on; needs `rows` |
| `rows`, `bytes` | for a batch: the number of rows and the bytes they need on the server; see `sizes` |
| `memory_limit` | how many bytes the server may use. Defaults to the server's own limit |
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from retry_topic.spark.source.options import read_form, read_place, read_scope, read_writing
from retry_topic.spark.source.pacing import DueSpread, bytes_left, check_room
from retry_topic.spark.source.schemas import SHAPES, check_read, check_written, ddl
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from retry_topic.spark.source.history import HistoryReader
    from retry_topic.spark.source.options import StoreWriteOptions
    from retry_topic.spark.source.reading import StoreReader
    from retry_topic.spark.source.writing import BatchWriter, StreamWriter
    from wheel_sched.store import DelayStore


class WheelSchedSource(DataSource):
    """The delay store as a data source. `retry_topic.spark.register` registers it."""

    @classmethod
    def name(cls) -> str:
        return "wheelsched"

    def schema(self) -> str:
        return ddl(SHAPES[read_form(self.options)])

    def reader(self, schema: StructType) -> StoreReader | HistoryReader:
        from retry_topic.spark.source.history import HistoryReader
        from retry_topic.spark.source.reading import StoreReader

        form = read_form(self.options)
        check_read({field.name: field.dataType.simpleString() for field in schema}, form)
        place = read_place(self.options)
        scope = read_scope(self.options, place.shards)
        if scope.topic is not None and form == "damage":
            raise ConfigError(
                "expected no option topic with form damage: an id without a record has no topic; nothing was read"
            )
        if form == "attempts":
            if narrowing := [name for name in ("topic", "states", "from_ms", "until_ms") if name in self.options]:
                raise ConfigError(f"expected no option {', '.join(narrowing)} with form attempts; nothing was read")
            return HistoryReader(place, scope, schema)
        return StoreReader(place, scope, form, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from retry_topic.spark.source.writing import BatchWriter

        if overwrite:
            raise ConfigError(
                "expected mode append: a store of waiting messages cannot be overwritten; nothing was written. Use "
                "`wheel-sched delete`, or another namespace"
            )
        place, writing = read_place(self.options), self._writing(schema, streaming=False)
        with place.opened() as store:  # raises when the server does not have this durability
            spread = DueSpread(writing.spread_ms)
            if writing.rate is not None:
                spread = DueSpread.of_rate(writing.rows or 0, writing.rate, store.now_ms())
            _check_memory(store, writing)
        return BatchWriter(place, writing.job_id or uuid.uuid4().hex, spread, writing.memory_limit)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # PySpark's name
        from retry_topic.spark.source.writing import StreamWriter

        place, writing = read_place(self.options), self._writing(schema, streaming=True)
        with place.opened() as store:  # raises when the server does not have this durability
            _check_memory(store, writing)
            return StreamWriter(place, DueSpread(writing.spread_ms), writing.memory_limit)

    def _writing(self, schema: StructType, *, streaming: bool) -> StoreWriteOptions:
        """Check the columns and the options of a write. Returns the options."""
        columns = {field.name: field.dataType.simpleString() for field in schema}
        check_written(columns)
        writing = read_writing(self.options, streaming=streaming)
        if (writing.spread_ms or writing.rate) and not {"due_ms", "due"} & columns.keys():
            raise ConfigError("expected a column due_ms or due beside spread_ms or rate: nothing was written")
        return writing


def _check_memory(store: DelayStore, writing: StoreWriteOptions) -> None:
    """Raise `Rejected` if the rows need more memory than the server has left. The options give the size of the rows.

    Call it before tasks run.
    """
    if writing.bytes_needed is not None or writing.memory_limit is not None:
        many = "the rows" if writing.rows is None else f"{writing.rows:,} rows"
        check_room(writing.bytes_needed or 1, bytes_left(store, writing.memory_limit), many)
