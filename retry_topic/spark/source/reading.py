"""Reads the store page by page into Arrow batches. A shard is one Spark partition or several.

The server prepares the next page while this process decodes the last one. A page begins after the last item of the page
before.

A state with many items is cut by score (due time, end of lease or time of death) into partitions of about `PART` rows,
so several tasks can read one shard. A live store is not a snapshot: an item that changes its state or score during the
read may be seen twice or not at all. An item that does not change is seen exactly once. A read of only `id`, `state`,
`shard` and `at_ms` does not load records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from retry_topic.spark.source.filters import narrow
from retry_topic.spark.source.options import Scope, StorePlace
from retry_topic.spark.source.schemas import LIGHT
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import MAX_BATCH, State
from wheel_sched.store.core.scan import Bulk, BulkPage, Cuts, Scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wheel_sched.store import DelayStore

_ROWS = 5_000  # about how many rows an Arrow batch has
_BYTES = 8 << 20  # about how many bytes the records of an Arrow batch have
PART = 250_000  # about how many rows a partition has; to start a task costs as much as to read 10,000 rows or more
_MOST = 64  # most partitions of one state of a shard


@dataclass(frozen=True)
class Stretch(InputPartition):
    """What one task reads: some states of a shard, between two times."""

    shard: int
    states: tuple[State, ...]
    from_ms: int
    until_ms: int


class StoreReader(DataSourceReader):
    """Reads the items of a store.

    Args:
        place: the store.
        scope: which items to read.
        form: which columns to read: `items` (items as they are stored), `letters` (messages with their retry headers)
            or `damage` (what is wrong with each item, for the job `audit`).
        schema: the columns to return.
    """

    def __init__(self, place: StorePlace, scope: Scope, form: str, schema: StructType) -> None:
        self._place = place
        self._scope = scope
        self._form = form
        self._schema = schema

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # PySpark's name
        """Apply the filters that the store can apply; return the others to Spark."""
        for given in filters:
            narrowed = narrow(self._scope, given)
            if narrowed is None:
                yield given
            else:
                self._scope = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        scope = self._scope
        shards = [shard for shard in range(self._place.shards) if scope.shards is None or shard in scope.shards]
        if self._form == "damage" or not scope.states:  # an audit reads a whole shard in one task
            return [Stretch(shard, scope.states, scope.from_ms, scope.until_ms) for shard in shards]
        found: list[InputPartition] = []
        with self._place.opened() as store:
            for shard in shards:
                found += _stretches(store, shard, scope)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Stretch):
            return  # without partitions Spark makes one of its own
        names = set(self._schema.fieldNames())
        with self._place.opened() as store:
            for arrays in self._arrays(store, partition, names):
                yield self._batch(arrays)

    def _arrays(self, store: DelayStore, part: Stretch, names: set[str]) -> Iterator[dict[str, Any]]:
        from retry_topic.spark.source import columns, rows

        if self._scope.topic is not None:
            names = names | {"topic"}
        records = not names <= LIGHT or self._form == "damage"
        kind = Bulk if self._form == "items" else Scan
        for state in part.states:
            for pages in _gathered(store, part, kind(state, part.from_ms, part.until_ms, None, MAX_BATCH, records)):
                if self._form == "items":
                    yield columns.items(part.shard, state, pages, names)
                elif self._form == "letters":
                    yield rows.letters(part.shard, state, pages)
                else:
                    yield rows.flaws(part.shard, state, pages, self._place.shards)
        if self._form == "damage":
            yield from rows.without_place(store, part.shard)

    def _batch(self, arrays: dict[str, Any]) -> pa.RecordBatch:
        """An Arrow batch with the columns of the schema, in the schema's order.

        If the scope names a topic, the batch has only the rows of this topic.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema)
        made = [pa.array(arrays[field.name], field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(made, schema=schema)
        if self._scope.topic is None:
            return batch
        import pyarrow.compute as pc

        compute: Any = pc  # PyArrow creates its functions at run time
        return batch.filter(compute.equal(pa.array(arrays["topic"], pa.string()), self._scope.topic))


def _stretches(store: DelayStore, shard: int, scope: Scope) -> list[InputPartition]:
    """What the tasks read of a shard: several partitions for each state with more than about `PART` items, and one
    partition for all other states."""
    calls = [Call(shard, Cuts(state, scope.from_ms, scope.until_ms, PART, _MOST)) for state in scope.states]
    small: list[State] = []
    found: list[InputPartition] = []
    for state, answer in zip(scope.states, store.execute(calls), strict=True):
        if isinstance(answer, Exception):
            raise answer
        edges = sorted({*answer[1]} - {scope.from_ms})
        if not edges:
            small.append(state)
            continue
        for begin, end in zip([scope.from_ms, *edges], [*edges, scope.until_ms + 1], strict=True):
            found.append(Stretch(shard, (state,), begin, end - 1))
    if small:
        found.append(Stretch(shard, tuple(small), scope.from_ms, scope.until_ms))
    return found


def _gathered(store: DelayStore, part: Stretch, scan: Scan) -> Iterator[list[Any]]:
    """The items of a state in order of score, as lists of pages.

    Raises:
        StoreError: the shard cannot be reached. Spark then repeats the task, and at last fails the query. So a query
            never leaves a shard out.
    """
    gathered: list[Any] = []
    rows = size = 0
    more = True
    begun = store.begin([Call(part.shard, scan)])
    while more:
        (page,) = begun.answers()
        if isinstance(page, Exception):
            raise page
        found, held, last, more = _extent(page)
        if more:
            scan.last = last
            begun = store.begin([Call(part.shard, scan)])
        if found:
            gathered.append(page)
            rows, size = rows + found, size + held
        if gathered and (not more or rows >= _ROWS or size >= _BYTES):
            yield gathered
            gathered, rows, size = [], 0, 0


def _extent(page: Any) -> tuple[int, int, tuple[str, int] | None, bool]:
    """The rows and bytes of a page, its last row, and whether there may be more pages."""
    if isinstance(page, BulkPage):
        last = page.end()
        return page.id_lengths.count(b" ") + (last is not None), len(page.records), last, page.more
    last = (page[-1].id, page[-1].score_ms) if page else None
    return len(page), 0, last, len(page) == MAX_BATCH
