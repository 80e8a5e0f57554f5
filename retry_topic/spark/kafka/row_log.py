"""Presents the rows of one retry topic partition as the log that the retry service's intake reads.

The checkpoint says where Spark's rows begin; the store says which records it has. The log skips rows that the store
has. If records are missing before the first row, the log reads them from the topic again. Mostly only transaction
markers are missing. So the result is the same when the checkpoint is lost or old, when a service has read the same
topic meanwhile, and when the store lost its last records in a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.message import Message
from wheel_sched.errors import Rejected

Between = Callable[[int, int], Iterator[Message]]


class RowLog:
    """The rows of one partition as a log; see `LogReader`. Only one thread may use it.

    Args:
        source: the store's name of the partition.
        rows: the records of the partition, by offset.
        position: the next offset that the store expects; None when the store has no position.
        between: reads the records from one offset up to, not including, another.
    """

    def __init__(self, source: str, rows: Iterator[Message], position: int | None, between: Between) -> None:
        self._source = source
        self._rows = rows
        self._between = between
        self._last: list[Message] = []
        self._joined = False
        self.position = position
        self.records = 0

    def poll(self, limit: int, timeout_ms: int = 0) -> LogBatch | None:
        """The next log batch; None at the end of the rows.

        Raises:
            Rejected: the rows are not in order. What was stored before stays.
            BrokerError: the records before the first row cannot be read.
        """
        if not self._joined:
            self._join()
        taken: list[Message] = []
        behind = self.position
        for row in self._rows:
            offset = _offset(row)
            if behind is not None and offset < behind:
                raise Rejected(
                    f"expected the rows of {self._source} by offset, got {offset} after {behind - 1}: none of these "
                    "rows was stored; do not sort, shuffle or filter the topic's rows"
                )
            behind = offset + 1
            taken.append(row)
            if len(taken) == limit:
                break
        if behind is None or not taken:
            return None
        part = LogBatch(self._source, self.position, behind, [Delivery(row, None) for row in taken])
        self.position, self._last = behind, taken
        return part

    def expected(self) -> dict[str, int]:
        """The position of the next batch, by source; empty if the store has no position."""
        return {} if self.position is None else {self._source: self.position}

    def rewind(self, source: str, position: int | None) -> None:
        """Continue at `position`, because another reader has stored records or the store has lost some.

        None: the store has no position, so no row is skipped.
        """
        self._rows = chain(self._last, self._rows)
        self.position, self._last, self._joined = position, [], False

    def done(self, part: LogBatch) -> None:
        """Note that the last log batch is stored, and count its records."""
        self.records += len(self._last)
        self._last = []

    def beat(self) -> None:
        """Do nothing, because this log is in no consumer group."""

    def close(self) -> None:
        """Do nothing, because this log is in no consumer group."""

    def _join(self) -> None:
        """Make the rows begin at the store's position: skip stored rows, and read missing records from the topic."""
        self._joined = True
        position = self.position
        if position is None:
            return
        first = next((row for row in self._rows if _offset(row) >= position), None)
        if first is None:
            return
        missing = self._between(position, _offset(first)) if _offset(first) > position else ()
        self._rows = chain(missing, [first], self._rows)


def _offset(row: Message) -> int:
    assert row.source is not None  # noqa: S101  # `messages_in` sets it
    return int(row.source.offset)
