"""The poll loop and the Kafka consumer over a fake client: without a broker, but with the loop's own thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, TopicPartition

from retry_topic.brokers.kafka.consumer import KafkaConsumer
from retry_topic.brokers.kafka.topology import TopicIds
from retry_topic.brokers.protocol import Delivery
from retry_topic.message import Message
from wheel_sched.errors import BrokerError, BrokerUnavailable

PATIENCE_S = 20.0
POLL_MS = 50


class Record:
    """A record as confluent-kafka returns it."""

    def __init__(self, partition: int, offset: int, error: Any = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1


class FakeClient:
    """A client with scripted records and rebalances. Its `group` records the commits."""

    def __init__(self, group: FakeGroup) -> None:
        self.group = group
        self.threads: set[int] = set()
        self.starts: list[tuple[int, int]] = []
        self.paused: set[int] = set()
        self.closed = threading.Event()
        self._events: deque[Callable[[], Any]] = deque()

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[[Any, Any], None]) -> None:
        self.topics, self._callbacks = list(topics), callbacks

    # -- called by the test

    def rebalance(self, what: str, *partitions: int) -> None:
        """Call `on_assign`, `on_revoke` or `on_lost` inside the next poll."""
        places = [TopicPartition("t", partition) for partition in partitions]
        self._events.append(lambda: self._callbacks[what](self, places))

    def records(self, partition: int, *offsets: int) -> None:
        for offset in offsets:
            self._events.append(lambda offset=offset: Record(partition, offset))  # type: ignore[misc]

    def error(self, code: int) -> None:
        self._events.append(lambda: Record(0, -1, KafkaError(code)))

    # -- called by the poll loop

    def poll(self, timeout_s: float) -> Any:
        self.threads.add(threading.get_ident())
        if not self._events:
            time.sleep(min(timeout_s, 0.005))
            return None
        return self._events.popleft()()

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        found = (self.poll(0) for _ in range(min(count, len(self._events))))
        return [one for one in found if one is not None]

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self.starts += [(place.partition, place.offset) for place in places]

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        self.threads.add(threading.get_ident())
        self.group.commit(offsets)

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def close(self) -> None:
        self.closed.set()


class FakeGroup:
    """The consumer group on the cluster: the committed offsets, and the clients that joined one after another."""

    def __init__(self) -> None:
        self.offsets: dict[int, TopicPartition] = {}
        self.clients: list[FakeClient] = []
        self.refusal: int | None = None

    def connect(self, settings: dict[str, Any]) -> FakeClient:
        self.clients.append(FakeClient(self))
        return self.clients[-1]

    def commit(self, offsets: Sequence[TopicPartition]) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise KafkaException(KafkaError(refusal))
        self.offsets.update({place.partition: place for place in offsets})

    def committed(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        nothing = [TopicPartition("t", place.partition, OFFSET_INVALID) for place in places]
        return [self.offsets.get(place.partition, place) for place in nothing]

    def offset(self, partition: int = 0) -> int | None:
        place = self.offsets.get(partition)
        return None if place is None else place.offset


class Topology:
    """A cluster that has no permanent topic ids."""

    def topic_id(self, topic: str) -> str:
        return topic

    def ask_id(self, topic: str) -> None:
        return None


class Bench:
    """A consumer over a fake client."""

    def __init__(self, idle_ms: int = 60_000) -> None:
        self.group = FakeGroup()
        self.published: list[Message] = []
        topology: Any = Topology()
        self.consumer = KafkaConsumer(
            {"group.id": "g"},
            ["t"],
            idle_ms,
            None,
            self.publish,
            self.group.committed,
            list,
            TopicIds(topology),
            1024 * 1024,
            self.group.connect,
        )
        self.client = self.joined(1)

    def publish(self, messages: Sequence[Message]) -> list[Any]:
        self.published += messages
        return [None] * len(messages)

    def until(self, condition: Callable[[], Any]) -> Any:
        until_s = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < until_s, f"waited in vain: {self.consumer}"
            time.sleep(0.002)
        return found

    def joined(self, count: int) -> FakeClient:
        """Wait for the client number `count` that joined the group, and return it."""
        return self.until(lambda: len(self.group.clients) >= count and self.group.clients[count - 1])

    def read(self, count: int) -> list[Delivery]:
        """Return this number of deliveries, over as many polls as needed."""
        found: list[Delivery] = []
        self.until(lambda: found.extend(self.consumer.poll(count - len(found), POLL_MS)) or len(found) >= count)
        return sorted(found, key=lambda one: one.handle[1:])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.consumer.close()


def test_a_new_group_begins_at_the_beginning_and_commits_before_it_hands_out(bench: Bench) -> None:
    """The consumer commits before it hands out records. Only the loop's thread uses the client."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0, 1)
    first, second = bench.read(2)
    assert (bench.client.topics, bench.client.starts) == (["t"], [(0, OFFSET_INVALID)])
    assert (bench.group.offset(), bench.group.offsets[0].metadata) == (0, "w1:2.2,")
    bench.consumer.ack([second])
    assert bench.group.offset() == 0
    bench.consumer.ack([first])
    assert bench.group.offset() == 2
    assert len(bench.client.threads) == 1
    assert threading.get_ident() not in bench.client.threads


