"""The valve of a member's buffer: back-pressure by records and by bytes, without leaving the group.

A client that was paused takes about half a second to fetch again (librdkafka's broker threads sleep meanwhile). So a
buffer that is full is waited for a moment first, without a poll: whoever is busy takes of it soon, and the client's own
queue is full behind it. Only when nobody does, since handlers stand still, the client is paused and polled on, which
keeps it in its group and lets it see a rebalance.

One thread, the polling one, under no lock of its own.
"""

from __future__ import annotations

import time
from typing import Any

from retry_topic.brokers.kafka.hands import Hands
from retry_topic.brokers.kafka.pausing import Pausing

FULL, LOW = 1_000, 250  # records in the buffer at which fetching pauses, and goes on
_STILL_S = 0.2  # a buffer that is full for longer has handlers that stand still


class Valve:
    """See the module.

    Args:
        hands: whose buffer it is.
        full_bytes: at which it is full, whatever the number of records.
    """

    def __init__(self, hands: Hands, full_bytes: int) -> None:
        self._hands = hands
        self._full_bytes = full_bytes
        self._full_s: float | None = None
        self.pausing = Pausing()

    @property
    def full(self) -> bool:
        """Whether no more is to be taken from the client."""
        return self._hands.fetched >= FULL or self._hands.fetched_bytes >= self._full_bytes

    def waits(self) -> bool:
        """Whether to wait a moment for room instead of polling."""
        if not self.full or self.pausing:
            self._full_s = None
            return False
        if self._full_s is None:
            self._full_s = time.monotonic()
        return time.monotonic() - self._full_s < _STILL_S

    def turn(self, client: Any) -> None:
        """Pause fetching while the buffer is full, and let it go on when there is room again."""
        hands = self._hands
        if self.full:
            self.pausing.pause(client)
        elif self.pausing and hands.fetched <= LOW and hands.fetched_bytes <= self._full_bytes // 4:
            self.pausing.resume(client)
