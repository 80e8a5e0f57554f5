"""Origins: the topics to which due messages may return. A record's headers name a topic; the service's settings decide.

A client that can write to a retry topic can also write headers. So a topic in the headers must be one of the configured
topics. If none are configured, it must be a topic that the group reads, as the broker reports.

Cost: a few requests to the broker for each new topic. A positive answer counts for good, a negative one for a second.
Only one thread may use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from retry_topic.brokers.protocol import Broker, ReadersBroker
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.intake")

_NO_FOR_S = 1.0  # how long a negative answer counts: a group may join a topic at any time
_MOST = 1_024  # how many names of topics that the group does not read are remembered


class Origins:
    """The topics to which due messages may return.

    Args:
        broker: knows which topics a group reads.
        group: the group whose failed messages return.
        configured: only these topics are allowed. Defaults to none: the topics that the group reads.

    Raises:
        ConfigError: no topics are configured, and the broker does not know which topics a group reads.
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
        """Ask whether the group reads a topic that is not known yet. If so, the topic is allowed from now on.

        Raises:
            BrokerError: the broker could not answer. The topic stays unknown.
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
                "intake.unknown_origin: headers name the topic %r, which group %s does not read and "
                "which is not configured; its records are kept as dead letters",
                topic,
                self._group,
            )
        if len(self._refused) >= _MOST:
            self._refused.clear()
        self._refused[topic] = time.monotonic()


def origins_problems(origins: object, redelivery: str) -> list[str]:
    """The problems of the setting `origins`, one text for each.

    `redelivery` is another setting of the same service. It must be "origin" when `origins` names topics.
    """
    if not isinstance(origins, tuple) or not all(isinstance(topic, str) and topic for topic in origins):
        return [f"expected origins to be a tuple of names of topics, got: {origins!r}"]
    if origins and redelivery != "origin":
        return ["expected redelivery to be 'origin' where origins are given: no other way sends to them"]
    return []
