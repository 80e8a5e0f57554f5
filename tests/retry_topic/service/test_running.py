"""The life of the service: starting, stopping, outages of store and broker, and how messages get to the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.connection import Connection
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import temporary_server
from wheel_sched.errors import ConfigError, StoreUnavailable
from wheel_sched.store import open_store
from wheel_sched.store.attempt_counts import AttemptCounts

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
RETRY = retry_topic_of("billing")
SECRET = b"sixteen bytes ok"


def fail_first(message: Message) -> None:
    if read(message.headers).attempt == 0:
        raise ValueError("first")


def test_starting_and_stopping_in_any_order_is_harmless(bench: Bench) -> None:
    """`stop` before `start`, `start` twice and `stop` twice raise nothing."""
    never = RetryService(bench.connection, "billing")
    never.stop()
    never.start()
    assert "stopped" in repr(never)
    service = RetryService(bench.connection, "billing")
    service.start()
    service.start()
    assert "<RetryService billing running" in repr(service)
    service.stop()
    service.stop()
    assert "<RetryService billing stopped" in repr(service)


def test_ten_threads_may_start_and_stop_at_once(memory: Bench) -> None:
    """Ten threads start and stop each of fifty services. No call hangs, and no thread is left."""
    before = threading.active_count()
    for number in range(50):
        service = RetryService(memory.connection, f"g{number}")
        threads = [threading.Thread(target=call) for call in [service.start, service.stop] * 5]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
            assert not thread.is_alive()
        service.stop()
    memory.until(lambda: threading.active_count() <= before)


def test_a_service_creates_its_topics(bench: Bench) -> None:
    """After `start` the retry, redelivery and dead topic exist."""
    bench.serve()
    topics = bench.connection.broker.topics()
    assert {RETRY, redelivery_topic_of("billing"), dead_topic_of("billing")} <= set(topics)


def test_services_that_come_and_go_lose_and_double_nothing(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Services start and stop one after another while messages fail. Each message is retried exactly once."""
    handle = handler(fail_first)
    consumer = bench.consume(handle)
    bench.publish(*(b"%d" % n for n in range(100)))
    while consumer.stats.acknowledged < 100:
        with RetryService(bench.connection, "billing", policy(), config=ServiceConfig(idle_ms=500)):
            time.sleep(0.06)  # a short life
    bench.quiet(consumer)
    assert sorted(handle.values, key=int) == sorted([b"%d" % n for n in range(100)] * 2, key=int)


