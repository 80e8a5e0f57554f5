"""The rows of one partition of a retry topic as the log that the retry service's intake reads.

Spark hands a task the records from where its checkpoint says; how far they are taken in, the store says. What it has is
passed over; what it lacks before the first row is read from the topic again, mostly nothing but marks of transactions.
So neither a checkpoint that is lost or behind, nor a service that took the same topic in meanwhile, nor a store that
fell back after a failover makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.message import Message
from wheel_sched.errors import Rejected

Between = Callable[[int, int], Iterator[Message]]


class RowLog:
    """See `LogReader`. One thread.

    Args:
        source: the store's name of the partition.
        rows: its records, by offset.
        position: how far they are taken in, None where nothing was.
        between: reads the records from one offset to before another.
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
        """The next slice; None at the end of the rows.

        Raises:
            Rejected: the rows are not in order; what was taken in before stays.
            BrokerError: what lies before the rows cannot be read.
        """
        if not self._joined:
            self._join()
        taken: list[Message] = []
        behind = self.position
        for row in self._rows:
            offset = _offset(row)
            if behind is not None and offset < behind:
                raise Rejected(
                    f"expected the rows of {self._source} by offset, got {offset} behind {behind - 1}: nothing of them "
                    "was stored; hand the topic's rows on as they are read"
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
        """See `LogReader`."""
        return {} if self.position is None else {self._source: self.position}

    def rewind(self, source: str, position: int | None) -> None:
        """Go on from there: another has taken records in, or the store has fallen back."""
        self._rows = chain(self._last, self._rows)
        self.position, self._last, self._joined = position, [], False

    def done(self, part: LogBatch) -> None:
        """The slice is stored."""
        self.records += len(self._last)
        self._last = []

    def beat(self) -> None:
        """There is no group to stay in."""

    def close(self) -> None:
        """There is nothing to leave."""

    def _join(self) -> None:
        """Make the rows follow the position."""
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
    assert row.source is not None  # noqa: S101  # they are made with one
    return int(row.source.offset)
