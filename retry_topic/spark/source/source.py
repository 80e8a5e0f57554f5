"""The data source: what `format("wheelsched")` stands for.

| option | |
|---|---|
| `store` | redis://, rediss:// or unix:// of the store, as the workers reach it |
| `namespace` | Defaults to `wheel` |
| `states`, `topic`, `shards`, `from_ms`, `until_ms` | what to read; filters on state, shard and at_ms do the same |
| `form` | `items` (default), `letters` (messages taken apart, with their retry headers), `damage`, `attempts` |
| `job_id` | of a batch that is written: the same rows under the same id are stored once |
| `durability`, `replicas` | what a write waits for. Defaults to `everysec` |
| `spread_ms` | dues are moved by up to this, by a hash of the id |
| `rate` | of a batch: from now on about so many a second; with `rows` |
| `rows`, `bytes` | of a batch: how many rows there are and what they need on the server, see `sizes` |
| `memory_limit` | bytes the server may have in use. Defaults to its own limit |
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from retry_topic.spark.source.options import read_form, read_place, read_scope, read_writing
from retry_topic.spark.source.pacing import Pace, bytes_left, check_room
from retry_topic.spark.source.schemas import SHAPES, check_read, check_written, ddl
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from retry_topic.spark.source.history import HistoryReader
    from retry_topic.spark.source.options import Writing
    from retry_topic.spark.source.reading import StoreReader
    from retry_topic.spark.source.writing import BatchWriter, StreamWriter
    from wheel_sched.store import DelayStore


class WheelSchedSource(DataSource):
    """The delay store as a data source. Registered by `retry_topic.spark.register`."""

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
                "expected no option topic with form damage: what has no record has no topic; nothing was read"
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
                "expected mode append: a store of waiting messages is not overwritten; nothing was written. Use "
                "`wheel-sched delete`, or another namespace"
            )
        place, writing = read_place(self.options), self._writing(schema, streaming=False)
        with place.opened() as store:  # refuses a durability that the server has not
            pace = Pace(writing.spread_ms)
            if writing.rate is not None:
                pace = Pace.of_rate(writing.rows or 0, writing.rate, store.now_ms())
            _check_memory(store, writing)
        return BatchWriter(place, writing.job_id or uuid.uuid4().hex, pace, writing.memory_limit)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # PySpark's name
        from retry_topic.spark.source.writing import StreamWriter

        place, writing = read_place(self.options), self._writing(schema, streaming=True)
        with place.opened() as store:  # refuses a durability that the server has not
            _check_memory(store, writing)
            return StreamWriter(place, Pace(writing.spread_ms), writing.memory_limit)

    def _writing(self, schema: StructType, *, streaming: bool) -> Writing:
        """What is to be written, and how, once it was seen that it can be."""
        columns = {field.name: field.dataType.simpleString() for field in schema}
        check_written(columns)
        writing = read_writing(self.options, streaming=streaming)
        if (writing.spread_ms or writing.rate) and not {"due_ms", "due"} & columns.keys():
            raise ConfigError("expected a column due_ms or due beside spread_ms or rate: nothing was written")
        return writing


def _check_memory(store: DelayStore, writing: Writing) -> None:
    """Raise `Rejected` when there is no room, as far as is known before a task is started."""
    if writing.bytes_needed is not None or writing.memory_limit is not None:
        many = "the rows" if writing.rows is None else f"{writing.rows:,} rows"
        check_room(writing.bytes_needed or 1, bytes_left(store, writing.memory_limit), many)
