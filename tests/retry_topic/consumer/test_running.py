"""The life of a consumer: concurrency, slow handlers, starting, stopping, draining, and a broker that
does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, connect
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.connection import Connection
from retry_topic.message import Message
from retry_topic.message.headers import read
from retry_topic.message.topic_names import retry_topic_of
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import temporary_server
from wheel_sched.errors import BrokerError, ConfigError
from wheel_sched.store import open_store

if TYPE_CHECKING:
    from conftest import Bench, Handler

RETRY = retry_topic_of("billing")
Handlers = Callable[..., "Handler"]


class Gate:
    """A handler that blocks until it is released, and counts the calls that wait."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self.values: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.values.append(message.value)
        self.open.wait(30)
        with self._lock:
            self.inside -= 1


def test_as_many_are_handled_at_once_as_was_said(bench: Bench) -> None:
    """Exactly `concurrency` handlers run at once while there is work."""
    gate = Gate()
    consumer = bench.consume(gate, concurrency=3)
    bench.publish(*(str(n).encode() for n in range(12)))
    bench.until(lambda: gate.inside == 3)
    time.sleep(0.15)  # a fourth call would come within this time
    assert (gate.most, len(gate.values)) == (3, 3)
    gate.open.set()
    bench.until(lambda: consumer.stats.acknowledged == 12)
    assert gate.most == 3


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_async_handlers_run_side_by_side_up_to_the_concurrency(bench: Bench, ordering: str) -> None:
    """Up to `concurrency` async handlers run at once in one event loop, also when each message has a key of its own."""
    inside = most = 0

    async def handle(message: Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.05)  # the test measures handlers that overlap
        inside -= 1

    consumer = bench.consume(handle, concurrency=5, ordering=ordering)
    bench.connection.broker.publish([Message(bench.topic, b"%d" % n, b"%d" % n) for n in range(20)])
    bench.until(lambda: consumer.stats.acknowledged == 20)
    assert most == 5


@pytest.mark.slow
def test_a_slow_handler_keeps_its_message(bench: Bench, handler: Handlers) -> None:
    """Heartbeats keep the message, so no other consumer receives it after `idle_ms`."""
    gate, other = Gate(), handler()
    slow = bench.consume(gate, idle_ms=2_000, concurrency=1)
    bench.publish(b"m")
    bench.until(lambda: gate.inside == 1)
    second = bench.consume(other, idle_ms=2_000)
    time.sleep(5)  # more than twice `idle_ms`, which is long enough for a beat to be late on a busy machine
    gate.open.set()
    bench.until(lambda: slow.stats.acknowledged == 1)
    assert (other.calls, gate.values, second.stats.delivered) == ([], [b"m"], 0)


def test_what_nobody_keeps_alive_goes_to_another(bench: Bench, handler: Handlers, monkeypatch: Any) -> None:
    """Without heartbeats, another consumer receives the message after `idle_ms`."""
    monkeypatch.setattr("retry_topic.consumer.settling.Settler._beat", lambda self: None)
    gate, other = Gate(), handler()
    bench.consume(gate, idle_ms=150, concurrency=1)
    bench.publish(b"m")
    bench.until(lambda: gate.inside == 1)
    bench.consume(other, idle_ms=150)
    bench.until(lambda: other.values == [b"m"])
    gate.open.set()


def test_a_message_is_not_handled_twice_at_once_by_one_consumer(bench: Bench, monkeypatch: Any) -> None:
    """Without heartbeats the consumer receives its own message again. It does not start a second handler for it."""
    monkeypatch.setattr("retry_topic.consumer.settling.Settler._beat", lambda self: None)
    gate = Gate()
    consumer = bench.consume(gate, idle_ms=100, concurrency=2)
    bench.publish(b"m")
    bench.until(lambda: consumer.stats.delivered >= 2)
    gate.open.set()
    bench.until(lambda: consumer.stats.acknowledged == 1)
    consumer.stop()
    assert gate.values == [b"m"]
    assert bench.unsettled("orders") == []


