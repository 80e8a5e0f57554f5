"""Epoch marks: Kafka's record of what a writer wrote. One transaction commits the mark and its rows, or neither.

A mark is a committed offset of a consumer group without members, on a topic that stays empty. (The retry service
records the published claims of a shard in the same way.) Each part of an epoch has a mark with its number of rows.
The writer has one more mark: it names the current epoch and says whether the epoch is done.

By default the cluster deletes marks a week after the last commit (`offsets.retention.minutes`). If a query paused for
longer, nobody can know whether its last epoch is in the topics. The writer refuses such a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retry_topic.spark.kafka.availability import retry_until_available
from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from retry_topic.brokers.kafka.groups import Groups

MARKS = "wheelsched.epochs"
_DONE = "done"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an epoch that one task writes.

    Args:
        writer: the writer's name: `query-<id>` for a stream, `job-<job id>` for a batch.
        epoch: number of the epoch, from 0 up; a batch has only epoch 0.
        number: number of the part, from 0 up.
    """

    writer: str
    epoch: int
    number: int

    @property
    def name(self) -> str:
        """One name for two things: the transactional id of the part, and the group that holds the part's mark."""
        return f"wheelsched-{self.writer}-{self.number}"


def note_epoch(groups: Groups, part: Part, *, in_doubt: bool) -> bool:
    """Record at the cluster that the epoch has begun. Returns whether the epoch is done already.

    Args:
        groups: the consumer groups of the cluster.
        part: the part that the caller will write.
        in_doubt: whether to write even if the cluster has no mark of earlier epochs.

    Raises:
        Rejected: a later epoch has begun, or the cluster has no mark of the writer any more; nothing was written.
        BrokerError: the cluster does not answer.
    """
    group = _group(part.writer)
    known = _read(groups, group)
    if known is None and part.epoch > 0 and not in_doubt:
        raise Rejected(
            f"the cluster has no record of what {part.writer} wrote before epoch {part.epoch}; it deletes such records "
            "after offsets.retention.minutes. Some rows of the epoch may be in the topics: nothing was written. Check "
            "the topics, then set option in_doubt to write, or begin after this epoch with a new checkpoint"
        )
    if known is not None and known[0] > part.epoch:
        raise Rejected(f"epoch {part.epoch} of {part.writer} is over: nothing was written")
    if known is None or known[0] < part.epoch:
        retry_until_available(lambda: groups.put(group, [_mark(part.epoch, "")]))
        return False
    return known[1] == _DONE


def close_epoch(groups: Groups, writer: str, epoch: int) -> None:
    """Record at the cluster that all parts of an epoch are written. From now on no task writes any of them.

    Raises:
        BrokerError: the cluster does not answer.
    """
    retry_until_available(lambda: groups.put(_group(writer), [_mark(epoch, _DONE)]))


def rows_written(groups: Groups, part: Part) -> int | None:
    """The number of rows of a part in the topics; None when the part was not written.

    Raises:
        Rejected: a later epoch of the part was written; nothing was written now.
        BrokerError: the cluster does not answer.
    """
    known = _read(groups, part.name)
    if known is None or known[0] < part.epoch:
        return None
    if known[0] > part.epoch:
        raise Rejected(f"epoch {part.epoch} of {part.writer} is over: nothing was written")
    return int(known[1])


def mark_of(part: Part, rows: int) -> TopicPartition:
    """The mark of a part. The part's transaction commits it as an offset of the consumer group `part.name`."""
    return _mark(part.epoch, str(rows))


def _group(writer: str) -> str:
    return f"wheelsched-{writer}-epochs"  # cannot be the name of a part: that ends with a number


def _mark(epoch: int, text: str) -> TopicPartition:
    from confluent_kafka import TopicPartition

    return TopicPartition(MARKS, 0, epoch + 1, text)


def _read(groups: Groups, group: str) -> tuple[int, str] | None:
    """The epoch and the text of a group's mark. Waits until no open transaction may change it."""
    place = next(iter(retry_until_available(lambda: groups.places(group, [_mark(0, "")]))), None)
    return None if place is None else (place.offset - 1, place.metadata or "")
