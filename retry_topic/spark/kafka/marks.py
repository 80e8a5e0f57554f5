"""What a writer has written, as the cluster knows it: the number of an epoch, committed with its rows or not at all.

A mark is the offset of a group that nobody joins, on a topic that stays empty: the same way in which the retry service
tells which claims of a shard went out. Each part of an epoch has its own, with the number of its rows beside it. One
more is the writer's: it says which epoch is at work, and whether it is done.

The cluster forgets marks a week after the last one (`offsets.retention.minutes`). A query that had stood still for
longer than that could not tell whether its last epoch is in the topics: it is refused, and does not guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retry_topic.spark.kafka.availability import insist
from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from retry_topic.brokers.kafka.groups import Groups

MARKS = "wheelsched.epochs"
_DONE = "done"


@dataclass(frozen=True, slots=True)
class Part:
    """What one task writes.

    Args:
        writer: of a stream `query-<id>`, of a batch `job-<job id>`.
        epoch: from 0 up; a batch has the one.
        number: of the part, from 0 up.
    """

    writer: str
    epoch: int
    number: int

    @property
    def name(self) -> str:
        """Of its transactions, and of the group that has its mark."""
        return f"wheelsched-{self.writer}-{self.number}"


def note_epoch(groups: Groups, part: Part, *, in_doubt: bool) -> bool:
    """Note that the epoch is at work; whether it is done already.

    Args:
        groups: of the cluster.
        part: which is to be written.
        in_doubt: go on where nothing is known of earlier epochs.

    Raises:
        Rejected: the epoch is over, or is one of a writer of whom nothing is known any more; nothing was written.
        BrokerError: the cluster does not answer.
    """
    group = _group(part.writer)
    known = _read(groups, group)
    if known is None and part.epoch > 0 and not in_doubt:
        raise Rejected(
            f"the cluster knows nothing of what {part.writer} has written before epoch {part.epoch}; it forgets that "
            "after offsets.retention.minutes. The epoch may be in the topics in part: nothing was written. Look there, "
            "then set option in_doubt to write, or begin with a new checkpoint behind it"
        )
    if known is not None and known[0] > part.epoch:
        raise Rejected(f"epoch {part.epoch} of {part.writer} is over: nothing was written")
    if known is None or known[0] < part.epoch:
        insist(lambda: groups.put(group, [_mark(part.epoch, "")]))
        return False
    return known[1] == _DONE


def close_epoch(groups: Groups, writer: str, epoch: int) -> None:
    """All parts of an epoch are written: from now on nothing more is, however it may be cut.

    Raises:
        BrokerError: the cluster does not answer.
    """
    insist(lambda: groups.put(_group(writer), [_mark(epoch, _DONE)]))


def rows_written(groups: Groups, part: Part) -> int | None:
    """How many rows of a part are in the topics, None when the part is not.

    Raises:
        Rejected: a later epoch of the part is there; nothing was written.
        BrokerError: the cluster does not answer.
    """
    known = _read(groups, part.name)
    if known is None or known[0] < part.epoch:
        return None
    if known[0] > part.epoch:
        raise Rejected(f"epoch {part.epoch} of {part.writer} is over: nothing was written")
    return int(known[1])


def mark_of(part: Part, rows: int) -> TopicPartition:
    """What is committed with the rows of a part, by the group of its name."""
    return _mark(part.epoch, str(rows))


def _group(writer: str) -> str:
    return f"wheelsched-{writer}-epochs"  # a job may be called as a part is: no part ends so


def _mark(epoch: int, text: str) -> TopicPartition:
    from confluent_kafka import TopicPartition

    return TopicPartition(MARKS, 0, epoch + 1, text)


def _read(groups: Groups, group: str) -> tuple[int, str] | None:
    """The last epoch of a group, with the text beside it; no transaction that concerns it is open any more."""
    place = next(iter(insist(lambda: groups.places(group, [_mark(0, "")]))), None)
    return None if place is None else (place.offset - 1, place.metadata or "")