def test_a_message_that_outlives_its_consumers_is_poison(bench: Bench, handler: Handlers) -> None:
    """After more than `crash_cap` deliveries, a message becomes a dead letter, and the handler does not get it. Other
    messages are handled."""
    bench.publish(b"poison", b"harmless")
    for _ in range(3):
        member = bench.connection.broker.consumer(["orders"], "billing", idle_ms=100)
        (taken, *_) = member.poll(1, 1_000)
        assert taken.message.value == b"poison"
        time.sleep(0.11)  # longer than `idle_ms`, as after the member's death
    handle = handler()
    consumer = bench.consume(handle, idle_ms=400, crash_cap=3)
    bench.until(lambda: consumer.stats.dead == 1 and consumer.stats.acknowledged == 1)
    (record,) = bench.records(RETRY)
    state = read(record.headers)
    assert (record.value, state.error_class, state.verdict) == (b"poison", "poison", "dead")
    assert state.error_message == "handed out 4 times, and every consumer died or hung over it"
    assert (handle.values, consumer.stats.poison) == ([b"harmless"], 1)


@pytest.mark.slow
def test_suspects_are_handled_alone(bench: Bench) -> None:
    """A message that two consumers held when they died is handled alone. So if the next consumer dies, no other message
    is suspected."""
    bench.publish(*(b"%d" % n for n in range(5)))
    for _ in range(2):
        assert len(bench.connection.broker.consumer(["orders"], "billing", idle_ms=100).poll(5, 1_000)) == 5
        time.sleep(0.11)  # longer than `idle_ms`, as after the member's death
    bench.publish(*(b"%d" % n for n in range(5, 15)))
    time.sleep(3.1)  # longer than the consumer's `idle_ms`
    gate = Gate()
    consumer = bench.consume(gate, concurrency=4, idle_ms=3_000)
    bench.until(lambda: gate.inside == 1)
    time.sleep(0.2)  # a second call would come within this time
    assert gate.most == 1
    gate.open.set()
    bench.until(lambda: consumer.stats.acknowledged == 15)
    assert {int(value) for value in gate.values[:5]} == set(range(5))


def test_a_suspect_that_hangs_does_not_stop_the_others(bench: Bench) -> None:
    """The consumer handles a suspected message alone for at most `idle_ms`. Then it handles others at the same time."""
    gate = Gate()
    bench.publish(b"suspect")
    for _ in range(2):
        bench.connection.broker.consumer(["orders"], "billing", idle_ms=100).poll(1, 1_000)
        time.sleep(0.11)  # longer than `idle_ms`, as after the member's death
    bench.publish(b"other")
    time.sleep(0.2)  # longer than the consumer's `idle_ms`
    bench.consume(gate, concurrency=4, idle_ms=200)
    bench.until(lambda: gate.inside == 2)
    assert gate.values == [b"suspect", b"other"]
    gate.open.set()


def test_a_crash_is_no_attempt(bench: Bench, handler: Handlers) -> None:
    """Two consumers die while they hold the message. The failure of the third one's handler counts as the first
    attempt."""
    bench.publish(b"m")
    for _ in range(2):
        bench.connection.broker.consumer(["orders"], "billing", idle_ms=100).poll(1, 1_000)
        time.sleep(0.11)  # longer than `idle_ms`, as after the member's death
    handle = handler(ValueError("x"))
    bench.consume(handle, idle_ms=400)
    bench.until(lambda: len(bench.records(RETRY)) == 1)
    assert read(bench.records(RETRY)[0].headers).attempt == 1
    assert handle.attempts == [1]


def test_stop_waits_for_running_handlers_and_settles_them(bench: Bench, handler: Handlers) -> None:
    """All handled messages are settled before `stop` returns, so none of them is delivered again."""
    gate = Gate()
    consumer = bench.consume(gate, concurrency=4, idle_ms=100)
    bench.publish(*(str(n).encode() for n in range(10)))
    bench.until(lambda: gate.inside == 4)
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()
    time.sleep(0.2)  # `stop` waits for the running handlers
    assert stopping.is_alive()
    gate.open.set()
    stopping.join(30)
    assert not stopping.is_alive()
    handled = sorted(gate.values)
    assert consumer.stats.acknowledged == len(handled)
    assert sorted(bench.unsettled("orders")) == [b"%d" % n for n in range(10) if b"%d" % n not in handled]


