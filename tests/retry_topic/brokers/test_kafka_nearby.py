"""The retry service over Kafka's two stand-ins (see conftest.py).

`make kafka-test` runs tests of the retry service on a real broker.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import Delivery
from retry_topic.message.headers import read
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed, Rate
from retry_topic.service import ServiceConfig
from tests.servers.kafka_clients import no_more_clients
from tests.servers.mock_cluster import MockCluster
from wheel_sched.errors import BrokerError
from wheel_sched.store.rate_limits import RateLimits

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(120)]

PATIENCE_S = 60.0

# A member of a group: takes three records, settles the first, and holds the others until it is killed.
MEMBER = """
import sys
from retry_topic.brokers.kafka import KafkaBroker

servers, protocol, topic, group = sys.argv[1:]
broker = KafkaBroker(servers, transactions=False, group_protocol=protocol)
member = broker.consumer([topic], group, idle_ms=6_000)
found = []
while len(found) < 3:
    found += member.poll(3 - len(found), 500)
member.ack(found[:1])
print("holds two", flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], bool], describe: Callable[[], object] = lambda: "") -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain: {describe()}"
        time.sleep(0.02)  # polls until other threads have finished


def received(consumer: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < until_s, found
        found += consumer.poll(count - len(found), 500)
    return found


class Failing:
    """A handler that records its messages by key. `failures` maps a message's value to how many attempts fail."""

    def __init__(self, **failures: int) -> None:
        self.failures = {value.encode(): times for value, times in failures.items()}
        self.seen: dict[bytes | None, list[bytes]] = defaultdict(list)
        self.attempts: Counter[tuple[bytes, int]] = Counter()
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        attempt = read(message.headers).attempt + 1
        with self._lock:
            self.seen[message.key].append(message.value)
            self.attempts[message.value, attempt] += 1
        if attempt <= self.failures.get(message.value, 0):
            raise OSError("not yet")

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.seen.values()))


def test_closing_a_broker_closes_a_consumer_that_nobody_has(imitation: MockCluster, name: str) -> None:
    """A consumer was dropped without `close`. Its thread ends when its broker is closed."""
    imitation.create_topic(name)
    broker = KafkaBroker(imitation.bootstrap, transactions=False, group_protocol="classic")
    with no_more_clients():
        broker.consumer([name], name)
        gc.collect()
        broker.close()


