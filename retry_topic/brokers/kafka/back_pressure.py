"""Back-pressure by records and by bytes, without leaving the group.

After a pause, a client needs about half a second until it fetches again (librdkafka's broker threads sleep meanwhile).
So when the buffer is full, the poll loop first waits a moment without polling: busy handlers soon take records from the
buffer, and the client's own queue still has more. Only when the handlers stand still, the loop pauses the client and
polls on. So the client stays in its group and sees rebalances.

Threads: only the polling thread. No lock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.offset_tracker import OffsetTracker, Place

FULL, LOW = 1_000, 250  # fetching pauses at FULL records in the buffer and resumes at LOW
_STILL_S = 0.2  # when the buffer is full for longer, the handlers count as standing still


class BackPressure:
    """Stops and resumes fetching for the buffer of one group member.

    Args:
        tracker: the owner of the buffer.
        full_bytes: the buffer is full at this size, independently of the number of records.
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
        """Whether the poll loop should wait a moment for room instead of polling."""
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

    Two bugs of librdkafka (its issues 2190 and 5591) make a client deaf: it never reads a partition again. First, a
    partition that is paused when the client loses it is still paused when the client gets it back. Second, a client
    that pauses or resumes a newly assigned partition forgets the offset to begin at. So a partition is paused only
    after one of its records has come. A client that lost a paused partition and gets it back must be replaced by a new
    client, which knows of no pause.

    Threads: only the client's thread.
    """

    def __init__(self) -> None:
        self._reading: set[Place] = set()
        self._paused: set[Place] = set()
        self._went_paused: set[Place] = set()

    def __bool__(self) -> bool:
        """Whether a partition is paused."""
        return bool(self._paused)

    def begin(self) -> None:
        """Forget all partitions: a new client begins."""
        for places in (self._reading, self._paused, self._went_paused):
            places.clear()

    def came(self, places: Iterable[Place]) -> None:
        """Note that records of these partitions have come."""
        self._reading.update(places)

    def pause(self, client: Any) -> None:
        """Pause all partitions whose records have come."""
        fresh = self._reading - self._paused
        if fresh:
            client.pause([TopicPartition(*place) for place in fresh])
            self._paused |= fresh

    def resume(self, client: Any) -> None:
        """Resume all paused partitions."""
        client.resume([TopicPartition(*place) for place in self._paused])
        self._paused.clear()

    def lose(self, places: Iterable[Place]) -> None:
        """Note that these partitions go to other members."""
        gone = {*places}
        self._went_paused |= self._paused & gone
        self._paused -= gone
        self._reading -= gone

    def are_deaf(self, places: Iterable[Place]) -> bool:
        """Whether this client would never read one of these newly assigned partitions."""
        return not self._went_paused.isdisjoint(places)
