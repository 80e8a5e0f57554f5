"""What the memory broker adds to the broker protocol: injected clocks, retention, inspection, waking."""

from __future__ import annotations

import threading
import time

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Broker, Delivery
from retry_topic.message import Message, Source
from wheel_sched.errors import BrokerUnavailable, ConfigError


class Clock:
    """A clock in milliseconds that only the test advances."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def messages(topic: str, count: int) -> list[Message]:
    return [Message(topic, str(n).encode()) for n in range(count)]


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.message.value) for delivery in deliveries]


def test_it_is_a_broker() -> None:
    """`isinstance` recognises the memory broker as a `Broker`."""
    assert isinstance(MemoryBroker(), Broker)


def test_redelivery_follows_the_injected_clock() -> None:
    """A delivery without a heartbeat comes back after exactly `idle_ms` by the injected clock, not a millisecond
    earlier."""
    clock = Clock()
    broker = MemoryBroker(create_topics=True, monotonic_ms=clock)
    broker.publish(messages("t", 1))
    dead, alive = (broker.consumer(["t"], "g", idle_ms=500) for _ in range(2))
    assert dead.poll(1, 0)[0].deliveries == 1
    clock.now_ms += 499
    assert alive.poll(1, 0) == []
    clock.now_ms += 1
    assert alive.poll(1, 0)[0].deliveries == 2


def test_a_late_beat_brings_no_lease_back() -> None:
    """A beat after `idle_ms` renews nothing: the messages go to the next member that polls, in order."""
    clock = Clock()
    broker = MemoryBroker(create_topics=True, monotonic_ms=clock)
    broker.publish(messages("t", 2))
    frozen, other = (broker.consumer(["t"], "g", idle_ms=100) for _ in range(2))
    held = frozen.poll(1, 0)
    clock.now_ms += 100
    frozen.beat(held)
    assert offsets(other.poll(2, 0)) == [0, 1]


def test_a_beat_counts_from_when_it_was_made() -> None:
    """A renewed lease lasts `idle_ms` from the beat. Leases without a beat end first, in order."""
    clock = Clock()
    broker = MemoryBroker(create_topics=True, monotonic_ms=clock)
    broker.publish(messages("t", 4))
    one, two = (broker.consumer(["t"], "g", idle_ms=100) for _ in range(2))
    held = one.poll(4, 0)
    clock.now_ms += 60
    one.beat([held[0], held[2]])
    clock.now_ms += 40
    assert offsets(two.poll(4, 0)) == [1, 3]
    clock.now_ms += 60
    assert offsets(two.poll(4, 0)) == [0, 2]


def test_orphans_come_in_the_order_of_the_topic() -> None:
    """Messages of a dead member come in topic order, even when the first one was renewed last. Ordered consumers rely
    on it."""
    clock = Clock()
    broker = MemoryBroker(create_topics=True, monotonic_ms=clock)
    broker.publish(messages("t", 3))
    dead, alive = (broker.consumer(["t"], "g", idle_ms=100) for _ in range(2))
    held = dead.poll(3, 0)
    clock.now_ms += 50
    dead.beat(held[:1])
    clock.now_ms += 100
    assert [offsets(alive.poll(1, 0)) for _ in range(3)] == [[0], [1], [2]]


def test_orphans_come_before_new_messages() -> None:
    """A poll hands out a dead member's messages before new ones."""
    clock = Clock()
    broker = MemoryBroker(create_topics=True, monotonic_ms=clock)
    broker.publish(messages("t", 3))
    dead, alive = (broker.consumer(["t"], "g", idle_ms=100) for _ in range(2))
    dead.poll(2, 0)
    clock.now_ms += 100
    got = alive.poll(3, 0)
    assert [(int(d.message.value), d.deliveries) for d in got] == [(0, 2), (1, 2), (2, 1)]


def test_a_publish_wakes_a_waiting_poll() -> None:
    """A waiting `poll` returns as soon as a message is published."""
    broker = MemoryBroker(create_topics=True)
    consumer = broker.consumer(["t"], "g")
    got: list[Delivery] = []
    waiting = threading.Thread(target=lambda: got.extend(consumer.poll(1, 30_000)))
    waiting.start()
    broker.publish(messages("t", 1))
    waiting.join(10)
    assert offsets(got) == [0]