def test_stop_gives_up_waiting_and_leaves_the_rest_to_others(bench: Bench, handler: Handlers) -> None:
    """`stop` returns although a handler hangs. The handler's message goes to another consumer."""
    gate, other = Gate(), handler()
    consumer = bench.consume(gate, idle_ms=100)
    bench.publish(b"m")
    bench.until(lambda: gate.inside == 1)
    start = time.monotonic()
    consumer.stop(timeout_s=0.2)
    assert time.monotonic() - start < 25  # the handler itself would take longer
    bench.consume(other, idle_ms=100)
    bench.until(lambda: other.values == [b"m"])
    gate.open.set()


def test_stop_cuts_async_handlers_off(bench: Bench, handler: Handlers) -> None:
    """`stop` cancels an async handler that hangs. The message does not count as failed, and another consumer gets
    it."""
    cancelled = threading.Event()
    started = threading.Event()

    async def hang(message: Message) -> None:
        started.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            cancelled.set()

    consumer = bench.consume(hang, idle_ms=100)
    bench.publish(b"m")
    assert started.wait(30)
    consumer.stop(timeout_s=0.1)
    assert cancelled.wait(30)
    other = handler()
    bench.consume(other, idle_ms=100)
    bench.until(lambda: other.values == [b"m"])
    assert bench.records(RETRY) == []


def test_run_blocks_until_stop_is_through(bench: Bench) -> None:
    """`run` returns only after the running handlers have ended and their messages are settled."""
    gate = Gate()
    consumer = Consumer(bench.connection, "orders", gate, group="billing")
    running = threading.Thread(target=consumer.run)
    running.start()
    bench.publish(b"m")
    bench.until(lambda: gate.inside == 1)
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()
    running.join(0.2)
    assert running.is_alive()
    gate.open.set()
    running.join(30)
    assert consumer.stats.acknowledged == 1
    stopping.join(30)
    assert not running.is_alive()


def test_a_signal_handler_may_stop_it_at_any_moment(memory: Bench, handler: Handlers, monkeypatch: Any) -> None:
    """A signal handler runs in the main thread, perhaps in the middle of `start` or of another `stop`."""
    consumer = Consumer(memory.connection, "orders", handler(), group="billing")
    joining = consumer.connection.broker.consumer

    def interrupted(*given: Any, **settings: Any) -> Any:
        consumer.stop()
        return joining(*given, **settings)

    monkeypatch.setattr(consumer.connection.broker, "consumer", interrupted)
    running = threading.Thread(target=consumer.run, daemon=True)
    running.start()
    running.join(20)
    assert not running.is_alive()
    assert "stopped" in repr(consumer)

    monkeypatch.undo()
    second = Consumer(memory.connection, "orders", handler(), group="billing")
    second.start()
    draining = second._drain
    monkeypatch.setattr(second, "_drain", lambda until: (second.stop(), draining(until)))
    stopping = threading.Thread(target=second.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    assert "stopped" in repr(second)


def test_starting_and_stopping_in_any_order_is_harmless(bench: Bench, handler: Handlers) -> None:
    """`stop` before `start`, `start` twice and `stop` twice raise nothing."""
    never = Consumer(bench.connection, "orders", handler(), group="billing")
    never.stop()
    never.start()
    assert "stopped" in repr(never)
    consumer = Consumer(bench.connection, "orders", handler(), group="billing")
    consumer.start()
    consumer.start()
    assert repr(consumer) == "<Consumer billing ['orders'] running in_flight=0>"
    consumer.stop()
    consumer.stop()
    assert repr(consumer) == "<Consumer billing ['orders'] stopped in_flight=0>"


def test_ten_threads_may_start_and_stop_at_once(memory: Bench, handler: Handlers) -> None:
    """Ten threads start and stop each of fifty consumers. No call hangs, and no thread is left."""
    before = threading.active_count()
    for number in range(50):
        consumer = Consumer(memory.connection, "orders", handler(), group=f"g{number}")
        calls = [consumer.start, consumer.stop] * 5
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        consumer.stop()
    memory.until(lambda: threading.active_count() <= before)


def test_consumers_that_come_and_go_lose_and_double_nothing(bench: Bench) -> None:
    """Consumers start and stop one after another while messages are published. Each message is handled exactly once."""
    seen: list[bytes] = []
    bench.connection.broker.create_topic("orders")

    def publish() -> None:
        for n in range(150):
            bench.publish(b"%d" % n)
            time.sleep(0.002)  # spread over the lives of the consumers

    publisher = threading.Thread(target=publish)
    publisher.start()
    while publisher.is_alive():
        consumer = Consumer(bench.connection, "orders", lambda message: seen.append(message.value), group="billing")
        consumer.start()
        time.sleep(0.03)  # a short life
        consumer.stop()
    bench.consume(lambda message: seen.append(message.value))
    bench.until(lambda: len(seen) >= 150)
    assert sorted(seen, key=int) == [b"%d" % n for n in range(150)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"idle_ms": 99}, "idle_ms"),
        ({"crash_cap": True}, "crash_cap"),
        ({"secrets": (b"short",)}, "at least 16 bytes, got: 5"),
        ({"secrets": b"0123456789abcdef"}, "tuple of bytes"),
        ({"secrets": ("0123456789abcdef",)}, "tuple of bytes"),
    ],
)
def test_a_wrong_setting_is_told(settings: dict[str, Any], words: str) -> None:
    """The error for a wrong setting names the setting and its bounds, and never shows a secret."""
    with pytest.raises(ConfigError, match=words) as raised:
        ConsumerConfig(**settings)
    assert "0123456789" not in str(raised.value)


