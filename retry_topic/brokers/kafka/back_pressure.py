"""Back-pressure by records and by bytes, without leaving the group.

A client that was paused needs about half a second until it fetches again (librdkafka's broker threads sleep meanwhile).
So a full buffer is first waited for, for a moment and without a poll: busy handlers soon take records from it, and the
client's own queue is full behind it. Only when the handlers stand still, the client is paused and polled on. That keeps
it in its group and lets it see rebalances.

One thread, the one that polls; no lock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.offset_tracker import OffsetTracker, Place

FULL, LOW = 1_000, 250  # records in the buffer at which fetching pauses, and at which it goes on
_STILL_S = 0.2  # the handlers of a buffer that is full for longer stand still


class BackPressure:
    """Stops and resumes fetching for the buffer of one group member.

    Args:
        tracker: it has the buffer.
        full_bytes: the buffer is full at this size, whatever the number of records.
    """

    def __init__(self, tracker: OffsetTracker, full_bytes: int) -> None:
        self._tracker = tracker
        self._full_bytes = full_bytes
        self._full_s: float | None = None
        self.paused = PausedPartitions()

    @property
    def full(self) -> bool:
        """Whether no more records may be taken from the client."""
        return self._tracker.fetched >= FULL or self._tracker.fetched_bytes >= self._full_bytes

    def waits(self) -> bool:
        """Whether the poll loop shall wait a moment for room instead of polling."""
        if not self.full or self.paused:
            self._full_s = None
            return False
        if self._full_s is None:
            self._full_s = time.monotonic()
        return time.monotonic() - self._full_s < _STILL_S

    def apply(self, client: Any) -> None:
        """Pause fetching while the buffer is full, and resume it when there is room again."""
        tracker = self._tracker
        if self.full:
            self.paused.pause(client)
        elif self.paused and tracker.fetched <= LOW and tracker.fetched_bytes <= self._full_bytes // 4:
            self.paused.resume(client)


class PausedPartitions:
    """Which partitions of a client are paused.

    Two bugs of librdkafka (its issues 2190 and 5591) make a client deaf: it never reads a partition again. A partition
    that is paused when it goes comes back paused; and a client that pauses or resumes a partition that has just come
    forgets where it was to begin. So a partition is paused only after a record of it has come. A client that gets a
    partition back that went paused must be replaced by a new client, which knows of no pause.

    One thread, the client's.
    """

    def __init__(self) -> None:
        self._reading: set[Place] = set()
        self._paused: set[Place] = set()
        self._went_paused: set[Place] = set()

    def __bool__(self) -> bool:
        """Whether a partition is paused."""
        return bool(self._paused)

    def begin(self) -> None:
        """Another client begins."""
        for places in (self._reading, self._paused, self._went_paused):
            places.clear()

    def came(self, places: Iterable[Place]) -> None:
        """Records of these partitions have come."""
        self._reading.update(places)

    def pause(self, client: Any) -> None:
        """Pause all partitions of which records have come."""
        fresh = self._reading - self._paused
        if fresh:
            client.pause([TopicPartition(*place) for place in fresh])
            self._paused |= fresh

    def resume(self, client: Any) -> None:
        """Resume all paused partitions."""
        client.resume([TopicPartition(*place) for place in self._paused])
        self._paused.clear()

    def lose(self, places: Iterable[Place]) -> None:
        """These partitions go to other members."""
        gone = {*places}
        self._went_paused |= self._paused & gone
        self._paused -= gone
        self._reading -= gone

    def are_deaf(self, places: Iterable[Place]) -> bool:
        """Whether this client would never read one of these partitions, which come to it."""
        return not self._went_paused.isdisjoint(places)