def test_closing_wakes_a_waiting_poll() -> None:
    """A `poll` that waits when the broker is closed raises `BrokerUnavailable`."""
    broker = MemoryBroker(create_topics=True)
    consumer = broker.consumer(["t"], "g")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.poll(1, 30_000)
        except BrokerUnavailable as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    broker.close()
    waiting.join(10)
    assert "closed" in str(raised[0])
    with pytest.raises(BrokerUnavailable, match="closed"):
        broker.publish(messages("t", 1))


def test_maxlen_keeps_what_a_group_has_yet_to_settle() -> None:
    """Only records that every group has settled are dropped, and only beyond `maxlen`."""
    broker = MemoryBroker(create_topics=True, maxlen=2)
    broker.publish(messages("t", 10))
    fast, slow = broker.consumer(["t"], "fast"), broker.consumer(["t"], "slow")
    fast.ack(fast.poll(10, 0))
    assert broker.topics() == {"t": 10}
    held = slow.poll(10, 0)
    slow.ack(held[:3] + held[4:])
    assert broker.records("t")[0].value == b"3"
    slow.ack(held)
    assert [message.value for message in broker.records("t")] == [b"8", b"9"]
    broker.publish([Message("t", b"10")])
    assert offsets(fast.poll(10, 0)) == [10]


def test_maxlen_leaves_a_topic_alone_that_nobody_reads() -> None:
    """Records of a topic that no group reads are not settled, so `maxlen` drops none of them."""
    broker = MemoryBroker(create_topics=True, maxlen=0)
    broker.publish(messages("t", 5))
    assert broker.topics() == {"t": 5}


def test_records_are_looked_at_without_consuming() -> None:
    """`records` returns messages with their sources and settles nothing."""
    broker = MemoryBroker(create_topics=True, wall_ms=lambda: 1_700_000_000_000)
    broker.publish([Message("t", b"a", b"k", (("h", b"1"),))])
    assert broker.records("t") == [
        Message("t", b"a", b"k", (("h", b"1"),), Source("t", 0, "0", 1_700_000_000_000)),
    ]
    assert broker.records("absent") == []
    assert len(broker.consumer(["t"], "g").poll(5, 0)) == 1


def test_every_message_is_handed_out_once_among_threads() -> None:
    """Four threads publish and four threads consume. Each message is delivered exactly once."""
    broker = MemoryBroker(create_topics=True)
    got: list[int] = []

    def publish(part: int) -> None:
        for n in range(part * 1_000, part * 1_000 + 1_000, 50):
            broker.publish([Message("t", str(k).encode()) for k in range(n, n + 50)])

    def consume() -> None:
        consumer = broker.consumer(["t"], "g")
        until = time.monotonic() + 20
        while len(got) < 4_000 and time.monotonic() < until:
            deliveries = consumer.poll(7, 20)
            consumer.ack(deliveries)
            got.extend(offsets(deliveries))

    threads = [threading.Thread(target=publish, args=(part,)) for part in range(4)]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(4_000))


@pytest.mark.parametrize(
    ("topics", "group", "idle_ms", "problems"),
    [([], "", 0, 3), ("orders", "g", 1, 1), (["", "t"], "g", 1, 1), (["t"], "g", True, 1)],
)
def test_all_problems_of_a_consumer_are_reported(topics: list[str], group: str, idle_ms: int, problems: int) -> None:
    """One error lists all wrong arguments. A string in place of a list of topics is an error too."""
    with pytest.raises(ConfigError) as raised:
        MemoryBroker().consumer(topics, group, idle_ms=idle_ms)
    assert len(raised.value.problems) == problems


def test_its_repr_shows_its_state() -> None:
    """The broker's `repr` has the numbers of topics and records, and says when it is closed."""
    broker = MemoryBroker(create_topics=True)
    broker.publish(messages("t", 3))
    assert repr(broker) == "<MemoryBroker topics=1 records=3>"
    broker.close()
    assert repr(broker) == "<MemoryBroker topics=1 records=3 closed>"
