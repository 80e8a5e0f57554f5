"""The data source: what `format("wheelsched")` stands for.

| option | |
|---|---|
| `store` | redis://, rediss:// or unix:// of the store, as the workers reach it |
| `namespace` | Defaults to `wheel` |
| `states`, `topic`, `shards`, `from_ms`, `until_ms` | what to read; filters on state, shard and at_ms do the same |
| `form` | `items` (default), `letters` (messages taken apart, with their retry headers), `damage`, `attempts` |
| `job_id` | of a batch that is written: the same rows under the same id are stored once |
| `durability`, `replicas` | what a write waits for. Defaults to `everysec` |
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from retry_topic.spark.source.options import read_form, read_place, read_scope
from retry_topic.spark.source.shapes import SHAPES, check_read, check_written, ddl
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from retry_topic.spark.source.logged import HistoryReader
    from retry_topic.spark.source.reading import StoreReader
    from retry_topic.spark.source.writing import BatchWriter, StreamWriter


class WheelSchedSource(DataSource):
    """The delay store as a data source. Registered by `retry_topic.spark.register`."""

    @classmethod
    def name(cls) -> str:
        return "wheelsched"

    def schema(self) -> str:
        return ddl(SHAPES[read_form(self.options)])

    def reader(self, schema: StructType) -> StoreReader | HistoryReader:
        from retry_topic.spark.source.logged import HistoryReader
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
        check_written({field.name: field.dataType.simpleString() for field in schema})
        return BatchWriter(read_place(self.options), self.options.get("job_id") or uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # PySpark's name
        from retry_topic.spark.source.writing import StreamWriter

        check_written({field.name: field.dataType.simpleString() for field in schema})
        return StreamWriter(read_place(self.options))
