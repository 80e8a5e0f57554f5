"""Failed messages that no retry service takes in: they lie in a retry topic, where neither store nor policy knows them.

Read for `stats`, `ls` and `doctor` of topics that are streams; on Kafka `wheel-sched kafka lag` tells how far each
group's intake is. A few small commands a retry topic; nothing is changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from retry_topic.brokers.protocol import Backlog, BacklogBroker, Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.headers import read
from wheel_sched.cli.output import span
from wheel_sched.config import Settings
from wheel_sched.errors import BrokerError

_SUFFIX = ".retry"
_SILENT_MS = 10_000  # a service asks for records once a second


@dataclass(frozen=True, slots=True)
class Untaken:
    """Retries of a group that wait in its retry topic, with no service that asks for them.

    Args:
        group: whose they are; "" when neither topic nor record says.
        topic: where they wait.
        waiting: how many.
        oldest_ms: since when the first one does, epoch ms, where that is known.
        silent_ms: how long no service has asked; None: none is there.
    """

    group: str
    topic: str
    waiting: int
    oldest_ms: int | None
    silent_ms: int | None

    @property
    def command(self) -> str:
        """What takes them in."""
        named = "" if self.topic == f"{self.group}{_SUFFIX}" else f" --retry-topic {self.topic}"
        return f"wheel-sched serve {self.group or 'GROUP'}{named}"

    def what(self, now_ms: int) -> str:
        """In words, without the mend."""
        since = "" if self.oldest_ms is None else f" {span(max(0, now_ms - self.oldest_ms))}"
        first = "" if not since else f", since{since}" if self.waiting == 1 else f", the oldest since{since}"
        verb, them = ("waits", "it") if self.waiting == 1 else ("wait", "them")
        retries = "1 retry" if self.waiting == 1 else f"{self.waiting:,} retries"
        seen = "" if self.silent_ms is None else f" (the last service asked {span(self.silent_ms)} ago)"
        return f"{retries} {verb} in {self.topic}{first}, and nobody takes {them} in{seen}"

    def line(self, now_ms: int) -> str:
        """In words, with the command that mends it."""
        return f"{self.what(now_ms)}: start `{self.command}`"

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON-able data."""
        return {name: getattr(self, name) for name in self.__slots__}


def untaken_at(client: Any, settings: Settings) -> list[Untaken]:
    """`untaken` of the topics on a store's server; none where topics are Kafka's."""
    if settings.kafka is not None:
        return []
    broker = RedisStreamsBroker(client, prefix=settings.prefix)
    try:
        return untaken(broker, settings.retry_topic)
    finally:
        broker.close()


def untaken(broker: Broker, named: str | None = None) -> list[Untaken]:
    """What waits in retry topics with no service that asks for it.

    Args:
        broker: where the topics are; one that cannot say what waits has none.
        named: a retry topic that is not named after its group. Defaults to none.

    Raises:
        BrokerError: the broker refused or could not answer.
    """
    if not isinstance(broker, BacklogBroker):
        return []
    found = []
    for topic in sorted(broker.topics()):
        if topic == named:
            group = _group_of(broker.backlog(topic, ""))
        elif topic.endswith(_SUFFIX) and topic != _SUFFIX:
            group = topic.removesuffix(_SUFFIX)
        else:
            continue
        there = broker.backlog(topic, group)
        if there.waiting and (there.silent_ms is None or there.silent_ms > _SILENT_MS):
            oldest_ms = there.oldest.source.timestamp_ms if there.oldest is not None and there.oldest.source else None
            found.append(Untaken(group, topic, there.waiting, oldest_ms, there.silent_ms))
    return found


def _group_of(there: Backlog) -> str:
    """Whose retries they are, by the first record of the topic."""
    return "" if there.oldest is None else read(there.oldest.headers).consumer_group or ""


def told(broker: Broker, named: str | None = None) -> list[str]:
    """The same in words, for listings."""
    now_ms = time.time_ns() // 1_000_000
    try:
        return [one.line(now_ms) for one in untaken(broker, named)]
    except BrokerError as error:  # a right that is missing keeps nothing else from being shown
        return [f"retry topics could not be looked at: {error}"]
