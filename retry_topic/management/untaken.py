"""Finds failed messages that no retry service reads. They are in a retry topic, and the store does not know them.

`stats`, `list` and `doctor` report these messages if topics are Redis streams. If topics are on Kafka, these commands
name `wheel-sched kafka lag`, which shows how many records the intake of each group has not read. In both cases, `stats`
and `doctor` also report groups that have live consumers and no live service. A topic counts as a retry topic when its
name ends with `.retry`, or when a consumer wrote its oldest record for a retry service. Each topic costs a few small
commands. The functions change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from retry_topic.brokers.protocol import Backlog, BacklogBroker, Broker
from retry_topic.message.headers import RetryState, read
from wheel_sched.errors import BrokerError
from wheel_sched.management.members import place
from wheel_sched.management.problem import Problem
from wheel_sched.management.wording import span
from wheel_sched.store import LiveMember

NOT_ON_KAFKA = "not looked at on Kafka: `wheel-sched kafka lag GROUP` shows how far the intake is"
_SUFFIX = ".retry"
_REDELIVERY = ".redelivery"
_NO_RETRIES = (_REDELIVERY, ".dead")  # how the names of a group's other topics end; they hold no retries
_NAMED = 5  # groups in one command
_SILENT_MS = 10_000  # a service asks for records once a second


@dataclass(frozen=True, slots=True)
class UntakenRetries:
    """Retries that wait in a group's retry topic, which no service reads.

    Args:
        group: the group; "" when neither the topic nor its oldest record names it.
        topic: the retry topic.
        waiting: how many retries wait.
        oldest_ms: when the oldest retry was written, epoch ms; None when that is unknown.
        silent_ms: for how long no service has read the topic; None when no service has ever read it.
        announced: the live service that should read the topic, in words. Defaults to "": there is none.
    """

    group: str
    topic: str
    waiting: int
    oldest_ms: int | None
    silent_ms: int | None
    announced: str = ""

    @property
    def fix(self) -> str:
        """Advice for the user: start the service. If a live service should read the topic, first see its log."""
        start = start_service(self.group, self.topic)
        return f"see the log of {self.announced}; if it has died, {start}" if self.announced else start

    def what(self, now_ms: int) -> str:
        """A sentence that says which retries wait and for how long."""
        long = "" if self.oldest_ms is None else f" {span(max(0, now_ms - self.oldest_ms))}"
        first = "" if not long else f", for{long}" if self.waiting == 1 else f", the oldest for{long}"
        verb, them = ("waits", "it") if self.waiting == 1 else ("wait", "them")
        retries = "1 retry" if self.waiting == 1 else f"{self.waiting:,} retries"
        seen = "" if self.silent_ms is None else f" (the last service asked {span(self.silent_ms)} ago)"
        return f"{retries} {verb} in {self.topic}{first}, and no service reads {them}{seen}"

    def line(self, now_ms: int) -> str:
        """A line of text: which retries wait and for how long, and how to start the service that reads them."""
        return f"{self.what(now_ms)}: {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON output."""
        return {name: getattr(self, name) for name in self.__slots__}


def start_service(group: str, topic: str) -> str:
    """Advice to start the service of a group. If its retry topic does not have the default name, the advice gives the
    name, and tells the user to add the names of the group's other two topics.

    Args:
        group: the group; "" when it is unknown.
        topic: the group's retry topic.
    """
    if topic == f"{group}{_SUFFIX}":
        return f"start `wheel-sched serve {quote(group)}`"
    others = "and with the --redelivery-topic and --dead-topic that its consumers have"
    return f"start `wheel-sched serve {quote(group or 'GROUP')} --retry-topic {quote(topic)}`, {others}"


def service_for(topics: Sequence[str], members: Sequence[LiveMember]) -> str:
    """The command that starts the service of the groups whose messages wait; "" when no group can be found.

    A group is found by the name of its redelivery topic, or by a live consumer that reads one of the topics.
    """
    groups = {
        topic.removesuffix(_REDELIVERY) for topic in topics if topic.endswith(_REDELIVERY) and topic != _REDELIVERY
    }
    groups |= {one.member.name for one in members if one.member.retries_to and {*one.member.topics} & {*topics}}
    return f"`wheel-sched serve {' '.join(map(quote, sorted(groups)[:_NAMED]))}`" if groups else ""


