"""Reads single records a second time: those that hold the payloads of messages that are stored by reference.

The client joins no group and commits nothing. The first call of `fetch` makes the client. Records of one partition are
read in the order of their offsets. If the next record is far away, the client seeks to it. Any thread may call a
method; one call runs at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retry_topic.brokers.kafka.faults import error_of
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.message import Reference

_WAIT_S = 10.0  # the longest wait for one record
_FAR = 50  # if the next record is at most this many records ahead, the client reads to it; otherwise it seeks
_GONE = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)

Original = bytes | PublishFailure


class Originals:
    """Reads single records by topic, partition and offset. Any thread may call; one call runs at a time.

    Args:
        settings: librdkafka's settings of the broker.
        topology: knows which topics exist; a read of an absent topic would wait long.
    """

    def __init__(self, settings: Mapping[str, Any], topology: Topology) -> None:
        self._topology = topology
        self._settings = {
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1_024,
            "fetch.wait.max.ms": 100,
            **settings,
            "group.id": "wheel-sched-originals",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._client: Any = None
        self._lock = threading.Lock()

    def fetch(self, references: Sequence[Reference]) -> list[Original]:
        """The payload of each reference, or the reason why there is none.

        Raises:
            BrokerUnavailable: the cluster does not answer. Nothing was read.
        """
        found: list[Original] = [PublishFailure("the broker has not answered in time")] * len(references)
        order = sorted(
            range(len(references)),
            key=lambda at: (references[at].topic, references[at].partition, references[at].offset),
        )
        with self._lock:
            if self._client is None:
                self._client = Consumer(self._settings)
            position: tuple[str, int, int] | None = None  # the place of the client's next record
            last: Original | None = None
            for number, at in enumerate(order):
                reference = references[at]
                if last is not None and number and references[order[number - 1]] == reference:
                    found[at] = last
                    continue
                place = reference.topic, reference.partition
                if place[1] >= self._topology.partitions(place[0]):
                    found[at] = last = _gone(reference)
                    continue
                near = position is not None and position[:2] == place
                if not (near and position is not None and 0 <= reference.offset - position[2] <= _FAR):
                    self._client.assign([TopicPartition(*place, reference.offset)])
                found[at] = last = self._next(reference)
                position = (*place, reference.offset + 1) if isinstance(last, bytes) else None
            with contextlib.suppress(KafkaException):
                self._client.unassign()  # otherwise the client would continue to fetch
        return found

    def close(self) -> None:
        """Close the client. Idempotent."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _next(self, reference: Reference) -> Original:
        """Poll until the record of `reference` comes, or until it is known to be gone. Waits at most `_WAIT_S`."""
        until_s = time.monotonic() + _WAIT_S
        while (left_s := until_s - time.monotonic()) > 0:
            record = self._client.poll(min(left_s, 1.0))
            if record is None:
                continue
            error = record.error()
            if error is not None:
                if error.code() in _GONE:
                    return _gone(reference)
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return PublishFailure(f"original: {reference} may not be read: {error.str()}", transient=False)
                if error.fatal() or not error.retriable():
                    return PublishFailure(f"original: {reference}: {error_of(error).str()}")
            elif record.offset() > reference.offset:
                return _gone(reference)
            elif record.offset() == reference.offset:
                return bytes(record.value() or b"")
        self._topology.forget(reference.topic)
        return PublishFailure(f"original: {reference}: the broker has not answered in time")


def _gone(reference: Reference) -> PublishFailure:
    why = "retention, compaction or a deletion has taken it"
    return PublishFailure(
        f"original: the record {reference} ({reference.length:,} bytes) is gone: {why}", transient=False
    )