def test_forwarding_without_transactions_publishes_and_settles(bench: Bench) -> None:
    """`forward` publishes the delivery's message and settles the delivery. A repeated `forward` publishes nothing."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    (one,) = bench.read(1)
    pairs = [(one, one.message.to("g.retry"))]
    assert bench.consumer.forward(pairs) == [None]
    assert bench.consumer.forward(pairs) == [None]
    assert ([message.topic for message in bench.published], bench.group.offset()) == (["g.retry"], 1)


def test_a_revoked_partition_is_given_back_in_good_order(bench: Bench) -> None:
    """When a partition is revoked, its settled records are committed. The delivery counts of the unsettled records do
    not rise, and their handles become invalid."""
    bench.client.rebalance("on_assign", 0, 1)
    bench.client.records(0, 0, 1)
    bench.client.records(1, 0)
    first, second, other = bench.read(3)
    bench.consumer.ack([second])
    bench.client.rebalance("on_revoke", 0)
    bench.until(lambda: bench.consumer.assignments().keys() == {("t", 1)})
    bench.until(lambda: bench.group.offsets[0].metadata == "w1:1.1,1.0,")
    bench.consumer.ack([first])
    assert bench.group.offset(0) == 0
    bench.consumer.ack([other])
    assert bench.group.offset(1) == 1


def test_a_partition_that_comes_back_goes_on_where_it_was_committed(bench: Bench) -> None:
    """A partition is revoked and assigned again. A record that was settled out of order is not handed out again, and
    the new assignment has another number."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0, 1)
    first, second = bench.read(2)
    bench.consumer.ack([second])
    bench.client.rebalance("on_revoke", 0)
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0, 1, 2)
    again, third = bench.read(2)
    assert (again.handle[3], third.handle[3], bench.client.starts) == (0, 2, [(0, OFFSET_INVALID), (0, 0)])
    assert bench.consumer.assignment_of(again) != bench.consumer.assignment_of(first)


def test_a_lost_partition_is_not_committed(bench: Bench) -> None:
    """The offsets of a lost partition belong to another member, so the consumer commits nothing for it."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    bench.read(1)
    before = bench.group.offsets[0].metadata
    bench.client.rebalance("on_lost", 0)
    bench.until(lambda: not bench.consumer.assignments())
    assert bench.group.offsets[0].metadata == before


def test_a_record_that_comes_twice_is_handed_out_again_only_after_its_silence() -> None:
    """`beat` prevents a second delivery. Without `beat`, the record is delivered again with a higher count."""
    bench = Bench(idle_ms=300)
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    (one,) = bench.read(1)
    for _ in range(4):
        bench.consumer.beat([one])
        assert bench.consumer.poll(1, 100) == []
    (again,) = bench.read(1)
    assert (again.handle, again.deliveries) == (one.handle, 2)
    bench.consumer.close()


def test_an_expelled_member_joins_again_with_a_new_client(bench: Bench) -> None:
    """A commit or a poll reports that the member was expelled from the group. Earlier deliveries can no longer be
    settled."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    (one,) = bench.read(1)
    bench.group.refusal = KafkaError.UNKNOWN_MEMBER_ID
    bench.consumer.ack([one])
    assert bench.consumer.poll(1, POLL_MS) == []
    second = bench.joined(2)
    assert bench.client.closed.wait(PATIENCE_S)
    bench.consumer.ack([one])
    assert bench.group.offset() == 0
    second.error(KafkaError._MAX_POLL_EXCEEDED)
    bench.until(lambda: bench.consumer.poll(1, POLL_MS) or len(bench.group.clients) == 3)


