"""The store's primary dies and a replica takes its place, with all it had acknowledged or without the last of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import redis

from retry_topic import Home, Message, RetryPolicy, RetryService, ServiceConfig
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import StoreError
from wheel_sched.store import open_store
from wheel_sched.testing.faulty_proxy import FaultyProxy
from wheel_sched.testing.servers import TemporaryServer, temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT = 2_000
PATIENCE_S = 90.0


class Pair:
    """A primary and its replica (with one of its own), and an address that leads to whichever is in charge."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary = stack.enter_context(temporary_server(tcp=True))
        self.replica = stack.enter_context(temporary_server(tcp=True, replica_of=self.primary))
        self.second = stack.enter_context(temporary_server(tcp=True, replica_of=self.replica))
        self.address = stack.enter_context(FaultyProxy(self.primary.tcp_url))

    def promote(self) -> None:
        """The replica follows nobody from now on."""
        ask(self.replica, "REPLICAOF", "NO", "ONE")

    def fail_over(self) -> None:
        """The primary dies; the address leads to the replica."""
        self.primary.sigkill()
        self.promote()
        self.address.redirect(self.replica.tcp_url)


def ask(server: TemporaryServer, *command: str) -> Any:
    with redis.Redis(port=server.port or 0) as client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def until(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except StoreError:
            pass  # the one server is gone, the other not in charge yet
        assert time.monotonic() < until_s, f"waited in vain: {told()}"
        time.sleep(0.05)  # other threads' doing; there is nothing to wait on


class Group:
    """A group's service over the session's broker, and what it sent."""

    def __init__(
        self,
        kafka: TemporaryKafka,
        pair: Pair,
        name: str,
        durability: str,
        delay_ms: int,
        committed: Callable[[str], list[Message]],
    ) -> None:
        self._committed = committed
        self.broker = KafkaBroker(kafka.bootstrap, partitions=2)
        self.name = name
        for topic in (retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            self.broker.create_topic(topic)
        self.home = Home(open_store(pair.address.url, namespace=name, durability=durability), self.broker)
        policy = RetryPolicy(delay=Fixed(base_ms=delay_ms))
        config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=2_000))
        self.service = RetryService(self.home, name, policy, config=config)
        self.service.start()

    def close(self) -> None:
        self.service.stop()
        self.home.close()

    def fail(self, first: int, last: int) -> None:
        """Failures with these numbers come into the retry topic."""
        for start in range(first, last, 500):
            numbers = range(start, min(last, start + 500))
            records = [Message(retry_topic_of(self.name), b"%d" % n, b"%d" % (n % 50)) for n in numbers]
            assert not any(self.broker.publish(records))

    def sent(self) -> Counter[int]:
        """What a reader of committed records finds, by number."""
        return Counter(int(message.value) for message in self._committed(redelivery_topic_of(self.name)))

    def wait_for(self, count: int) -> None:
        """Until so many wait."""
        until(lambda: self.home.store.counts().total("due") == count, self.home.store.counts)

    def bring_forward(self, count: int) -> None:
        """So many are to wait, and are due then."""
        self.wait_for(count)
        cursor, ids = None, []
        while True:
            page = self.home.store.list_items("due", cursor=cursor, limit=500)
            ids += [item.id for item in page.found]
            if (cursor := page.cursor) is None:
                break
        for start in range(0, count, 500):
            self.home.store.reschedule(ids[start : start + 500], 0)

    def completed(self) -> int:
        return self.home.store.counts().ever.get(("completed", retry_topic_of(self.name)), 0)


def test_a_replicated_store_loses_and_doubles_nothing(
    kafka: TemporaryKafka, pair: Pair, name: str, committed: Callable[[str], list[Message]]
) -> None:
    """Its primary is killed while messages are taken in and sent: what was acknowledged is there on the replica."""
    group = Group(kafka, pair, name, "replicated", 300, committed)
    try:
        group.fail(0, COUNT // 2)
        until(lambda: group.completed() > 100, group.home.store.counts)
        pair.fail_over()
        group.fail(COUNT // 2, COUNT)
        until(lambda: len(group.sent()) == COUNT, lambda: len(group.sent()))
        until(lambda: not sum(group.home.store.counts().total(state) for state in ("due", "fly", "held")), lambda: "")
    finally:
        group.close()
    assert group.sent() == Counter(range(COUNT))


def test_a_store_that_has_forgotten_the_last_of_it_is_read_it_again(
    kafka: TemporaryKafka,
    pair: Pair,
    name: str,
    committed: Callable[[str], list[Message]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under `everysec` a replica may be behind. What it does not know of is read again from the position it knows,
    without waiting for another record; what it knows of is sent once."""
    group = Group(kafka, pair, name, "everysec", 3_600_000, committed)
    half = COUNT // 2
    try:
        group.fail(0, half)
        group.bring_forward(half)
        until(lambda: group.completed() == half, group.home.store.counts)
        with redis.Redis(port=pair.primary.port or 0) as client:
            client.set("reached", 1)
            assert client.wait(1, 30_000) == 1
        pair.promote()  # from here on it hears nothing, as one whose link is slow
        group.fail(half, COUNT)
        group.wait_for(COUNT - half)
        pair.fail_over()
        group.bring_forward(COUNT - half)
        until(lambda: len(group.sent()) == COUNT, lambda: len(group.sent()))
    finally:
        group.close()
    sent = group.sent()
    assert set(sent) == set(range(COUNT))
    assert [number for number in range(half) if sent[number] != 1] == []
    assert "intake.rewound" in caplog.text
