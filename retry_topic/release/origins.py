"""Origins: the topics that due messages may go back to. A record's headers name one; the service's settings decide.

Whoever can write to a retry topic writes its headers too. So a name in them chooses nothing: it is looked up among the
configured topics, or, when none are configured, among the topics that the broker says the group reads.

Cost: one question to the broker for each new topic; a yes is kept. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from retry_topic.brokers.protocol import Broker, ReadersBroker
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.intake")

_NO_FOR_S = 1.0  # a group may join a topic at any time
_MOST = 1_024  # names of topics that the group does not read: so many are remembered


class Origins:
    """Which topics may be sent back to.

    Args:
        broker: who knows what a group reads.
        group: whose failures come back.
        configured: these and no others. Defaults to none: those that the group reads.

    Raises:
        ConfigError: none are configured, and the broker does not know who reads what.
    """

    def __init__(self, broker: Broker, group: str, configured: Sequence[str] = ()) -> None:
        self._group = group
        self._known = set(configured)
        self._reads: Callable[[str, str], bool] | None = None
        if not configured:
            if not isinstance(broker, ReadersBroker):
                raise ConfigError(
                    f"expected origins to name the topics that due messages may go back to: {type(broker).__name__} "
                    "does not know which topics a group reads; nothing was started"
                )
            self._reads = broker.reads
        self._refused: dict[str, float] = {}

    def __contains__(self, topic: object) -> bool:
        return topic in self._known

    def look_up(self, topic: str) -> None:
        """Ask whether the group reads a topic that is not known yet.

        Raises:
            BrokerError: the broker could not answer; nothing is known.
        """
        if topic in self._known:
            return
        before = self._refused.get(topic)
        if before is not None and time.monotonic() - before < _NO_FOR_S:
            return
        if self._reads is not None and self._reads(self._group, topic):
            self._known.add(topic)
            self._refused.pop(topic, None)
            return
        if before is None:
            logger.warning(
                "intake.unknown_origin: headers name the topic %r, which group %s does not read and nobody configured; "
                "its records are kept as dead letters",
                topic,
                self._group,
            )
        if len(self._refused) >= _MOST:
            self._refused.clear()
        self._refused[topic] = time.monotonic()


def origins_problems(origins: object, redelivery: str) -> list[str]:
    """What is wrong with configured origins, in words."""
    if not isinstance(origins, tuple) or not all(isinstance(topic, str) and topic for topic in origins):
        return [f"expected origins to be a tuple of names of topics, got: {origins!r}"]
    if origins and redelivery != "origin":
        return ["expected redelivery to be 'origin' where origins are given: no other way sends to them"]
    return []
