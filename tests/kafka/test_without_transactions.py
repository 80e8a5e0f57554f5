"""Without transactions, killed services may publish a message twice. The copies have the same retry headers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import Message
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of

if TYPE_CHECKING:
    from conftest import Crew, Member

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT, KILLS = 3_000, 5


def test_what_comes_twice_says_so(crew_of: Callable[..., Crew], committed: Callable[[str], list[Message]]) -> None:
    """Services die before they settle all that they have published. Those messages are published again with the same
    headers `retry-id` and `retry-attempt`. Without the repetitions each message exists once."""
    crew = crew_of(broker={"transactions": False}, delay_ms=1, dispatcher={"lease_ms": 1_000, "batch": 100})
    done = redelivery_topic_of(crew.name)
    published = 0

    def feed(count: int = 250) -> None:
        nonlocal published
        numbers = range(published, min(COUNT, published + count))
        messages = [Message(retry_topic_of(crew.name), b"%d" % n, b"%d" % (n % 100)) for n in numbers]
        assert not any(crew.broker.publish(messages))
        published = numbers.stop

    def sent() -> int:
        """How many messages are in the topic beyond those that the store knows to be published."""
        return sum(crew.ends(done).values()) - crew.connection.store.counts().happened("completed")

    def unsettled(_: Member) -> bool:
        """Whether a stopped process has published messages that it has not settled."""
        if sent() <= doubled:
            return False
        time.sleep(0.05)  # time for the server to execute a settlement that was sent before the stop
        return sent() > doubled

    crew.start_service().up()
    for _ in range(KILLS):
        crew.until(lambda: not crew.busy(), crew.connection.store.counts)
        doubled = sent()
        feed()
        crew.strike(crew.services, lambda _: crew.connection.store.counts().total("leased") > 0, unsettled, feed)
        crew.start_service().up()
    feed(COUNT)
    crew.until(lambda: crew.connection.store.counts().happened("completed") == COUNT, crew.connection.store.counts)
    crew.until(crew.done, crew.connection.store.counts)
    found = committed(done)
    attempts = Counter((message.header("retry-id"), message.header("retry-attempt")) for message in found)
    values = {(message.value, message.header("retry-id"), message.header("retry-attempt")) for message in found}
    assert KILLS <= sum(attempts.values()) - len(attempts) <= crew.connection.store.counts().happened("lapsed")
    assert len(values) == len(attempts) == COUNT
    assert {int(value) for value, *_ in values} == set(range(COUNT))
