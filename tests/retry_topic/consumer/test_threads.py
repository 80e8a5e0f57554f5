"""One broker consumer used by three threads, as in a `Consumer`: one polls, one settles, one sends heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Broker, BrokerConsumer, Delivery
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.message import Message

COUNT = 3_000


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that drops settled records, so that the polling and the settling thread often trim at the same time."""
    broker: Broker
    if request.param == "memory":
        broker = MemoryBroker(maxlen=0)
    else:
        broker = RedisStreamsBroker(request.getfixturevalue("redis_url"), maxlen=0)
    yield broker
    broker.close()


@pytest.mark.timeout(180)  # 3,000 messages in steps of 7, which take 15 s when the machine is busy
def test_polling_settling_and_beating_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is read and settled once, forwarded messages arrive once, and the topic is empty at the end."""
    monkeypatch.setattr("retry_topic.brokers.redis_streams.publisher.TRIM_EVERY", 2)
    broker.create_topic("failed")
    consumer: BrokerConsumer = broker.consumer(["t"], "g", idle_ms=60_000)
    read: SimpleQueue[list[Delivery]] = SimpleQueue()
    settled: list[bytes] = []
    held: list[Delivery] = []
    errors: list[BaseException] = []

    def poll() -> None:
        while len(settled) < COUNT:
            deliveries = consumer.poll(7, 1)  # an empty poll trims too
            held.extend(deliveries)
            read.put(deliveries)

    def settle() -> None:
        while len(settled) < COUNT:
            try:
                deliveries = read.get(timeout=0.01)
            except Empty:
                continue
            consumer.ack(deliveries[::2])
            assert not any(consumer.forward([(one, one.message.to("failed")) for one in deliveries[1::2]]))
            settled.extend(delivery.message.value for delivery in deliveries)

    def beat() -> None:
        while len(settled) < COUNT:
            consumer.beat(held[-20:])

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                settled.extend([b""] * COUNT)  # so that the other threads end

        return run

    threads = [threading.Thread(target=guarded(work)) for work in (poll, settle, beat)]
    for thread in threads:
        thread.start()
    for start in range(0, COUNT, 50):
        assert not any(broker.publish([Message("t", b"%d" % n) for n in range(start, start + 50)]))
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert errors == []
    assert sorted(settled, key=int) == [b"%d" % n for n in range(COUNT)]
    consumer.poll(1, 1)
    consumer.close()
    forwarded = broker.consumer(["failed"], "looker").poll(COUNT, 100)
    assert len({delivery.message.value for delivery in forwarded}) == len(forwarded) > COUNT // 4
    assert broker.topics()["t"] == 0
