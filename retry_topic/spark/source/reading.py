"""Reading the store: one Spark partition for each shard, pages continued behind the last id, Arrow out.

A live store is no snapshot: what moves while it is read may be seen in two places, or in none. What stays where it is
is seen exactly once. Asking for `id`, `state`, `shard` and `at_ms` alone spares the server its records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from retry_topic.dead_letters import read_dead
from retry_topic.spark.source.options import Place, Scope
from retry_topic.spark.source.shapes import LETTERS, LIGHT
from wheel_sched.store.items import MAX_BATCH, MAX_DUE_MS, STATES, Found, State
from wheel_sched.store.operations import Call, Inspect, Scan, Scanned
from wheel_sched.store.plans import shard_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wheel_sched.store import DelayStore

Columns = dict[str, Any]  # name -> values, one for each row

_PAGES = 10  # of 500 rows in one Arrow batch


@dataclass(frozen=True)
class ShardPartition(InputPartition):
    """One shard."""

    shard: int


class StoreReader(DataSourceReader):
    """Reads a form of the store.

    Args:
        place: where it is.
        scope: what is wanted.
        form: how items are shown.
        schema: the columns that are wanted.
    """

    def __init__(self, place: Place, scope: Scope, form: str, schema: StructType) -> None:
        self._place = place
        self._scope = scope
        self._form = form
        self._schema = schema

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # PySpark's name
        """Take what the store or the reader can do by itself; the rest goes back to Spark."""
        for given in filters:
            narrowed = narrow(self._scope, given)
            if narrowed is None:
                yield given
            else:
                self._scope = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._scope.shards
        return [ShardPartition(shard) for shard in range(self._place.shards) if wanted is None or shard in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, ShardPartition)  # noqa: S101  # they are ours
        names = self._schema.fieldNames()
        schema = to_arrow_schema(self._schema)
        with self._place.opened() as store:
            for columns in self._columns(store, partition.shard, set(names)):
                arrays = [pa.array(columns[name], schema.field(name).type) for name in names]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _columns(self, store: DelayStore, shard: int, names: set[str]) -> Iterator[Columns]:
        scope = self._scope
        records = not names <= LIGHT or scope.topic is not None or self._form == "damage"
        shown = {"items": _items, "letters": _letters, "damage": self._flaws}[self._form]
        for state in scope.states:
            gathered: list[Scanned] = []
            for page in pages(store, shard, state, scope, records):
                gathered += page
                if len(gathered) >= _PAGES * MAX_BATCH:
                    yield self._kept(shown(shard, state, gathered))
                    gathered = []
            if gathered:
                yield self._kept(shown(shard, state, gathered))
        if self._form == "damage":
            yield from _without_place(store, shard)

    def _kept(self, columns: Columns) -> Columns:
        """The rows of the topic that is wanted."""
        topic = self._scope.topic
        if topic is None:
            return columns
        places = [place for place, found in enumerate(columns["topic"]) if found == topic]
        return {name: [column[place] for place in places] for name, column in columns.items()}

    def _flaws(self, shard: int, state: State, found: list[Scanned]) -> Columns:
        return {
            **_places(shard, state, found),
            "route": [item.record.route if item.record else None for item in found],
            "flaw": [self._flaw(shard, item) for item in found],
        }

    def _flaw(self, shard: int, item: Scanned) -> str:
        if item.record is None:
            return "no record" if item.reason == "no record" else "unreadable record"
        return "" if shard_of(item.record.route or item.id, self._place.shards) == shard else "wrong shard"


def pages(store: DelayStore, shard: int, state: State, scope: Scope, records: bool) -> Iterator[list[Scanned]]:
    """A state of a shard, page by page, in order of score.

    Raises:
        StoreError: the shard cannot be reached; Spark tries the task again, and gives the whole query up rather than
            leave a shard out.
    """
    last: tuple[str, int] | None = None
    while True:
        (page,) = store.execute([Call(shard, Scan(state, scope.from_ms, scope.until_ms, last, MAX_BATCH, records))])
        if isinstance(page, Exception):
            raise page
        if page:
            yield page
        if len(page) < MAX_BATCH:
            return
        last = (page[-1].id, page[-1].score_ms)


def _places(shard: int, state: State, found: list[Scanned]) -> Columns:
    count = len(found)
    return {
        "id": [item.id for item in found],
        "state": [state] * count,
        "shard": [shard] * count,
        "at_ms": [item.score_ms for item in found],
    }


def _items(shard: int, state: State, found: list[Scanned]) -> Columns:
    columns = _places(shard, state, found)
    records = [item.record for item in found]
    if None in records:
        columns["topic"] = [record and record.topic for record in records]
        columns["version"] = [record and record.version for record in records]
        columns["route"] = [record and record.route for record in records]
        columns["refs"] = [record and list(record.refs) for record in records]
        columns["body"] = [record and record.body for record in records]
    else:  # the usual case, in one go
        parts: Any = zip(*records, strict=True)
        columns["version"], columns["topic"], columns["route"], columns["refs"], columns["body"] = parts
    columns["reason"] = [item.reason or None for item in found]
    return columns


def _letters(shard: int, state: State, found: list[Scanned]) -> Columns:
    rows = [_letter(state, item) for item in found]
    columns = _places(shard, state, found)
    columns.update({name: [row[name] for row in rows] for name in LETTERS if name not in columns})
    return columns


def _letter(state: State, item: Scanned) -> dict[str, Any]:
    record = item.record
    topic, body = (record.topic, record.body) if record else ("", b"")
    letter = read_dead(Found(item.id, state, item.score_ms, 0, topic, body, item.reason))
    found, message = letter.state, letter.message
    return {
        "topic": letter.topic,
        "target": message.topic if message else None,
        "reason": item.reason or None,
        "attempt": found.attempt,
        "replays": found.replays,
        "first_failed_ms": found.first_failed_ms,
        "last_failed_ms": found.last_failed_ms,
        "due_ms": found.due_ms,
        "error_class": found.error_class,
        "error_message": found.error_message,
        "fingerprint": found.error_fingerprint,
        "status": found.error_status,
        "consumer_group": found.consumer_group,
        "key": message.key if message else None,
        "value": message.value if message else None,
    }


def _without_place(store: DelayStore, shard: int) -> Iterator[Columns]:
    """Records that lie in no place, which no listing shows."""
    for name in ("body", "deadbody"):
        cursor = "0"
        while True:
            (answer,) = store.execute([Call(shard, Inspect(name, cursor))])
            if isinstance(answer, Exception):
                raise answer
            cursor, lost = answer
            if lost:
                unknown: dict[str, Any] = {
                    "state": "",
                    "shard": shard,
                    "at_ms": None,
                    "route": None,
                    "flaw": "no place",
                }
                yield {"id": lost, **{name: [value] * len(lost) for name, value in unknown.items()}}
            if cursor == "0":
                break


def narrow(scope: Scope, given: Filter) -> Scope | None:
    """The scope with a filter in it, None when only Spark can do it."""
    if isinstance(given, EqualTo | In):
        name = given.attribute[-1]
        values = [given.value] if isinstance(given, EqualTo) else list(given.value)
        if name == "state" and all(isinstance(value, str) for value in values):
            return replace(scope, states=tuple(s for s in STATES if s in values and s in scope.states))
        if name == "shard" and all(isinstance(value, int) for value in values):
            kept = frozenset(values) if scope.shards is None else scope.shards & frozenset(values)
            return replace(scope, shards=kept)
        if name == "at_ms" and isinstance(given, EqualTo) and isinstance(given.value, int):
            return _within(scope, given.value, given.value)
        return None
    if isinstance(given, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        value = given.value
        if given.attribute[-1] != "at_ms" or not isinstance(value, int):
            return None
        if isinstance(given, GreaterThan | GreaterThanOrEqual):
            return _within(scope, value + isinstance(given, GreaterThan), MAX_DUE_MS)
        return _within(scope, 0, value - isinstance(given, LessThan))
    return None


def _within(scope: Scope, least_ms: int, greatest_ms: int) -> Scope:
    from_ms, until_ms = max(scope.from_ms, least_ms), min(scope.until_ms, greatest_ms)
    if until_ms < from_ms:
        return replace(scope, states=())  # nothing can be in it
    return replace(scope, from_ms=from_ms, until_ms=until_ms)
