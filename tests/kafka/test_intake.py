"""An intake under load: the store has each record of a retry topic once, whichever process dies."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Message
from retry_topic.consumer.retry_record import failed_message
from retry_topic.message import Source
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.topic_names import dead_topic_of
from retry_topic.policy import Failure

if TYPE_CHECKING:
    from conftest import Crew, Member

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

STEP = 1_000
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {},
    "KIP-848": {"client": {}, "broker": {"group_protocol": "consumer"}},
}


def records(group: str, first: int, last: int) -> Iterator[Message]:
    """Failed messages as consumers write them. Of each hundred some are dead, repeated, without headers, or have
    another message's id."""
    for n in range(first, last):
        origin = Message(
            "orders", b"%d" % n, b"%d" % (n % 100), (("trace", b"%d" % n),), Source("orders", 0, str(n), 1)
        )
        failure = Failure(error_class="builtins.OSError", message=f"order {n}: no answer")
        if n % 100 in (33, 34):
            failure = replace(failure, verdict="dead")
        retry_message = failed_message(group, origin, RetryState(), failure)
        if n % 100 == 7:
            retry_message = origin.to(retry_message.topic)
        if n % 100 == 13:
            one_before = failed_message(
                group, replace(origin, source=Source("orders", 0, str(n - 1), 1)), RetryState(), failure
            )
            retry_message = origin.to(retry_message.topic, write(origin.headers, read(one_before.headers)))
        yield retry_message
        if n % 100 == 21:
            yield retry_message


def storm(crew: Crew, feed: Callable[[], None]) -> None:
    """Let three members join and get partitions, and kill them while they take in records."""
    come = [crew.start_service() for _ in range(3)]
    crew.until(lambda: all(member.parts for member in come), lambda: crew.services)
    feed()
    time.sleep(random.uniform(0, 0.3))  # so that each is killed at a random time
    for member in come:
        member.kill()
        crew.services.remove(member)


@pytest.mark.parametrize(("protocol", "kills"), [("classic", 8), ("KIP-848", 4)])
def test_each_record_is_taken_in_once_whoever_dies(
    crew_of: Callable[..., Crew], committed: Callable[[str], list[Message]], protocol: str, kills: int
) -> None:
    """Services are killed while they take in records, members join and are killed, and the store's server is killed and
    restarted. The store has each record once, and the dead letters are published."""
    crew = crew_of(delay_ms=86_400_000, cap=None, batch=100, **PROTOCOLS[protocol])
    count = 0
    crew.start_service().up()
    crew.start_service().up()

    def feed() -> None:
        nonlocal count
        assert not any(crew.broker.publish([*records(crew.name, count, count + STEP)]))
        count += STEP

    def working(member: Member) -> bool:
        """Whether the member has partitions, has taken in records, and has more to read."""
        facts = member.facts()
        return bool(facts.get("taken")) and crew.lag(facts["parts"]) > 0

    for kill in range(kills):
        feed()
        crew.strike(crew.services, working, working, feed)
        crew.start_service().up()
        if kill == kills // 3:
            storm(crew, feed)
        if kill == kills * 2 // 3:
            feed()
            crew.restart_server()
    dead = {n for n in range(count) if n % 100 in (33, 34)}
    crew.until(lambda: crew.connection.store.counts().total("due") >= count - len(dead), crew.connection.store.counts)
    crew.until(lambda: crew.connection.store.counts().total("dead") >= len(dead), crew.connection.store.counts)
    crew.until(lambda: crew.lag(range(crew.partitions)) == 0, lambda: (crew.positions(), crew.services))
    assert crew.stored("due") == Counter(n for n in range(count) if n not in dead)
    assert crew.stored("dead") == Counter(dead)
    assert {int(message.value) for message in committed(dead_topic_of(crew.name))} == dead
