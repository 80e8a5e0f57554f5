"""Failed messages that no retry service takes in: they lie in a retry topic, where neither store nor policy knows them.

Read for `stats`, `ls` and `doctor` of topics that are streams. Kafka's are not looked at here, which is said: there
`wheel-sched kafka lag` tells how far each group's intake is. A topic is a retry topic by its name, or by what its
oldest record says. A few small commands a topic; nothing is changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from retry_topic.brokers.protocol import Backlog, BacklogBroker, Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message.headers import RetryState, read
from wheel_sched.cli.forgotten import NOT_LOOKED_AT
from wheel_sched.cli.output import span
from wheel_sched.config import Settings
from wheel_sched.errors import BrokerError

_SUFFIX = ".retry"
_NO_RETRIES = (".redelivery", ".dead")  # what topics of groups end with that hold none
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
        named = f" --retry-topic {self.topic}" if self._is_named else ""
        return f"wheel-sched serve {self.group or 'GROUP'}{named}"

    @property
    def mend(self) -> str:
        """What is to be done. The other topics of a group are not known here, and its service needs them all."""
        others = ", and with the --redelivery-topic and --dead-topic that its consumers have" if self._is_named else ""
        return f"start `{self.command}`{others}"

    @property
    def _is_named(self) -> bool:
        return self.topic != f"{self.group}{_SUFFIX}"

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
        return f"{self.what(now_ms)}: {self.mend}"

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON-able data."""
        return {name: getattr(self, name) for name in self.__slots__}


def untaken_at(client: Any, settings: Settings) -> list[Untaken] | None:
    """`untaken` of the topics on a store's server; None: topics are Kafka's, and were not looked at."""
    if settings.kafka is not None:
        return None
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
    for topic, records in sorted(broker.topics().items()):
        if topic.endswith(_SUFFIX) and topic not in (_SUFFIX, named):
            group = topic.removesuffix(_SUFFIX)
        elif topic == named or (records and not topic.endswith(_NO_RETRIES)):  # without any it may be no stream at all
            state = _first_of(broker.backlog(topic, ""))
            if topic != named and not _is_untaken(state):
                continue
            group = state.consumer_group or ""
        else:
            continue
        there = broker.backlog(topic, group)
        if there.waiting and (there.silent_ms is None or there.silent_ms > _SILENT_MS):
            oldest_ms = there.oldest.source.timestamp_ms if there.oldest is not None and there.oldest.source else None
            found.append(Untaken(group, topic, there.waiting, oldest_ms, there.silent_ms))
    return found


def _first_of(there: Backlog) -> RetryState:
    """What the first record of a topic says."""
    return RetryState() if there.oldest is None else read(there.oldest.headers)


def _is_untaken(state: RetryState) -> bool:
    """Whether a record is one that a consumer handed to its group's service.

    It has failed, and says when its handler was called, or nothing of a policy yet. What a service sends on, to be
    tried again or as a dead letter, has no such start and has a policy.
    """
    handed_on = state.started_ms is not None or state.policy is None
    return state.dialect == "own" and state.attempt > 0 and state.consumer_group is not None and handed_on


def told(broker: Broker, named: str | None = None) -> list[str]:
    """The same in words, for listings."""
    if not isinstance(broker, BacklogBroker):
        return [f"retry topics are {NOT_LOOKED_AT}"]
    now_ms = time.time_ns() // 1_000_000
    try:
        return [one.line(now_ms) for one in untaken(broker, named)]
    except BrokerError as error:  # a right that is missing keeps nothing else from being shown
        return [f"retry topics could not be looked at: {error}"]
