"""Producing a batch: each message gets its own answer, and one failure does not affect the others.

All threads share one idempotent producer. `publish` produces the batch and then serves delivery reports until all have
come or `timeout_s` is over. Cost: about 2 us per message in Python, plus the time of librdkafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from retry_topic.brokers.kafka.faults import error_of, publish_failure, unknown_topic
from retry_topic.brokers.kafka.records import to_record
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.message import Message

_UNANSWERED = PublishFailure("the broker has not answered in time", in_doubt=True)


def produce(producer: Any, message: Message, reported: Callable[[Any, Any], None]) -> PublishFailure | None:
    """Give one message to librdkafka. Answers its refusal; None: librdkafka calls `reported(error, record)` later."""
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
    """The producer of a broker.

    Args:
        settings: librdkafka's settings.
        partitions: the number of partitions of a topic; 0: the topic is absent.
        timeout_s: the longest time for the delivery of a message.
    """

    def __init__(self, settings: Mapping[str, Any], partitions: Callable[[str], int], timeout_s: float) -> None:
        self._producer = Producer(dict(settings))
        self._partitions = partitions
        self._timeout_s = timeout_s

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish messages. Answers in order; None: the broker has the message."""
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
            self._producer.poll(0.01)  # short: another thread's poll may have served our reports
        return answers

    def close(self) -> None:
        """Wait up to two seconds for messages in flight. Idempotent."""
        self._producer.flush(2)
