"""Processes that are stopped for longer than their lease and then continue: their late writes have no effect."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Message
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of

if TYPE_CHECKING:
    from conftest import Crew, Member, Until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

# The intake takes this many records from memory before it calls the broker. That call would report the lost session.
BUFFERED = 1_500
CONSUMER_PROTOCOL: dict[str, Any] = {"client": {}, "broker": {"group_protocol": "consumer"}}


class Failures:
    """Writes numbered failed messages directly to the retry topic."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.count = crew, 0

    def feed(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        messages = [Message(retry_topic_of(self.crew.name), b"%d" % n, b"%d" % (n % 100)) for n in numbers]
        assert not any(self.crew.broker.publish(messages))
        self.count = numbers.stop


def test_a_dispatcher_that_stood_still_is_fenced(
    crew_of: Callable[..., Crew],
    committed: Callable[[str], list[Message]],
    uncommitted: Callable[[str], list[Message]],
    until: Until,
) -> None:
    """A dispatcher stops for longer than its lease in the middle of a transaction. Another dispatcher aborts the
    transaction and continues. The late writes of the first one have no effect."""
    crew = crew_of(delay_ms=1, dispatcher={"lease_ms": 1_000, "batch": 100})
    failures = Failures(crew)
    done = redelivery_topic_of(crew.name)
    stopped, other = crew.start_service().up(), crew.start_service().up()

    def in_transaction(member: Member) -> bool:
        """Whether the member has open claims, and the topic has messages that are not committed."""
        return crew.has_claims(member) and crew.ends(done) != crew.ends(done, committed=True)

    def caught() -> bool:
        """Try to stop the owner in the middle of a transaction. Returns whether it is stopped there."""
        nonlocal stopped, other
        if not crew.busy():
            failures.feed(500)
        if crew.has_claims(other):
            stopped, other = other, stopped
        if crew.has_claims(stopped):
            stopped.freeze()
            if in_transaction(stopped):
                time.sleep(0.1)  # time for the broker to finish earlier requests
                if in_transaction(stopped):
                    return True
            stopped.thaw()
        return False

    until(caught, lambda: crew.services, pause_s=0)
    owner, claims = crew.shard(0)
    crew.until(lambda: crew.shard(0).owner not in ("", owner), lambda: crew.shard(0))
    crew.until(crew.done, crew.connection.store.counts)
    crew.until(lambda: len(committed(done)) == failures.count, crew.connection.store.counts)
    (_, given_back) = re.findall(
        r"ownership.resolved: shard 0: (\d+) messages of open claims were sent, (\d+) were not", other.log_text()
    )[-1]
    assert int(given_back) > 0
    assert claims
    stopped.thaw()
    crew.until(lambda: "_FENCED" in stopped.log_text(), stopped.log_text)  # the client logs this word
    crew.until(lambda: stopped.facts()["owner"] is not None)
    failures.feed(500)  # both processes run now
    crew.until(lambda: len(committed(done)) == failures.count, crew.connection.store.counts)
    crew.until(crew.done, crew.connection.store.counts)
    stopped.leave()
    other.leave()
    assert Counter(int(message.value) for message in committed(done)) == Counter(range(failures.count))
    assert len(uncommitted(done)) > failures.count, "no published message was aborted"


@pytest.mark.parametrize("groups", [{}, CONSUMER_PROTOCOL], ids=["classic", "KIP-848"])
def test_an_intake_that_stood_still_writes_nothing(
    crew_of: Callable[..., Crew], until: Until, groups: dict[str, Any]
) -> None:
    """An intake stops for longer than its session while it has records in memory. Another intake stores these records.
    The store refuses the late write of the first one."""
    crew = crew_of(delay_ms=86_400_000, batch=20, **groups)
    failures = Failures(crew)
    stopped, other = crew.start_service().up(), crew.start_service().up()
    crew.until(lambda: bool(stopped.parts and other.parts), lambda: crew.services)

    def caught() -> bool:
        """Try to stop the intake while it has `BUFFERED` records in memory. Returns whether it is stopped there."""
        if stopped.facts()["buffered"] == 0:
            failures.feed(10_000)
        if stopped.facts()["buffered"] >= BUFFERED:
            stopped.freeze()
            if stopped.facts()["buffered"] >= BUFFERED:
                return True
            stopped.thaw()
        return False

    until(caught, lambda: crew.services, pause_s=0)
    lost = stopped.parts
    assert lost
    crew.until(lambda: other.parts == set(range(crew.partitions)), lambda: crew.services)
    crew.until(lambda: crew.connection.store.counts().total("due") == failures.count, crew.connection.store.counts)
    stopped.thaw()
    crew.until(lambda: "intake.rewound" in stopped.log_text(), stopped.log_text)
    crew.until(lambda: bool(stopped.parts), lambda: crew.services)
    failures.feed(1_000)  # both processes run now
    crew.until(lambda: crew.connection.store.counts().total("due") == failures.count, crew.connection.store.counts)
    stopped.leave()
    other.leave()
    assert crew.stored("due") == Counter(range(failures.count))