def test_all_wrong_settings_are_told_at_once() -> None:
    """One error lists all wrong settings of a consumer."""
    with pytest.raises(ConfigError) as raised:
        ConsumerConfig(concurrency=0, idle_ms=0, crash_cap=0)
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize("group", ["", "a b", "a{b}", "x" * 201])
def test_a_group_that_cannot_name_topics_is_refused(memory: Bench, handler: Handlers, group: str) -> None:
    """`Consumer(...)` refuses a group name from which no topic name can be made."""
    with pytest.raises(ConfigError, match="expected group"):
        Consumer(memory.connection, "orders", handler(), group=group)


@pytest.mark.real
def test_a_start_that_failed_may_be_repeated(quick_poll: None, handler: Handlers) -> None:
    """While the broker is down, `start` raises. Afterwards the same consumer can be started."""
    with temporary_server() as server, connect("memory:", broker=RedisStreamsBroker(server.url)) as connection:
        consumer = Consumer(connection, "orders", handler(), group="billing")
        server.stop()
        with pytest.raises(BrokerError):
            consumer.start()
        server.restart()
        consumer.start()
        assert "running" in repr(consumer)
        consumer.stop()


@pytest.mark.real
def test_an_outage_of_the_broker_is_waited_out(redis_url: str, quick_poll: None, handler: Handlers) -> None:
    """Connections break during poll, ack and forward. Still each message is acknowledged or retried exactly once."""
    with FaultyProxy(redis_url) as proxy:
        direct = connect(redis_url)
        connection = Connection(open_store("memory:"), RedisStreamsBroker(proxy.url))
        direct.broker.create_topic("orders")
        config = ConsumerConfig(idle_ms=500)  # after this time, records of an interrupted poll come again
        consumer = Consumer(connection, "orders", handler(fail_odd), group="billing", config=config)
        consumer.start()
        for n in range(60):
            assert direct.broker.publish([Message("orders", b"%d" % n)]) == [None]
            if n % 10 == 5:
                proxy.cut()
                proxy.drop_next_reply(b"EVALSHA" if n % 20 == 5 else b"XACK")
        until_s = time.monotonic() + 30
        while consumer.stats.acknowledged + consumer.stats.retried < 60:
            assert time.monotonic() < until_s, consumer.stats
            time.sleep(0.005)  # polls until the consumer has finished
        consumer.stop()
        looker = direct.broker.consumer([RETRY], "looker")
        values = [int(delivery.message.value) for delivery in looker.poll(100, 100)]
        assert sorted(values) == list(range(1, 60, 2))
        assert proxy.counts.dropped_replies >= 2
        connection.close()
        direct.close()


def fail_odd(message: Message) -> None:
    if int(message.value) % 2:
        raise ValueError("odd")
