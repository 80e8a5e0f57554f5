"""Replays of a dead topic, one after the other: each has an id of its own, and ends the one before it.

A run's parts write under its id (`writing`). Whoever begins a run opens the transaction of the topic's runs, which
fences another that is just beginning; then it closes the epoch of the last run, so that a task of that which comes late
writes nothing, and opens its parts' transactions, so that what such a task has open is aborted. From then on what the
cluster has of earlier runs is all there will be, and can be read.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from retry_topic.spark.kafka.marks import MARKS, Part, close_epoch
from retry_topic.spark.kafka.availability import insist
from retry_topic.spark.kafka.transaction import Transaction

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.brokers.kafka.groups import Groups


def begin_run(broker: KafkaBroker, topic: str, parts: int) -> str:
    """Begin a replay of a topic that is cut into so many parts; its job id.

    Raises:
        BrokerError: the cluster does not answer, or another run begins at this moment; nothing was written.
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
    """Whether nobody has begun another run since."""
    known = _last(broker.groups, _name(topic))
    return known is not None and known[0] == job


def _last(groups: Groups, name: str) -> tuple[str, int] | None:
    from confluent_kafka import TopicPartition

    place = next(iter(insist(lambda: groups.places(name, [TopicPartition(MARKS, 0, 0)]))), None)
    if place is None:
        return None
    job, _, count = (place.metadata or "").partition(" ")
    return job, int(count)


def _name(topic: str) -> str:
    return f"wheelsched-runs-{topic}"
