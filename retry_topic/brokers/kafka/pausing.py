"""Which partitions of a client are paused, so that none is paused, or left paused, when that makes it deaf.

A partition that is paused when it goes comes back paused, and librdkafka drops what is asked of one that has just come
when the next is asked too soon: paused or resumed at once it forgets where it was to begin, and is not read again (its
issues 2190 and 5591). So a partition is paused only once a record of it has come, and a client that is given back one
that went paused is to be replaced by a new one, which knows of no pause.

One thread, the client's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import TopicPartition

Place = tuple[str, int]


class Pausing:
    """The pauses of one client after the other."""

    def __init__(self) -> None:
        self._flowing: set[Place] = set()
        self._paused: set[Place] = set()
        self._went_paused: set[Place] = set()

    def __bool__(self) -> bool:
        """Whether something is paused."""
        return bool(self._paused)

    def begin(self) -> None:
        """There is another client, or none."""
        for places in (self._flowing, self._paused, self._went_paused):
            places.clear()

    def flow(self, places: Iterable[Place]) -> None:
        """Records of these have come."""
        self._flowing.update(places)

    def pause(self, client: Any) -> None:
        """No more of those that flow."""
        fresh = self._flowing - self._paused
        if fresh:
            client.pause([TopicPartition(*place) for place in fresh])
            self._paused |= fresh

    def resume(self, client: Any) -> None:
        """All go on."""
        client.resume([TopicPartition(*place) for place in self._paused])
        self._paused.clear()

    def lose(self, places: Iterable[Place]) -> None:
        """These go."""
        gone = {*places}
        self._went_paused |= self._paused & gone
        self._paused -= gone
        self._flowing -= gone

    def are_deaf(self, places: Iterable[Place]) -> bool:
        """Whether one of those that come would not be read by this client."""
        return not self._went_paused.isdisjoint(places)
