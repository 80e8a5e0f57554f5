"""Reads topics: one Spark partition for each topic partition, committed records only, as Arrow batches.

A range holds no open transaction when it is planned, so every later read of it gives the same records. Aborted records
and transaction markers are offsets without a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from retry_topic.spark.kafka.offsets import ends_of, resolved
from retry_topic.spark.kafka.options import KafkaReadOptions, Offsets, Settings, broker_of
from wheel_sched.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_AT_ONCE = 5_000
_STALLED_S = 60.0
_READER: Mapping[str, Any] = {
    "group.id": "wheelsched-spark",  # a client must have a group; nobody joins it or commits to it
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
}
# kept for the next task: Spark reuses this process, and runs one task in it at a time
_clients: dict[tuple[Settings, bool], Any] = {}


@dataclass(frozen=True)
class Range(InputPartition):
    """The records that one task reads: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaReader(DataSourceReader):
    """Reads the records that topics have between two sets of offsets, once, for a batch query."""

    def __init__(self, options: KafkaReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        broker = broker_of(options.settings)
        start = resolved(broker, options.topics, options.starting)
        return [*ranges(options, start, resolved(broker, options.topics, options.ending))] or [_NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._schema)


def ranges(options: KafkaReadOptions, start: Offsets, end: Offsets) -> list[Range]:
    """The ranges that tasks read between two sets of offsets.

    Raises:
        BrokerError: the cluster has deleted some of these records and `lossy` is off; nothing was read.
    """
    found = []
    first = ends_of(broker_of(options.settings), options.topics, earliest=True)
    for topic, parts in end.items():
        for number, behind in parts.items():
            begin, least = start.get(topic, {}).get(number, 0), first.get(topic, {}).get(number)
            if begin >= behind:
                continue
            if least is None or begin < least:
                if not options.lossy:
                    raise BrokerError(
                        f"records of {topic}-{number} from {begin} on have been deleted (the first one is {least}): "
                        "nothing was read; set option failOnDataLoss to false to go on without them"
                    )
                begin = behind if least is None else least
            if begin < behind:
                found.append(Range(topic, int(number), begin, behind))
    return found


def read_range(options: KafkaReadOptions, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a range, as Arrow batches."""
    assert isinstance(partition, Range)  # noqa: S101  # `ranges` made it
    names = schema.fieldNames()
    for page in records(options.settings, partition, lossy=options.lossy):
        yield _batch(page, names)


def records(settings: Settings, part: Range, *, lossy: bool = False) -> Iterator[list[Any]]:
    """The records of a range, page by page, as objects of confluent-kafka.

    Raises:
        BrokerError: the records cannot be read, or were deleted and `lossy` is False.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    from retry_topic.brokers.kafka.faults import broker_error

    what = f"{part.topic}-{part.partition}"
    if part.start >= part.end:
        return
    client = _client(settings, lossy)
    try:
        client.assign([TopicPartition(part.topic, part.partition, part.start)])
        at, until_s = part.start, time.monotonic() + _STALLED_S
        while at < part.end:
            page = []
            first = client.poll(1.0)  # returns with the first record; `consume` would wait for a full page
            for record in () if first is None else (first, *client.consume(_AT_ONCE, 0)):
                error = record.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, record.offset() + (error is None))
                    if error is None and record.offset() < part.end:
                        page.append(record)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise BrokerError(f"records of {what} from {at} on have been deleted; set failOnDataLoss to false")
                else:
                    failure = broker_error(KafkaException(error), f"{what} could not be read from {at}")
                    if error.fatal() or not failure.transient:
                        raise failure  # a transient error: retry until nothing has come for a minute
            if page:
                until_s = time.monotonic() + _STALLED_S
                yield page
            elif time.monotonic() >= until_s:
                raise BrokerUnavailable(f"{what} could not be read from {at} to {part.end}: nothing came; repeat it")
    except KafkaException as error:
        raise broker_error(error, f"{what} could not be read") from error
    finally:
        client.unassign()


def _client(settings: Settings, lossy: bool) -> Any:
    from confluent_kafka import Consumer

    known = _clients.get((settings, lossy))
    if known is None:
        reset = "earliest" if lossy else "error"
        known = Consumer({**broker_of(settings).settings, **_READER, "auto.offset.reset": reset})
        _clients[settings, lossy] = known
    return known


def _batch(page: list[Any], names: list[str]) -> pa.RecordBatch:
    """Records of confluent-kafka as an Arrow batch with these columns."""
    import pyarrow

    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    kinds = {
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "topic": pyarrow.string(),
        "partition": pyarrow.int32(),
        "offset": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("us", tz="UTC"),
        "timestampType": pyarrow.int32(),
        "headers": pyarrow.list_(pyarrow.field("element", header)),
    }
    take: dict[str, Any] = {
        "key": lambda record: record.key(),
        "value": lambda record: record.value(),
        "topic": lambda record: record.topic(),
        "partition": lambda record: record.partition(),
        "offset": lambda record: record.offset(),
        "timestamp": lambda record: record.timestamp()[1] * 1000 if record.timestamp()[0] else None,
        "timestampType": lambda record: (
            record.timestamp()[0] - 1
        ),  # -1 no timestamp, 0 creation time, 1 log append time
        "headers": _headers,
    }
    arrays = [pyarrow.array([take[name](record) for record in page], kinds[name]) for name in names]
    schema = pyarrow.schema([pyarrow.field(name, kinds[name]) for name in names])
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(record: Any) -> list[dict[str, Any]] | None:
    pairs = record.headers()
    return [{"key": name, "value": content} for name, content in pairs] if pairs else None


_NOTHING = Range("", 0, 0, 0)  # Spark needs at least one partition
