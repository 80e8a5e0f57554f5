"""Where on its topic a message goes, and which time it carries: what was asked for, as far as the topic keeps it.

A partition that a topic does not have is left to the key. A time is kept while it is younger than half of what the
topic keeps times for, which is the least of `retention.ms` (where it deletes) and the bounds of its timestamps. Beyond
that the record carries the time it is sent at: retention goes by the records' own times, so that an old one would be
deleted before anybody has read it, and a bound would have it refused. Half, since it takes its time to be read as well.
Of a topic whose settings may not be read no time is kept, for the same reason; a warning says so.

Cost: two look-ups in a dictionary a message. A topic is looked at when it is first named, and once a minute after that,
in a thread beside. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from retry_topic.brokers.kafka.topology import Topology
from retry_topic.message import Message
from wheel_sched.errors import BrokerError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_AGAIN_S = 60.0
_BOUNDS = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")  # since 3.6, and before


@dataclass(slots=True)
class _Ground:
    """A topic: how many partitions it has, and how old a time it keeps."""

    partitions: int
    oldest_ms: float
    looked_s: float


class Placing:
    """See the module.

    Args:
        topology: the cluster's topics.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[str, _Ground] = {}
        self._told: set[str] = set()

    def placed(self, messages: Iterable[Message]) -> list[Message]:
        """The messages with the partitions and times that their topics have and keep.

        Raises:
            BrokerUnavailable: the cluster does not answer, and a topic is not known from before.
        """
        now_ms = time.time_ns() // 1_000_000
        return [
            message
            if message.partition is None and message.timestamp_ms is None
            else _on(self._ground(message.topic), message, now_ms)
            for message in messages
        ]

    def _ground(self, topic: str) -> _Ground:
        known = self._known.get(topic)
        if known is None:
            return self._look(topic, self._topology.partitions(topic))
        if time.monotonic() - known.looked_s > _AGAIN_S:
            known.looked_s = time.monotonic()  # once
            threading.Thread(target=self._look_again, args=(topic,), name="kafka-placing", daemon=True).start()
        return known

    def _look_again(self, topic: str) -> None:
        try:
            self._look(topic, self._topology.counted(topic))
        except BrokerError as error:
            logger.info("kafka.not_looked_at: %s: %s", topic, error)

    def _look(self, topic: str, partitions: int) -> _Ground:
        ground = _Ground(partitions, 0.0, time.monotonic())
        if not partitions:
            return ground  # there is no such topic, and the message is refused for that
        settings = self._topology.settings_of(topic)
        if settings is not None:
            ground.oldest_ms = oldest_ms(settings)
        elif topic not in self._told:
            self._told.add(topic)
            logger.warning(
                "kafka.times_not_kept: the settings of topic %r may not be read: what is sent to it carries the time "
                "of sending; give this client's principal the right DESCRIBE_CONFIGS to the topic",
                topic,
            )
        self._known[topic] = ground
        return ground


def oldest_ms(settings: Mapping[str, str]) -> float:
    """How old a time may be for a topic of these settings to keep it, in ms."""
    bounds = [settings.get(name, "") for name in _BOUNDS]
    if "delete" in settings.get("cleanup.policy", "delete"):
        bounds.append(settings.get("retention.ms", ""))
    return min((int(bound) / 2 for bound in bounds if bound.isdigit()), default=float("inf"))  # -1: for ever


def _on(ground: _Ground, message: Message, now_ms: int) -> Message:
    partition, at_ms = message.partition, message.timestamp_ms
    there = partition is None or 0 <= partition < ground.partitions
    kept = at_ms is None or (0 < at_ms <= now_ms and now_ms - at_ms < ground.oldest_ms)
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
