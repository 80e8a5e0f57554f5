"""Where topics begin and end for readers of committed records, and which offsets one batch takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.kafka.options import EARLIEST, LATEST, Offsets
from wheel_sched.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker


def ends_of(broker: KafkaBroker, topics: Iterable[str], *, earliest: bool = False) -> Offsets:
    """For each partition, the offset after the last record that a reader of committed records can get now.

    With `earliest`: for each partition, its first offset.

    Raises:
        BrokerError: the cluster does not answer.
    """
    from confluent_kafka import TopicPartition

    def ask() -> Offsets:
        places = []
        for topic in names:
            broker.topology.forget(topic)  # the topic may have new partitions
            places += [TopicPartition(topic, number) for number in range(broker.topology.partitions(topic))]
        found: Offsets = {}
        for (topic, number), offset in broker.topology.ends(places, earliest=earliest, committed=True).items():
            found.setdefault(topic, {})[str(number)] = offset
        return found

    names = tuple(topics)
    return retry_until_available(ask)


def resolved(broker: KafkaBroker, topics: Iterable[str], wanted: int | Offsets) -> Offsets:
    """Replace `EARLIEST` and `LATEST` by numbers, for each partition.

    Raises:
        ConfigError: offsets are given for a partition that does not exist; nothing was read.
        BrokerError: the cluster does not answer.
    """
    topics = tuple(topics)
    if isinstance(wanted, int):
        return ends_of(broker, topics, earliest=wanted == EARLIEST)
    first, last = ends_of(broker, topics, earliest=True), ends_of(broker, topics)
    for topic, parts in wanted.items():
        if strange := sorted(parts.keys() - last.get(topic, {}).keys()):
            raise ConfigError(f"there is no partition {', '.join(strange)} of topic {topic}: nothing was read")
        for number, offset in parts.items():
            if offset != EARLIEST:
                first[topic][number] = last[topic][number] if offset == LATEST else offset
    return first


def check_follow(start: Offsets, ends: Offsets) -> None:
    """Raise `BrokerError` when a topic ends before `start`: it was deleted, or deleted and created again."""
    for topic, parts in start.items():
        for number, begin in parts.items():
            end = ends.get(topic, {}).get(number)
            if end is None or end < begin:
                raise BrokerError(
                    f"{topic}-{number} was read up to {begin} and now ends at {end}: it was deleted, or created again; "
                    "nothing was read; set option failOnDataLoss to false to wait at this offset, or begin with a new "
                    "checkpoint"
                )


def within(start: Offsets, ends: Offsets, most: int | None) -> Offsets:
    """The end of a batch that begins at `start`: `ends`, or earlier so that it has about `most` offsets.

    Each partition gets a share in proportion to its offsets. The end is never before the start. A new partition begins
    at offset 0.
    """
    waiting = {
        (topic, number): max(0, end - start.get(topic, {}).get(number, 0))
        for topic, parts in ends.items()
        for number, end in parts.items()
    }
    total = sum(waiting.values())
    reached: Offsets = {topic: dict(parts) for topic, parts in start.items()}
    for (topic, number), count in waiting.items():
        share = count
        if most is not None and total > most and count:
            share = max(1, count * most // total)
        reached.setdefault(topic, {})[number] = start.get(topic, {}).get(number, 0) + share
    return reached
