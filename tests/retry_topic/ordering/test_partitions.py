"""Order per key with a broker that assigns partitions: when an assignment begins, and which records come too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from retry_topic import Connection, Consumer, ConsumerConfig, Message
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.consumer.ordered.assigned_partitions import OrderedPartitions
from retry_topic.consumer.ordered.key_queues import _PARKED_AT_ONCE
from retry_topic.consumer.ordered.reader import OrderedReader
from retry_topic.message import Source
from retry_topic.message.headers import retry_id
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.store import Item, Outcome, open_store
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, scope_of

PATIENCE_S = 30.0
PLACE = ("orders", 0)
SCOPE = scope_of("g", "id-of-orders", 0)


class Member:
    """A group member whose assignments and records are scripted by the test."""

    def __init__(self) -> None:
        self.ours: dict[tuple[str, int], int] = {}
        self.waiting: list[Delivery] = []
        self.settled: list[bytes] = []
        self.forwarded: list[bytes] = []
        self.rejoined = 0
        self._changed = threading.Condition()

    def give(self, assignment: int, *values: bytes, first: int = 0) -> None:
        """Let the member read these records of the partition, in this assignment."""
        with self._changed:
            for offset, value in enumerate(values, first):
                source = Source(*PLACE, str(offset), 1)
                self.waiting.append(Delivery(Message("orders", value, b"k", (), source), assignment))
            self._changed.notify_all()

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        with self._changed:
            self._changed.wait_for(lambda: self.waiting, min(timeout_ms, 20) / 1000)
            found, self.waiting = self.waiting[:limit], self.waiting[limit:]
            return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.settled += [one.message.value for one in deliveries if one.handle in self.ours.values()]

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        self.forwarded += [one.message.value for one, _ in pairs if one.handle in self.ours.values()]
        return [None] * len(pairs)

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""

    def assignments(self) -> dict[tuple[str, int], int]:
        return dict(self.ours)

    def assignment_of(self, delivery: Delivery) -> int:
        return int(delivery.handle)

    def rejoin(self) -> None:
        self.rejoined += 1
        self.ours = {}

    def close(self) -> None:
        """Do nothing."""


class Partitions(MemoryBroker):
    """The memory broker, whose ordered topic is read by `member`."""

    def __init__(self, member: Member) -> None:
        super().__init__(create_topics=True)
        self.member = member

    def topic_id(self, topic: str) -> str:
        return f"id-of-{topic}"

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> Any:
        return self.member if list(topics) == ["orders"] else super().consumer(topics, group, idle_ms=idle_ms)


class Bench:
    """A consumer whose handler records its messages, and fails or blocks for chosen ones."""

    def __init__(self, connection: Connection, member: Member) -> None:
        self.connection, self.member = connection, member
        self.locks = OrderedKeys(connection.store)
        self.seen: list[bytes] = []
        self.fails: set[bytes] = set()
        self.hold: dict[bytes, threading.Event] = {}
        self.consumer = self.consume()

    def consume(self, **config: int) -> Consumer:
        settings = {"idle_ms": 60_000, "concurrency": 4, **config}
        return Consumer(self.connection, "orders", self, group="g", config=ConsumerConfig(ordering="key", **settings))

    def __call__(self, message: Message) -> None:
        self.seen.append(message.value)
        if message.value in self.hold:
            assert self.hold[message.value].wait(PATIENCE_S)
        if message.value in self.fails:
            raise OSError("not yet")

    @property
    def reader(self) -> OrderedPartitions:
        (reader,) = self.consumer._ordered
        found: OrderedReader = reader
        assert isinstance(found, OrderedPartitions)
        return found


def until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.002)  # polls until other threads have finished


@pytest.fixture
def bench(quick_poll: None) -> Iterator[Bench]:
    member = Member()
    with Connection(open_store("memory:", shards=2), Partitions(member)) as connection:
        yield Bench(connection, member)


def test_a_failed_message_parks_what_follows(bench: Bench) -> None:
    """The failed message goes to the retry topic. Later messages of its key are parked in the store."""
    bench.fails = {b"1"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1", b"2", b"3")
        until(lambda: sorted(bench.member.settled) == [b"0", b"2", b"3"])
        until(lambda: bench.member.forwarded == [b"1"])
        assert bench.seen == [b"0", b"1"]
        (closed,) = bench.locks.closed()
        assert (closed.lock, closed.parked) == (lock_of(SCOPE, b"k"), 2)


def test_records_wait_until_the_partition_s_scope_is_ours(bench: Bench) -> None:
    """A reader hands out no record before it owns the partition's scope (its key locks and parked messages). It owns
    the scope only after the previous reader has released it."""
    before = bench.locks.acquire(SCOPE, "before", 60_000)
    assert before.epoch
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0")
        until(lambda: bench.reader._assignments and len(bench.reader._assignments[PLACE][1].in_flight) == 1)
        assert bench.seen == []
        bench.locks.release(SCOPE, "before")
        until(lambda: bench.member.settled == [b"0"])


def test_a_reader_that_starts_again_reads_its_partitions_again(bench: Bench) -> None:
    """A new broker consumer numbers its assignments from one again. The reader must not take the new assignments for
    the old ones."""
    broker, failures = bench.connection.broker, [BrokerUnavailable("no reply")]
    assert isinstance(broker, Partitions)
    topic_id = broker.topic_id

    def fails_once(topic: str) -> str:
        if bench.member.ours and failures and len(bench.reader._assignments) == 1:
            raise failures.pop()
        return topic_id(topic)

    broker.topic_id = fails_once  # type: ignore[method-assign]
    bench.member.ours = {PLACE: 1, ("orders", 1): 2}
    with bench.consumer:
        until(lambda: not failures)
        bench.member.give(1, b"first")
        until(lambda: bench.seen == [b"first"])


def test_records_of_an_assignment_that_is_over_are_not_handled(bench: Bench) -> None:
    """Records of an ended assignment that arrive late, or wait behind a running handler, are dropped. The next
    assignment reads them again."""
    go_on = bench.hold[b"0"] = threading.Event()
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.seen == [b"0"])
        bench.member.ours = {}
        until(lambda: not bench.reader._assignments)
        bench.member.give(1, b"2", first=2)
        until(lambda: not bench.member.waiting)
        bench.hold.clear()
        bench.member.ours = {PLACE: 2}
        bench.member.give(2, b"0", b"1", b"2")
        until(lambda: bench.member.settled == [b"0", b"1", b"2"])
        go_on.set()
    assert bench.seen == [b"0", b"0", b"1", b"2"]


def test_a_message_that_is_through_and_is_read_again_does_not_close_its_key(bench: Bench) -> None:
    """A message was retried and succeeded, but its reader died before it committed the message's offset.

    The next reader reads the message again. It cannot lock the key for this message, because the store knows of the
    success. With a locked key, a third reader would settle the message without handling it and park all later messages
    of the key for ever.
    """
    key_lock, id_base = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.locks.acquire(SCOPE, "first", 60_000).epoch)
    bench.locks.close(first, [(key_lock, id_base, True, "k")])
    bench.locks.succeeded([(key_lock, id_base)])
    bench.locks.close(first, [(key_lock, id_base, True, "k")])
    bench.locks.release(SCOPE, "first")
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1", b"2")
        until(lambda: len(bench.member.settled) == 3)
    assert bench.seen == [b"0", b"1", b"2"]
    assert list(bench.locks.closed()) == []


def test_the_failure_of_what_was_through_before_is_told_to_nobody(bench: Bench) -> None:
    """A message that has succeeded is read again and fails. It does not go to the retry topic, and its key is not
    locked."""
    key_lock, id_base = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.locks.acquire(SCOPE, "first", 60_000).epoch)
    bench.locks.close(first, [(key_lock, id_base, True, "k")])
    bench.locks.succeeded([(key_lock, id_base)])
    bench.locks.release(SCOPE, "first")
    bench.fails = {b"0"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert (bench.seen, bench.member.forwarded) == ([b"0", b"1"], [])
    assert list(bench.locks.closed()) == []


def test_a_message_that_was_given_up_and_is_read_again_is_not_retried_again(bench: Bench) -> None:
    """A message that is a dead letter is read again and fails. It does not go to the retry topic."""
    key_lock, id_base = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.locks.acquire(SCOPE, "first", 60_000).epoch)
    bench.locks.close(first, [(key_lock, id_base, True, "k")])
    bench.locks.given_up([(key_lock, id_base)])
    bench.locks.release(SCOPE, "first")
    bench.fails = {b"0"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert bench.member.forwarded == []
    assert list(bench.locks.closed()) == []


def test_a_head_read_again_behind_others_is_handled_though_the_queue_is_full(bench: Bench) -> None:
    """A key is locked, and as many messages are parked behind its head as `parked_cap` allows. A new reader gets all
    messages of the key again. It finds the head behind older messages and handles it, although it can park no later
    message. When the head has succeeded, the parked message becomes the head.
    """
    count = 2 * _PARKED_AT_ONCE
    key_lock = lock_of(SCOPE, b"k")
    id_bases = [retry_id("g", "id-of-orders", 0, str(offset)) for offset in range(count + 3)]
    first = Owner(SCOPE, "first", bench.locks.acquire(SCOPE, "first", 60_000).epoch)
    bench.locks.close(first, [(key_lock, id_bases[count], True, "k")])
    parked = Item(f"{id_bases[count + 1]}.0", None, b"", "orders", (ref_of(key_lock),), SCOPE)
    assert bench.locks.park(first, 1, [(key_lock, id_bases[count + 1], True, parked)]) == [Outcome.HELD]
    bench.locks.release(SCOPE, "first")
    values = [b"%d" % offset for offset in range(count + 3)]
    bench.member.ours = {PLACE: 1}
    bench.consumer = bench.consume(parked_cap=1, concurrency=count)
    with bench.consumer:
        bench.member.give(1, *values)
        until(lambda: values[count] in bench.seen)
        until(lambda: values[count + 1] in bench.member.settled)
        # the success is reported after the handler has ended
        until(lambda: [closed.head for closed in bench.locks.closed()] != [id_bases[count]])
        (closed,) = bench.locks.closed()
        assert (bench.seen, closed.head) == ([values[count]], id_bases[count + 1])
        bench.member.ours = {}  # otherwise `stop` would wait for room in the queue
        until(lambda: not bench.reader._assignments)


def test_a_scope_that_is_anothers_makes_the_member_rejoin(bench: Bench) -> None:
    """The store reports another owner of the partition's key locks. The member leaves and joins again, and keeps the
    order."""
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        until(lambda: bench.reader._assignments and bench.reader._assignments[PLACE][1]._queues is not None)
        assignment = bench.reader._assignments[PLACE][1]
        bench.locks.release(SCOPE, assignment._holder)
        assert bench.locks.acquire(SCOPE, "another", 60_000).epoch
        bench.fails = {b"0"}
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.rejoined == 1)
        assert bench.member.forwarded == []
        bench.locks.release(SCOPE, "another")
        bench.fails = set()
        bench.member.ours = {PLACE: 2}
        bench.member.give(2, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert bench.seen == [b"0", b"0", b"1"]
