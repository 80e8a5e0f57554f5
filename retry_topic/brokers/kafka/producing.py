"""Sends messages to Kafka: `Placing` adapts each message to its topic, `Producing` sends a batch.

All threads share one idempotent producer. Each message gets its own answer, and one failure does not affect the others.
Cost of a message: about 2 us in Python, two look-ups in a dictionary, and the time of librdkafka. Any thread may use
both classes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from retry_topic.brokers.kafka.faults import error_of, publish_failure, unknown_topic
from retry_topic.brokers.kafka.records import to_record
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.message import Message
from wheel_sched.errors import BrokerError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_AGAIN_S = 60.0  # how often a topic's settings are read
_BOUNDS = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")  # from Kafka 3.6 on; before it
_UNANSWERED = PublishFailure("the broker has not answered in time", in_doubt=True)


def produce(producer: Any, message: Message, reported: Callable[[Any, Any], None]) -> PublishFailure | None:
    """Give one message to librdkafka. Returns None, or why librdkafka refused the message.

    If it returns None, librdkafka later calls `reported(error, record)` with the result.
    """
    while True:
        try:
            value, headers = to_record(message)
            producer.produce(
                message.topic,
                value,
                message.key,
                headers=headers,
                partition=-1 if message.partition is None else message.partition,  # -1: the partitioner's choice
                timestamp=message.timestamp_ms or 0,  # 0: now
                on_delivery=reported,
            )
        except BufferError:  # the queue is full: wait until some messages are sent
            producer.poll(0.05)
        except (KafkaException, ValueError, TypeError) as error:
            return publish_failure(error, message.topic)
        else:
            return None


class Producing:
    """The producer of a broker. It waits for all delivery reports, at most two seconds longer than `timeout_s`.

    Args:
        settings: librdkafka's settings.
        partitions: gives the number of partitions of a topic, 0 for an absent topic.
        timeout_s: the longest time for the delivery of a message.
    """

    def __init__(self, settings: Mapping[str, Any], partitions: Callable[[str], int], timeout_s: float) -> None:
        self._producer = Producer(dict(settings))
        self._partitions = partitions
        self._timeout_s = timeout_s

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish messages. Returns one answer for each message: None when the broker has it."""
        answers: list[PublishFailure | None] = [_UNANSWERED] * len(messages)

        def reporter(index: int) -> Callable[[Any, Any], None]:
            def reported(error: Any, _: Any) -> None:
                answers[index] = None if error is None else publish_failure(error_of(error), messages[index].topic)

            return reported

        for index, message in enumerate(messages):
            if not self._partitions(message.topic):
                answers[index] = unknown_topic(message.topic)
                continue
            failure = produce(self._producer, message, reporter(index))
            if failure is not None:
                answers[index] = failure
        until_s = time.monotonic() + self._timeout_s + 2
        while _UNANSWERED in answers and time.monotonic() < until_s:
            self._producer.poll(0.01)  # a short wait: another thread's poll may have taken our reports
        return answers

    def close(self) -> None:
        """Wait up to two seconds for messages in flight. Idempotent."""
        self._producer.flush(2)


@dataclass(slots=True)
class _TopicLimits:
    """What was last read about a topic: its number of partitions, and the age up to which it keeps timestamps."""

    partitions: int
    oldest_ms: float
    looked_s: float


class Placing:
    """Gives a message a partition and a timestamp that its topic accepts.

    If the topic lacks the message's partition, the key decides the partition. A timestamp is kept while its age is less
    than half of the topic's limit. The limit is the least of `retention.ms` (if the topic deletes) and the topic's
    bounds for timestamps. An older timestamp, or one in the future, is replaced by the time of sending. Otherwise Kafka
    would delete an old record before a consumer reads it, because retention uses the records' timestamps, or would
    refuse the record because of a bound. The other half of the limit is the time that consumers have for reading. If
    this client may not read the topic's settings, no timestamp is kept, and a warning says so.

    A topic's settings are read at its first message, and then once a minute in another thread.

    Args:
        topology: the cluster's topics.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[str, _TopicLimits] = {}
        self._warned: set[str] = set()

    def placed(self, messages: Iterable[Message]) -> list[Message]:
        """The messages with partitions and times that their topics accept.

        Raises:
            BrokerUnavailable: the cluster does not answer, and a topic is not known yet.
        """
        now_ms = time.time_ns() // 1_000_000
        return [
            message
            if message.partition is None and message.timestamp_ms is None
            else _on(self._limits(message.topic), message, now_ms)
            for message in messages
        ]

    def _limits(self, topic: str) -> _TopicLimits:
        known = self._known.get(topic)
        if known is None:
            return self._look(topic, self._topology.partitions(topic))
        if time.monotonic() - known.looked_s > _AGAIN_S:
            known.looked_s = time.monotonic()  # set before the thread starts, so that only one thread is started
            threading.Thread(target=self._look_again, args=(topic,), name="kafka-placing", daemon=True).start()
        return known

    def _look_again(self, topic: str) -> None:
        try:
            self._look(topic, self._topology.counted(topic))
        except BrokerError as error:
            logger.info("kafka.not_looked_at: %s: %s", topic, error)

    def _look(self, topic: str, partitions: int) -> _TopicLimits:
        limits = _TopicLimits(partitions, 0.0, time.monotonic())
        if not partitions:
            return limits  # the topic is absent, and the broker refuses the message for that reason
        settings = self._topology.settings_of(topic)
        if settings is not None:
            limits.oldest_ms = oldest_ms(settings)
        elif topic not in self._warned:
            self._warned.add(topic)
            logger.warning(
                "kafka.times_not_kept: the settings of topic %r may not be read: messages sent to it get the time of "
                "sending; give this client's principal the right DESCRIBE_CONFIGS to the topic",
                topic,
            )
        self._known[topic] = limits
        return limits


def oldest_ms(settings: Mapping[str, str]) -> float:
    """The age in ms up to which a topic with these settings keeps a timestamp."""
    bounds = [settings.get(name, "") for name in _BOUNDS]
    if "delete" in settings.get("cleanup.policy", "delete"):
        bounds.append(settings.get("retention.ms", ""))
    return min((int(bound) / 2 for bound in bounds if bound.isdigit()), default=float("inf"))  # -1: for ever


def _on(limits: _TopicLimits, message: Message, now_ms: int) -> Message:
    partition, at_ms = message.partition, message.timestamp_ms
    there = partition is None or 0 <= partition < limits.partitions
    kept = at_ms is None or (0 < at_ms <= now_ms and now_ms - at_ms < limits.oldest_ms)
    if there and kept:
        return message
    value, key, headers = message.value, message.key, message.headers
    return Message(
        message.topic,
        value,
        key,
        headers,
        message.source,
        message.reference,
        partition if there else None,
        at_ms if kept else None,
    )