def test_two_services_share_the_work(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Two services run for one group. Each failed message is retried once."""
    handle = handler(fail_first)
    one, other = bench.serve(policy(), batch=5), bench.serve(policy(), batch=5)
    consumer = bench.consume(handle, concurrency=16)
    bench.publish(*(b"%d" % n for n in range(200)))
    bench.until(lambda: consumer.stats.acknowledged == 200)
    bench.quiet(consumer)
    assert len(handle.calls) == 400
    bench.until(lambda: one.stats.published + other.stats.published == 200)


def test_a_short_outage_of_the_store_delays_nothing_by_the_idle_time(
    bench: Bench, handler: Handlers, policy: Policy, monkeypatch: Any
) -> None:
    """The intake keeps its batch during the outage and stores it as soon as the store answers."""
    schedule, failures = AttemptCounts.schedule, [StoreUnavailable("away")] * 3

    def flaky(*items: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return schedule(*items, **more)

    monkeypatch.setattr(AttemptCounts, "schedule", flaky)
    monkeypatch.setattr("retry_topic.intake.worker._AWAY_S", (0.01,))
    handle = handler(fail_first)
    bench.serve(policy(base_ms=600_000, max_attempts=2), idle_ms=60_000)
    bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: bench.waiting() == 1 and len(bench.taken) == 1)
    assert failures == []
    assert (bench.taken[0].attempt, bench.taken[0].duplicate) == (1, False)


def test_a_record_that_no_batch_survives_stands_alone(
    bench: Bench, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    """If one record raises an unexpected error in the intake, only this record stays unsettled. The others are taken
    in."""
    service = RetryService(
        bench.connection,
        "billing",
        policy(base_ms=3_600_000),
        config=ServiceConfig(idle_ms=100),
        seen=bench.taken.append,
    )
    assert isinstance(service.intake, IntakeFromQueue)
    store = service.intake.store

    def buggy(deliveries: Any, **more: Any) -> Any:
        if any(delivery.message.value == b"bad" for delivery in deliveries):
            raise ZeroDivisionError("a mistake")
        return store(deliveries, **more)

    service.intake.store = buggy  # type: ignore[method-assign]  # of this service only
    headers = write((), RetryState(attempt=1, original_topic="orders"))
    bench.publish(b"a", b"bad", b"b", topic=RETRY, headers=headers)
    with service:
        bench.until(lambda: bench.waiting() == 2)
        bench.until(lambda: "service.record_left" in caplog.text)
    bench.serve(policy(base_ms=3_600_000), idle_ms=100)
    bench.until(lambda: bench.waiting() == 3)


@pytest.mark.parametrize("who", ["both", "forger"])
def test_signed_headers_travel_the_whole_loop(bench: Bench, handler: Handlers, policy: Policy, who: str) -> None:
    """If consumer and service have the same secret, messages are retried as usual. If only the service has it, the
    store counts the attempts."""
    handle = handler(ValueError("x"))
    bench.serve(policy(max_attempts=3), secrets=(SECRET,))
    bench.consume(handle, secrets=(SECRET,) if who == "both" else ())
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert handle.attempts == [1, 2, 3]
    assert letter.state.attempt == 3


@pytest.mark.real
@pytest.mark.parametrize("hand_over", ["auto", "settle"])
def test_each_message_comes_back_exactly_once(server: Bench, handler: Handlers, policy: Policy, hand_over: str) -> None:
    """Each failed message comes back once, whether one script on the server sends and settles it, or the dispatcher
    claims, publishes and settles it."""
    handle = handler(fail_first)
    service = server.serve(policy(), hand_over=hand_over)
    assert (service.dispatcher.push is not None) == (hand_over == "auto")
    assert ("one script" in repr(service)) == (hand_over == "auto")
    consumer = server.consume(handle, concurrency=16)
    server.publish(*(b"%d" % n for n in range(200)))
    server.until(lambda: consumer.stats.acknowledged == 200)
    server.quiet(consumer)
    retries = [call.message.value for call in handle.calls if call.attempt == 2]
    assert sorted(retries, key=int) == [b"%d" % n for n in range(200)]


def test_in_memory_the_hand_over_is_claim_publish_settle(memory: Bench) -> None:
    """With a store in memory the dispatcher claims, publishes and settles, because no server could run a script."""
    assert memory.connection.hand_over == "claim, publish, settle"
    assert memory.serve().dispatcher.push is None


@pytest.mark.real
@pytest.mark.slow
def test_store_and_topics_on_two_servers(quick_poll: None, handler: Handlers, policy: Policy) -> None:
    """No script reaches both servers, so messages are sent at least once. The service survives a restart
    of the broker."""
    with (
        temporary_server() as stores,
        temporary_server() as topics,
        connect(stores.url, broker=RedisStreamsBroker(topics.url)) as connection,
    ):
        assert connection.hand_over == "claim, publish, settle"
        handle = handler(fail_first)
        service = RetryService(connection, "billing", policy(base_ms=1_000), config=ServiceConfig(idle_ms=500))
        connection.broker.create_topic("orders")
        with (
            service,
            Consumer(connection, "orders", handle, group="billing", config=ConsumerConfig(idle_ms=500)) as consumer,
        ):
            assert service.dispatcher.push is None
            connection.broker.publish([Message("orders", b"%d" % n) for n in range(50)])
            _until(lambda: connection.store.counts().happened("accepted") == 50)
            topics.restart()
            _until(lambda: consumer.stats.acknowledged >= 50 and connection.store.counts().total("due") == 0)
        assert {int(value) for value in handle.values} == set(range(50))
        retried = {call.message.value for call in handle.calls if call.attempt == 2}
        assert len(retried) == 50


@pytest.mark.real
def test_lost_replies_of_the_store_double_nothing(
    server: Bench, redis_url: str, handler: Handlers, policy: Policy
) -> None:
    """The service's connections to the store break repeatedly. Each message still comes back exactly once."""
    with FaultyProxy(redis_url) as proxy:
        connection = Connection(open_store(proxy.url), server.connection.broker)
        handle = handler(fail_first)
        consumer = server.consume(handle, concurrency=4)
        service = server.serve(policy(base_ms=30), connection=connection, idle_ms=500)
        for n in range(40):
            server.publish(b"%d" % n)
            if n % 5 == 2:
                proxy.drop_next_reply(b"FCALL")
            if n % 10 == 7:
                proxy.cut()
        server.until(lambda: consumer.stats.acknowledged == 40)
        server.quiet(consumer)
        service.stop()
        assert len(handle.calls) == 80
        assert proxy.counts.dropped_replies >= 3
        connection.store.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"redelivery": "topic"}, "redelivery"),
        ({"hand_over": "script"}, "hand_over"),
        ({"batch": 501}, "batch"),
        ({"idle_ms": 5}, "idle_ms"),
        ({"secrets": (b"short",)}, "secret"),
    ],
)
def test_a_wrong_setting_is_told(settings: dict[str, Any], words: str) -> None:
    """The error for a wrong setting has the setting's name and the expected value."""
    with pytest.raises(ConfigError, match=f"expected .*{words}"):
        ServiceConfig(**settings)


def test_all_wrong_settings_are_told_at_once() -> None:
    """One error lists all wrong settings of a service."""
    with pytest.raises(ConfigError) as raised:
        ServiceConfig(redelivery="x", hand_over="y", batch=0, idle_ms=0)  # type: ignore[arg-type]  # on purpose
    assert len(raised.value.problems) == 4


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)  # polls until other threads have finished