def test_a_member_that_nobody_polls_leaves_and_joins_again_at_the_next_poll() -> None:
    """A member that is not polled for `idle_ms` leaves the group. The delivery counts of its records rise, because one
    of the records may have blocked the application."""
    bench = Bench(idle_ms=100)
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    bench.read(1)
    assert bench.client.closed.wait(PATIENCE_S)
    assert bench.group.offsets[0].metadata == "w1:1.2,"
    assert len(bench.group.clients) == 1
    bench.consumer.poll(1, POLL_MS)
    bench.joined(2)
    bench.consumer.close()


def test_a_member_whose_handlers_lost_their_partition_stays() -> None:
    """Handlers of a lost partition still work, so `beat` for their deliveries keeps the member in its group.

    Otherwise two members with long handlers would leave by turns, and take each other's partitions for ever.
    """
    bench = Bench(idle_ms=200)
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    held = bench.read(1)
    bench.client.rebalance("on_lost", 0)
    bench.client.rebalance("on_assign", 1)
    bench.until(lambda: ("t", 1) in bench.consumer.assignments())
    for _ in range(12):
        bench.consumer.beat(held)
        assert not bench.client.closed.wait(0.05)
    assert bench.client.closed.wait(PATIENCE_S)  # without `beat` it leaves
    bench.consumer.close()


def test_a_full_buffer_pauses_the_client_and_an_empty_one_resumes_it(bench: Bench) -> None:
    """The loop continues to poll while the client is paused, so the member stays in the group."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, *range(1_500))
    bench.until(lambda: bench.client.paused)
    bench.client.rebalance("on_assign", 1)
    bench.until(lambda: ("t", 1) in bench.consumer.assignments())
    seen = 0
    while seen < 1_500:
        seen += len(bench.read(min(100, 1_500 - seen)))
    bench.until(lambda: not bench.client.paused)


def test_a_partition_that_went_paused_makes_it_take_a_new_client(bench: Bench) -> None:
    """A paused partition was revoked and assigned again. librdkafka would never read it, so the loop makes a new
    client."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, *range(1_500))
    bench.until(lambda: bench.client.paused)
    bench.client.rebalance("on_revoke", 0)
    bench.client.rebalance("on_assign", 0)
    bench.until(lambda: bench.consumer.poll(1, POLL_MS) or len(bench.group.clients) == 2)


def test_an_error_of_the_client_reaches_whoever_polls(bench: Bench) -> None:
    """`poll` raises the client's error once, and the loop continues."""
    bench.client.rebalance("on_assign", 0)
    bench.client.error(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="READ"):
        bench.until(lambda: bench.consumer.poll(1, POLL_MS))
    bench.client.records(0, 0)
    assert len(bench.read(1)) == 1


def test_a_commit_that_fails_hands_nothing_out(bench: Bench) -> None:
    """After a failed commit, the next poll returns the records with the same delivery count."""
    bench.client.rebalance("on_assign", 0)
    bench.group.refusal = KafkaError._TRANSPORT
    bench.client.records(0, 0)
    with pytest.raises(BrokerUnavailable):
        bench.until(lambda: bench.consumer.poll(1, POLL_MS))
    (one,) = bench.read(1)
    assert one.deliveries == 1


def test_closing_gives_everything_back_and_ends_the_thread(bench: Bench) -> None:
    """`close` does not raise the delivery counts of records in flight. A second `close` is harmless."""
    bench.client.rebalance("on_assign", 0)
    bench.client.records(0, 0)
    (one,) = bench.read(1)
    bench.consumer.close()
    bench.consumer.close()
    assert bench.client.closed.is_set()
    assert (bench.group.offset(), bench.group.offsets[0].metadata) == (0, "")
    bench.consumer.ack([one])
    assert bench.group.offset() == 0
    with pytest.raises(BrokerUnavailable, match="closed"):
        bench.consumer.poll(1, POLL_MS)
