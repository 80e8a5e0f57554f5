"""Order per key where the broker gives out partitions: when a reader's time with one begins, and what is too late."""

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
from wheel_sched.store import Item, Outcome, open_store
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, scope_of

PATIENCE_S = 30.0
PLACE = ("orders", 0)
SCOPE = scope_of("g", "id-of-orders", 0)


class Member:
    """A member of a group that is told what partitions it has and what it reads."""

    def __init__(self) -> None:
        self.ours: dict[tuple[str, int], int] = {}
        self.waiting: list[Delivery] = []
        self.settled: list[bytes] = []
        self.forwarded: list[bytes] = []
        self.rejoined = 0
        self._changed = threading.Condition()

    def give(self, assignment: int, *values: bytes, first: int = 0) -> None:
        """Records of the partition, read in a assignment of it."""
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
        """Nobody counts."""

    def assignments(self) -> dict[tuple[str, int], int]:
        return dict(self.ours)

    def assignment_of(self, delivery: Delivery) -> int:
        return int(delivery.handle)

    def rejoin(self) -> None:
        self.rejoined += 1
        self.ours = {}

    def close(self) -> None:
        """Nothing to let go of."""


class Partitions(MemoryBroker):
    """Memory's, but the ordered topic is read by `member`."""

    def __init__(self, member: Member) -> None:
        super().__init__(create_topics=True)
        self.member = member

    def topic_id(self, topic: str) -> str:
        return f"id-of-{topic}"

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> Any:
        return self.member if list(topics) == ["orders"] else super().consumer(topics, group, idle_ms=idle_ms)


class Bench:
    """A consumer whose handler notes what it is given, fails what it is told to, and waits where it is told to."""

    def __init__(self, home: Connection, member: Member) -> None:
        self.home, self.member = home, member
        self.gates = OrderedKeys(home.store)
        self.seen: list[bytes] = []
        self.fails: set[bytes] = set()
        self.hold: dict[bytes, threading.Event] = {}
        self.consumer = self.consume()

    def consume(self, **config: int) -> Consumer:
        settings = {"idle_ms": 60_000, "concurrency": 4, **config}
        return Consumer(self.home, "orders", self, group="g", config=ConsumerConfig(ordering="key", **settings))

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
        time.sleep(0.002)  # other threads' doing; there is nothing to wait on


@pytest.fixture
def bench(quick_poll: None) -> Iterator[Bench]:
    member = Member()
    with Connection(open_store("memory:", shards=2), Partitions(member)) as home:
        yield Bench(home, member)


def test_a_failed_message_parks_what_follows(bench: Bench) -> None:
    """It is told to the retry topic, what is behind it to the store."""
    bench.fails = {b"1"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1", b"2", b"3")
        until(lambda: sorted(bench.member.settled) == [b"0", b"2", b"3"])
        until(lambda: bench.member.forwarded == [b"1"])
        assert bench.seen == [b"0", b"1"]
        (closed,) = bench.gates.closed()
        assert (closed.lock, closed.parked) == (lock_of(SCOPE, b"k"), 2)


def test_records_wait_until_the_partition_s_scope_is_ours(bench: Bench) -> None:
    """The last reader has closed a key meanwhile: what it did is known before anything is handed out."""
    before = bench.gates.acquire(SCOPE, "before", 60_000)
    assert before.epoch
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0")
        until(lambda: bench.reader._assignments and len(bench.reader._assignments[PLACE][1].in_flight) == 1)
        assert bench.seen == []
        bench.gates.release(SCOPE, "before")
        until(lambda: bench.member.settled == [b"0"])


def test_what_belongs_to_a_term_that_is_over_is_not_handled(bench: Bench) -> None:
    """Neither what is read late nor what waits behind a running handler; the next assignment has it again."""
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
    """It was retried and succeeded while its offset was not committed: its reader had died.

    The next reader handles it again, since its key is open, and it fails as it did; that one dies before it has told
    so. Were the key closed now, the third would know the head as one that has succeeded, settle it, and park all that
    follows for ever.
    """
    gate, stem = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.gates.acquire(SCOPE, "first", 60_000).epoch)
    bench.gates.close(first, [(gate, stem, True, "k")])
    bench.gates.succeeded([(gate, stem)])
    bench.gates.close(first, [(gate, stem, True, "k")])
    bench.gates.release(SCOPE, "first")
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1", b"2")
        until(lambda: len(bench.member.settled) == 3)
    assert bench.seen == [b"0", b"1", b"2"]
    assert list(bench.gates.closed()) == []