def test_settled_records_stay_settled_when_another_takes_over(imitation: MockCluster, name: str) -> None:
    """A member settles records out of order and leaves. The next member of its group gets only the unsettled records.
    Another group gets all records."""
    broker = KafkaBroker(imitation.bootstrap, transactions=False, group_protocol="consumer")
    try:
        broker.create_topic(name)
        assert not any(broker.publish([Message(name, b"%d" % n, b"one key") for n in range(6)]))
        first = broker.consumer([name], f"{name}-a", idle_ms=6_000)
        got = received(first, 6)
        first.ack([got[1], got[4]])
        assert first.forward([(got[2], Message(f"{name}-out", b"forwarded"))])[0] is not None  # there is no such topic
        first.close()
        second = broker.consumer([name], f"{name}-a", idle_ms=6_000)
        assert [one.message.value for one in received(second, 4)] == [b"0", b"2", b"3", b"5"]
        second.close()
        other = broker.consumer([name], f"{name}-b", idle_ms=6_000)
        assert len(received(other, 6)) == 6
        other.close()
    finally:
        broker.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_a_killed_member_held_goes_to_another(imitation: MockCluster, name: str, protocol: Any) -> None:
    """A process is killed while it holds records. Another member gets them after the session has ended, with a delivery
    count that is higher by one. Settled records stay settled."""
    imitation.create_topic(name)
    broker = KafkaBroker(imitation.bootstrap, transactions=False, group_protocol=protocol)
    assert not any(broker.publish([Message(name, b"%d" % n) for n in range(3)]))
    command = [sys.executable, "-c", MEMBER, imitation.bootstrap, protocol, name, f"{name}-a"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"holds two\n"
        finally:
            child.kill()
    successor = broker.consumer([name], f"{name}-a", idle_ms=6_000)
    found = received(successor, 2)
    assert [(one.message.value, one.deliveries) for one in found] == [(b"1", 2), (b"2", 2)]
    successor.ack(found)
    assert successor.poll(1, 500) == []
    broker.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_failed_messages_come_back_over_an_imitation(imitation: MockCluster, name: str, protocol: Any) -> None:
    """With both group protocols, failed messages are retried or become dead letters, and each key keeps its order.
    Without transactions, an expelled member may handle a message twice, both times with the same attempt count."""
    broker = KafkaBroker(imitation.bootstrap, transactions=False, group_protocol=protocol)
    handler = Failing(a1=2, dead=9)
    config = ConsumerConfig(ordering="key", idle_ms=6_000)
    with connect("memory:", broker=broker, namespace=name, shards=2) as connection:
        broker.create_topic(name)
        values = [(b"a", b"a%d" % n) for n in range(1, 5)] + [(b"b", b"b1"), (b"d", b"dead"), (b"d", b"alive")]
        assert not any(broker.publish([Message(name, value, key) for key, value in values]))
        policy = RetryPolicy(delay=Fixed(base_ms=30), max_attempts=3)
        with RetryService(connection, name, policy), Consumer(connection, name, handler, group=name, config=config):
            once = [(b"a2", 1), (b"a3", 1), (b"a4", 1), (b"b1", 1), (b"alive", 1)]
            wanted = {*once, *((value, attempt) for value in (b"a1", b"dead") for attempt in (1, 2, 3))}
            until(lambda: handler.attempts.keys() >= wanted, lambda: handler.seen)
            until(lambda: connection.store.counts().total("dead") == 1)
        assert handler.attempts.keys() == wanted
        assert list(dict.fromkeys(handler.seen[b"a"])) == [b"a1", b"a2", b"a3", b"a4"]
        assert list(dict.fromkeys(handler.seen[b"d"])) == [b"dead", b"alive"]
        reader = broker.consumer([dead_topic_of(name)], f"{name}-looker", idle_ms=6_000)
        assert [one.message.value for one in received(reader, 1)] == [b"dead"]


def test_topics_are_shared_with_spring_and_limits_hold(imitation: MockCluster, name: str) -> None:
    """A record that Spring wrote keeps its attempt count, and an async handler gets Spring's headers. A rate limit
    delays the records, and `RateLimits` lists their topic."""
    broker = KafkaBroker(imitation.bootstrap, transactions=False, group_protocol="consumer")
    handled: list[tuple[bytes, bytes | None]] = []

    async def handle(message: Message) -> None:
        handled.append((message.value, message.header("retry_topic-attempts")))

    headers = (("retry_topic-attempts", (3).to_bytes(4, "big")), ("kafka_original-topic", name.encode()))
    policy = RetryPolicy(delay=Fixed(base_ms=10), max_attempts=9, rate=Rate(20, "s"), burst=1)
    config = ServiceConfig(headers="spring")
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(name)
        with RetryService(connection, name, policy, config=config), Consumer(connection, name, handle, group=name):
            records = [Message(retry_topic_of(name), b"%d" % n, None, headers) for n in range(5)]
            assert not any(broker.publish(records))
            until(lambda: len(handled) == 5, lambda: handled)
        assert sorted(handled) == [(b"%d" % n, (3).to_bytes(4, "big")) for n in range(5)]
        assert [flow.topic for flow in RateLimits(connection.store).flows()] == [f"{name}/{name}"]


def test_transactions_bring_each_failure_back_once(with_transactions: str, name: str) -> None:
    """A reader of committed records sees each redelivery once. This includes the redeliveries of a large message, which
    is stored as a reference."""
    broker = KafkaBroker(with_transactions, partitions=2)
    values = {b"%d" % n: 2 for n in range(30)} | {b"x" * 20_000: 2}
    handler = Failing()
    handler.failures = dict(values)
    with connect("memory:", broker=broker, namespace=name, shards=2) as connection:
        broker.create_topic(name)
        service = RetryService(
            connection, name, RetryPolicy(delay=Fixed(base_ms=50)), config=ServiceConfig(reference_above=10_000)
        )
        with service, Consumer(connection, name, handler, group=name):
            assert service.hand_over == "transactions"
            assert not any(broker.publish([Message(name, value) for value in values]))
            until(lambda: handler.count() == 3 * len(values), lambda: handler.attempts)
            until(lambda: not sum(connection.store.counts().total(state) for state in ("due", "leased")))
        assert handler.attempts == Counter([(value, attempt) for value in values for attempt in (1, 2, 3)])
        reader = broker.consumer([redelivery_topic_of(name)], f"{name}-looker", idle_ms=6_000)
        sent = Counter(one.message.value for one in received(reader, 2 * len(values)))
        assert set(sent.values()) == {2}
        assert reader.poll(10, 500) == []


def test_whoever_takes_a_shard_over_fences_the_last_one(with_transactions: str, name: str) -> None:
    """The new owner of a shard learns the number of the last published claim. The previous owner can publish nothing
    more."""
    broker = KafkaBroker(with_transactions)
    try:
        broker.create_topic(name)
        first, second = broker.sender(name, 1), broker.sender(name, 1)
        assert first is not None
        assert second is not None
        assert first.take_over(0) is None
        assert first.send(0, 5, [Message(name, b"sent")]) == [None]
        assert second.take_over(0) == 5
        with pytest.raises(BrokerError):
            first.send(0, 6, [Message(name, b"late")])
        with pytest.raises(BrokerError):  # also at a second try: a new producer would fence the second sender
            first.send(0, 6, [Message(name, b"late")])
        assert second.send(0, 6, [Message(name, b"next")]) == [None]
        reader = broker.consumer([name], f"{name}-looker", idle_ms=6_000)
        assert [one.message.value for one in received(reader, 2)] == [b"sent", b"next"]
        for sender in (first, second):
            sender.close()
    finally:
        broker.close()
