"""The store's primary dies and a replica takes its place, with all acknowledged writes or without the last ones.

Each test first brings about the state in which the primary must die: open claims, or published messages.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from confluent_kafka import TopicPartition

from retry_topic import Connection, Message, RetryPolicy, RetryService, ServiceConfig
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.transactions import claims_topic
from retry_topic.message.encoding import decode_body
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import StoreError
from wheel_sched.store import open_store

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT = 2_000


class Pair:
    """A primary, its replica, a replica of this replica, and an address that leads to the present primary."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary = stack.enter_context(temporary_server(tcp=True))
        self.replica = stack.enter_context(temporary_server(tcp=True, replica_of=self.primary))
        self.second = stack.enter_context(temporary_server(tcp=True, replica_of=self.replica))
        self.address = stack.enter_context(FaultyProxy(self.primary.tcp_url))

    def promote(self) -> None:
        """Make the replica a primary."""
        ask(self.replica, "REPLICAOF", "NO", "ONE")

    def fail_over(self) -> None:
        """Kill the primary and point the address to the replica."""
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


@pytest.fixture
def until(until: Until) -> Until:
    """The function `until`, which here ignores errors of the store, because for a moment no server is a primary."""
    return partial(until, despite=StoreError, pause_s=0.05)


class Group:
    """The retry service of one group, over the test session's broker and the store of `pair`.

    The methods write failed messages to the retry topic, and read what the service has stored and published.
    """

    def __init__(
        self,
        kafka: TemporaryKafka,
        pair: Pair,
        name: str,
        durability: str,
        delay_ms: int,
        committed: Callable[[str], list[Message]],
        until: Until,
    ) -> None:
        self._committed, self._until = committed, until
        self.broker = KafkaBroker(kafka.bootstrap, partitions=2)
        self.name = name
        for topic in (retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            self.broker.create_topic(topic)
        self.connection = Connection(open_store(pair.address.url, namespace=name, durability=durability), self.broker)
        policy = RetryPolicy(delay=Fixed(base_ms=delay_ms))
        config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=2_000, batch=50))
        self.service = RetryService(self.connection, name, policy, config=config)
        self.service.start()

    def close(self) -> None:
        self.service.stop()
        self.connection.close()

    def fail(self, first: int, last: int) -> None:
        """Write failed messages with the numbers from `first` up to, not including, `last` to the retry topic."""
        for start in range(first, last, 500):
            numbers = range(start, min(last, start + 500))
            records = [Message(retry_topic_of(self.name), b"%d" % n, b"%d" % (n % 50)) for n in numbers]
            assert not any(self.broker.publish(records))

    def sent(self) -> Counter[int]:
        """How often each message is in the redelivery topic as a committed record, by number."""
        return Counter(int(message.value) for message in self._committed(redelivery_topic_of(self.name)))

    def wait_for(self, count: int) -> None:
        """Wait until `count` messages wait in the store."""
        self._until(lambda: self.connection.store.counts().total("due") == count, self.connection.store.counts)

    def bring_forward(self, count: int, of: int) -> set[int]:
        """Wait for `of` waiting messages, and make `count` of them due now. Returns the numbers of these messages."""
        self.wait_for(of)
        cursor, found = None, []
        while len(found) < count:
            page = self.connection.store.list_items("due", cursor=cursor, limit=500)
            found += page.found
            cursor = page.cursor
        for start in range(0, count, 500):
            self.connection.store.reschedule([item.id for item in found[start : min(count, start + 500)]], 0)
        return {int(decode_body(item.body).value) for item in found[:count]}

    def completed(self) -> int:
        return self.connection.store.counts().ever.get(("completed", retry_topic_of(self.name)), 0)

    def last_claim(self) -> int:
        """The number of the last published claim, read from the broker."""
        topic = claims_topic(self.name)
        return self.broker.groups.committed(topic, [TopicPartition(topic, 0)])[topic, 0]


def test_a_replicated_store_loses_and_doubles_nothing(
    kafka: TemporaryKafka, pair: Pair, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """The primary is killed while messages are taken in and published, with open claims. The replica has every
    acknowledged write, so each message is published once."""
    group = Group(kafka, pair, name, "replicated", 300, committed, until)
    claims = f"{{{name}:0}}:claim"
    count, fed_s = 0, 0.0

    def caught() -> bool:
        """Try to stop the primary at a moment at which its replica has open claims. Returns whether it is stopped."""
        nonlocal count, fed_s
        if time.monotonic() - fed_s > 1:  # so that messages are always in flight
            group.fail(count, count + 500)
            count, fed_s = count + 500, time.monotonic()
        if group.completed() < 100 or not ask(pair.replica, "HLEN", claims):
            return False
        os.kill(pair.primary.pid, signal.SIGSTOP)  # writes that it had sent before reach its replica
        time.sleep(0.05)  # time for these writes to arrive
        if ask(pair.replica, "HLEN", claims):
            return True
        os.kill(pair.primary.pid, signal.SIGCONT)
        return False

    try:
        until(caught, group.connection.store.counts, despite=(), pause_s=0)
        pair.fail_over()
        group.fail(count, count + 500)
        count += 500
        until(lambda: len(group.sent()) == count, lambda: (len(group.sent()), group.connection.store.counts()))
        until(
            lambda: not sum(group.connection.store.counts().total(state) for state in ("due", "leased", "held")),
            lambda: "",
        )
    finally:
        group.close()
    assert group.sent() == Counter(range(count))


def test_a_store_that_has_forgotten_the_last_of_it_is_read_it_again(
    kafka: TemporaryKafka,
    pair: Pair,
    name: str,
    committed: Callable[[str], list[Message]],
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under `everysec` a replica may lack the last writes. The intake reads again from the replica's position at once,
    without waiting for another record. Messages are published twice only if the replica does not know that they were
    published. A log line reports this. New claims get higher numbers than the published ones."""
    group = Group(kafka, pair, name, "everysec", 3_600_000, committed, until)
    half, forgotten = COUNT // 2, COUNT // 8
    try:
        group.fail(0, half)
        group.bring_forward(half, half)
        until(lambda: group.completed() == half, group.connection.store.counts)
        with redis.Redis(port=pair.primary.port or 0) as client:
            client.set("reached", 1)
            assert client.wait(1, 30_000) == 1
        pair.promote()  # from here on the replica gets no writes
        group.fail(half, COUNT)
        gone = group.bring_forward(forgotten, COUNT - half)
        until(lambda: group.completed() == half + forgotten, group.connection.store.counts)
        last = group.last_claim()
        known = int(ask(pair.replica, "HGET", f"{{{name}:0}}:meta", "claims"))
        assert known < last, "the replica knows every published claim"
        pair.fail_over()
        group.bring_forward(COUNT - half, COUNT - half)
        until(lambda: set(group.sent()) == set(range(COUNT)), lambda: len(group.sent()))
        until(lambda: group.completed() == COUNT, group.connection.store.counts)
        assert group.last_claim() > last
    finally:
        group.close()
    sent = group.sent()
    assert set(sent) == set(range(COUNT))
    assert {number for number, times in sent.items() if times > 1} == gone
    assert max(sent.values()) == 2
    assert "intake.rewound" in caplog.text