def test_the_failure_of_what_was_through_before_is_told_to_nobody(bench: Bench) -> None:
    """Its retry topic would have it tried once more than it was."""
    gate, stem = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.gates.acquire(SCOPE, "first", 60_000).epoch)
    bench.gates.close(first, [(gate, stem, True, "k")])
    bench.gates.succeeded([(gate, stem)])
    bench.gates.release(SCOPE, "first")
    bench.fails = {b"0"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert (bench.seen, bench.member.forwarded) == ([b"0", b"1"], [])
    assert list(bench.gates.closed()) == []


def test_a_message_that_was_given_up_and_is_read_again_is_not_retried_anew(bench: Bench) -> None:
    """It was parked, retried and dead-lettered while its offset was not committed: its attempts are used up."""
    gate, stem = lock_of(SCOPE, b"k"), retry_id("g", "id-of-orders", 0, "0")
    first = Owner(SCOPE, "first", bench.gates.acquire(SCOPE, "first", 60_000).epoch)
    bench.gates.close(first, [(gate, stem, True, "k")])
    bench.gates.given_up([(gate, stem)])
    bench.gates.release(SCOPE, "first")
    bench.fails = {b"0"}
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert bench.member.forwarded == []
    assert list(bench.gates.closed()) == []


def test_a_head_read_again_behind_others_is_handled_though_the_line_is_full(bench: Bench) -> None:
    """What came before it was through; there is no room for these until it has moved the line."""
    count = 2 * _PARKED_AT_ONCE
    gate = lock_of(SCOPE, b"k")
    stems = [retry_id("g", "id-of-orders", 0, str(offset)) for offset in range(count + 3)]
    first = Owner(SCOPE, "first", bench.gates.acquire(SCOPE, "first", 60_000).epoch)
    bench.gates.close(first, [(gate, stems[count], True, "k")])
    parked = Item(f"{stems[count + 1]}.0", None, b"", "orders", (ref_of(gate),), SCOPE)
    assert bench.gates.park(first, 1, [(gate, stems[count + 1], True, parked)]) == [Outcome.HELD]
    bench.gates.release(SCOPE, "first")
    values = [b"%d" % offset for offset in range(count + 3)]
    bench.member.ours = {PLACE: 1}
    bench.consumer = bench.consume(parked_cap=1, concurrency=count)
    with bench.consumer:
        bench.member.give(1, *values)
        until(lambda: values[count] in bench.seen)
        until(lambda: values[count + 1] in bench.member.settled)
        until(lambda: [closed.head for closed in bench.gates.closed()] != [stems[count]])  # told after the handler
        (closed,) = bench.gates.closed()
        assert (bench.seen, closed.head) == ([values[count]], stems[count + 1])
        bench.member.ours = {}  # or its end would wait for room in the line
        until(lambda: not bench.reader._assignments)


def test_a_scope_that_is_anothers_makes_the_member_begin_anew(bench: Bench) -> None:
    """The store says so while the broker does not: what was in hand must not come behind what follows it."""
    bench.member.ours = {PLACE: 1}
    with bench.consumer:
        until(lambda: bench.reader._assignments and bench.reader._assignments[PLACE][1]._queues is not None)
        assignment = bench.reader._assignments[PLACE][1]
        bench.gates.release(SCOPE, assignment._holder)
        assert bench.gates.acquire(SCOPE, "another", 60_000).epoch
        bench.fails = {b"0"}
        bench.member.give(1, b"0", b"1")
        until(lambda: bench.member.rejoined == 1)
        assert bench.member.forwarded == []
        bench.gates.release(SCOPE, "another")
        bench.fails = set()
        bench.member.ours = {PLACE: 2}
        bench.member.give(2, b"0", b"1")
        until(lambda: bench.member.settled == [b"0", b"1"])
    assert bench.seen == [b"0", b"0", b"1"]
