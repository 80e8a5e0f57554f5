"""Lets replays of a dead topic run one after the other: each run has an id, and a new run ends the one before it.

The tasks of a run write under its id (`writing`). A new run takes three steps. First it opens the transactional id of
all runs of the topic, which fences another run that begins at the same time. Then it closes the epoch of the last run,
so that late tasks of that run write nothing. Last it opens the transactional ids of that run's parts, which aborts the
open transactions of late tasks. From then on earlier runs write nothing more, and readers see all that they sent.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.kafka.marks import MARKS, Part, close_epoch
from retry_topic.spark.kafka.transaction import Transaction

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.brokers.kafka.groups import Groups


def begin_run(broker: KafkaBroker, topic: str, parts: int) -> str:
    """Begin a replay of a topic with `parts` tasks. Returns the job id of the run.

    Raises:
        BrokerError: the cluster does not answer, or another run begins at the same time; nothing was written.
    """
    from confluent_kafka import TopicPartition

    groups, name = broker.groups, _name(topic)
    transaction = Transaction(broker, name)
    known = _last(groups, name)
    if known is not None:
        job, count = known
        close_epoch(groups, f"job-{job}", 0)
        for number in range(count):
            Transaction(broker, Part(f"job-{job}", 0, number).name)
    job = f"replay-{uuid.uuid4().hex}"
    transaction.begin()
    transaction.commit([TopicPartition(MARKS, 0, 1, f"{job} {parts}")])
    return job


def is_last(broker: KafkaBroker, topic: str, job: str) -> bool:
    """Whether the run `job` is still the last run of the topic: no other run has begun since."""
    known = _last(broker.groups, _name(topic))
    return known is not None and known[0] == job


def _last(groups: Groups, name: str) -> tuple[str, int] | None:
    from confluent_kafka import TopicPartition

    place = next(iter(retry_until_available(lambda: groups.places(name, [TopicPartition(MARKS, 0, 0)]))), None)
    if place is None:
        return None
    job, _, count = (place.metadata or "").partition(" ")
    return job, int(count)


def _name(topic: str) -> str:
    return f"wheelsched-runs-{topic}"