@dataclass(frozen=True, slots=True)
class UnservedGroup:
    """A group whose live consumers write failed messages to a retry topic that no live service takes in.

    The messages may be taken in all the same, by a service that does not announce itself, or by Spark's intake.
    """

    group: str
    topic: str

    @property
    def what(self) -> str:
        """A sentence that says what is missing."""
        return f"consumers of {self.group} write failed messages to {self.topic}, and no live service takes them in"

    @property
    def fix(self) -> str:
        """Advice for the user: start the service."""
        return start_service(self.group, self.topic)


def unserved_groups(members: Sequence[LiveMember]) -> list[UnservedGroup]:
    """Find the groups that have live consumers and no live service, from `members`. Sends no request."""
    taken = {topic for one in members for topic in one.member.takes_in}
    wanted = {(one.member.name, one.member.retries_to) for one in members if one.member.retries_to}
    return [UnservedGroup(group, topic) for group, topic in sorted(wanted) if topic not in taken]


def untaken_retries(
    broker: Broker, named: str | None = None, members: Sequence[LiveMember] = (), now_ms: int = 0
) -> list[UntakenRetries]:
    """Find the retry topics that hold messages and that no service reads.

    Args:
        broker: the broker of the topics. If it cannot count a group's records, the result is empty.
        named: a retry topic that is not named after its group. Defaults to None.
        members: the live members of the namespace. Defaults to none.
        now_ms: the store's time, for words about members. Defaults to 0.

    Raises:
        BrokerError: the broker refused or did not answer.
    """
    if not isinstance(broker, BacklogBroker):
        return []
    found = []
    for topic, records in sorted(broker.topics().items()):
        if topic.endswith(_SUFFIX) and topic not in (_SUFFIX, named):
            group = topic.removesuffix(_SUFFIX)
        elif topic == named or (records and not topic.endswith(_NO_RETRIES)):  # an empty topic may have no stream
            state = _first_of(broker.backlog(topic, ""))
            if topic != named and not _is_untaken(state):
                continue
            group = state.consumer_group or ""
        else:
            continue
        there = broker.backlog(topic, group)
        if there.waiting and (there.silent_ms is None or there.silent_ms > _SILENT_MS):
            oldest_ms = there.oldest.source.timestamp_ms if there.oldest is not None and there.oldest.source else None
            services = [one for one in members if topic in one.member.takes_in]
            announced = place(max(services, key=lambda one: one.seen_ms), now_ms) if services else ""
            found.append(UntakenRetries(group, topic, there.waiting, oldest_ms, there.silent_ms, announced))
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


@dataclass(frozen=True, slots=True)
class MissingServices:
    """The retry services that are missing, as far as retry topics and live members show it.

    Args:
        untaken: retries that no service reads; None if the topics were not looked at.
        unserved: groups that have consumers and no service, without the groups in `untaken`.
        refused: why the broker did not answer; "" when it answered.
    """

    untaken: Sequence[UntakenRetries] | None
    unserved: Sequence[UnservedGroup]
    refused: str = ""

    def problems(self, now_ms: int) -> list[Problem]:
        """All problems, the most serious first. `now_ms` is the store's time, epoch ms."""
        found = [Problem(one.what(now_ms), one.fix, "problem") for one in self.untaken or ()]
        if self.refused:
            found.append(Problem(self.refused, "see the rights on the broker", "warn"))
        found.extend(Problem(group.what, group.fix, "warn") for group in self.unserved)
        return found


def missing_services(
    broker: Broker | None, named: str | None, members: Sequence[LiveMember], now_ms: int
) -> MissingServices:
    """Find the retry services that are missing. If the broker refuses, only `unserved` is found.

    Args:
        broker: as for `untaken_retries`. If it is None or cannot count a group's records, topics are not looked at.
        named: as for `untaken_retries`.
        members: the live members of the namespace.
        now_ms: the store's time.
    """
    untaken: list[UntakenRetries] | None = None
    refused = ""
    if isinstance(broker, BacklogBroker):
        try:
            untaken = untaken_retries(broker, named, members, now_ms)
        except BrokerError as error:
            refused = f"retry topics could not be looked at: {error}"
    known = {one.topic for one in untaken or ()}
    return MissingServices(untaken, [one for one in unserved_groups(members) if one.topic not in known], refused)


def untaken_lines(broker: Broker, named: str | None, members: Sequence[LiveMember]) -> list[str]:
    """The retry topics whose records no service takes in, as lines of text for listings."""
    now_ms = time.time_ns() // 1_000_000
    found = missing_services(broker, named, members, now_ms)
    if found.refused:
        return [found.refused]
    if found.untaken is None:
        return [f"retry topics are {NOT_ON_KAFKA}"]
    return [one.line(now_ms) for one in found.untaken]
