"""Finds failed messages that no retry service reads: they are in a retry topic, and the store does not know them.

`stats`, `list` and `doctor` report them for topics that are Redis streams. For topics on Kafka these commands point to
`wheel-sched kafka lag`, which shows how far the intake of each group is. A topic counts as a retry topic when its name
ends with `.retry`, or when its oldest record was written by a consumer for a retry service. The cost is a few small
commands for each topic. Nothing is changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from retry_topic.brokers.protocol import Backlog, BacklogBroker, Broker
from retry_topic.message.headers import RetryState, read
from wheel_sched.cli.output import span
from wheel_sched.errors import BrokerError

NOT_ON_KAFKA = "not looked at on Kafka: `wheel-sched kafka lag GROUP` shows how far the intake is"
_SUFFIX = ".retry"
_NO_RETRIES = (".redelivery", ".dead")  # endings of a group's other topics, which hold no retries
_SILENT_MS = 10_000  # a service asks for records once a second


@dataclass(frozen=True, slots=True)
class UntakenRetries:
    """Retries that wait in a group's retry topic, which no service reads.

    Args:
        group: the group; "" when neither the topic nor its oldest record names it.
        topic: the retry topic.
        waiting: how many retries wait.
        oldest_ms: when the oldest one was written, epoch ms; None when that is unknown.
        silent_ms: how long no service has read the topic; None when none ever did.
    """

    group: str
    topic: str
    waiting: int
    oldest_ms: int | None
    silent_ms: int | None

    @property
    def command(self) -> str:
        """The command that starts a service for this retry topic."""
        named = f" --retry-topic {self.topic}" if self._is_named else ""
        return f"wheel-sched serve {self.group or 'GROUP'}{named}"

    @property
    def fix(self) -> str:
        """Advice for the user: start the service, with the names of all the group's topics. Only one is known here."""
        others = ", and with the --redelivery-topic and --dead-topic that its consumers have" if self._is_named else ""
        return f"start `{self.command}`{others}"

    @property
    def _is_named(self) -> bool:
        return self.topic != f"{self.group}{_SUFFIX}"

    def what(self, now_ms: int) -> str:
        """A sentence that says which retries wait and for how long."""
        long = "" if self.oldest_ms is None else f" {span(max(0, now_ms - self.oldest_ms))}"
        first = "" if not long else f", for{long}" if self.waiting == 1 else f", the oldest for{long}"
        verb, them = ("waits", "it") if self.waiting == 1 else ("wait", "them")
        retries = "1 retry" if self.waiting == 1 else f"{self.waiting:,} retries"
        seen = "" if self.silent_ms is None else f" (the last service asked {span(self.silent_ms)} ago)"
        return f"{retries} {verb} in {self.topic}{first}, and no service reads {them}{seen}"

    def line(self, now_ms: int) -> str:
        """One line: which retries wait and for how long, and how to start the service that reads them."""
        return f"{self.what(now_ms)}: {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON output."""
        return {name: getattr(self, name) for name in self.__slots__}


def untaken_retries(broker: Broker, named: str | None = None) -> list[UntakenRetries]:
    """Find the retry topics that hold messages and that no service reads.

    Args:
        broker: the broker of the topics. For a broker that cannot count a group's records, the result is empty.
        named: a retry topic that is not named after its group. Defaults to None.

    Raises:
        BrokerError: the broker refused or did not answer.
    """
    if not isinstance(broker, BacklogBroker):
        return []
    found = []
    for topic, records in sorted(broker.topics().items()):
        if topic.endswith(_SUFFIX) and topic not in (_SUFFIX, named):
            group = topic.removesuffix(_SUFFIX)
        elif topic == named or (records and not topic.endswith(_NO_RETRIES)):  # an empty one may not even be a stream
            state = _first_of(broker.backlog(topic, ""))
            if topic != named and not _is_untaken(state):
                continue
            group = state.consumer_group or ""
        else:
            continue
        there = broker.backlog(topic, group)
        if there.waiting and (there.silent_ms is None or there.silent_ms > _SILENT_MS):
            oldest_ms = there.oldest.source.timestamp_ms if there.oldest is not None and there.oldest.source else None
            found.append(UntakenRetries(group, topic, there.waiting, oldest_ms, there.silent_ms))
    return found


def _first_of(there: Backlog) -> RetryState:
    """The retry state of a topic's oldest record; an empty state when there is no record."""
    return RetryState() if there.oldest is None else read(there.oldest.headers)


def _is_untaken(state: RetryState) -> bool:
    """Whether a consumer wrote this record, for its group's retry service to take in.

    The headers show who wrote a record. A consumer writes the time at which the failed attempt started. A retry service
    removes that time, and writes the name of the policy that decided. So a record with a start time comes from a
    consumer, and so does a record without a policy.
    """
    by_consumer = state.started_ms is not None or state.policy is None
    return state.dialect == "own" and state.attempt > 0 and state.consumer_group is not None and by_consumer


def untaken_lines(broker: Broker, named: str | None = None) -> list[str]:
    """The retry topics whose records no service takes in, as lines of text for listings."""
    if not isinstance(broker, BacklogBroker):
        return [f"retry topics are {NOT_ON_KAFKA}"]
    now_ms = time.time_ns() // 1_000_000
    try:
        return [one.line(now_ms) for one in untaken_retries(broker, named)]
    except BrokerError as error:  # without the right to look, the rest is still shown
        return [f"retry topics could not be looked at: {error}"]
