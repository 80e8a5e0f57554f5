"""Fair topics of a retry service: shares between tenants, and `max_in_flight`, which follows the consumers' reports."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from retry_topic import DeadLetters, Message
from retry_topic.message.headers import read
from retry_topic.policy import Fair, Fixed, PolicySet, Rate, RetryPolicy
from retry_topic.release.fair import share_topics
from wheel_sched.store import Item, open_store
from wheel_sched.store.fair_shares import FairShares, fair_key_of

if TYPE_CHECKING:
    from conftest import Bench


def orders(fair: Fair, delay_ms: int = 0, **more: object) -> PolicySet:
    return PolicySet(topics={"orders": RetryPolicy(delay=Fixed(base_ms=delay_ms, jitter="none"), fair=fair, **more)})  # type: ignore[arg-type]


def test_retries_of_other_tenants_overtake_a_backlog(bench: Bench) -> None:
    """300 messages of one tenant fail first and are due first. The retry of another tenant is still sent early."""
    order: list[bytes] = []

    def handle(message: Message) -> None:
        if read(message.headers).attempt == 0:
            raise ValueError
        order.append(dict(message.headers)["tenant"])

    service = bench.serve(orders(Fair("header:tenant"), delay_ms=3_600_000))
    bench.consume(handle, concurrency=1)
    bench.publish(*[b"%d" % n for n in range(300)], headers=(("tenant", b"big"),))
    bench.publish(b"x", headers=(("tenant", b"small"),))
    bench.until(lambda: len(bench.taken) == 301)
    store = bench.connection.store
    items = store.list_items("due", limit=500).found
    assert {fair_key_of(item.refs) for item in items} == {"big", "small"}
    service.dispatcher.stop()
    now_ms = store.now_ms()
    for item in items:
        store.reschedule([item.id], now_ms - (1000 if fair_key_of(item.refs) == "big" else 0))
    bench.serve(orders(Fair("header:tenant")))
    bench.until(lambda: len(order) == 301)
    assert order.index(b"small") < 100


def test_the_reports_of_consumers_let_the_next_message_of_a_key_go(bench: Bench) -> None:
    """With `max_in_flight` 1, the retries of a tenant run one after the other, and all of them run."""
    running, most, done = 0, 0, 0
    lock = threading.Lock()

    def handle(message: Message) -> None:
        nonlocal running, most, done
        if read(message.headers).attempt == 0:
            raise ValueError
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)  # the handler takes its time
        with lock:
            running -= 1
            done += 1

    bench.serve(orders(Fair("key", max_in_flight=1)))
    bench.consume(handle, concurrency=8, reports=True)
    bench.publish(*[b"%d" % n for n in range(20)], key=b"a")
    bench.until(lambda: done == 20)
    assert most == 1
    bench.until(lambda: bench.connection.store.counts().total("due") == 0)


def test_the_ends_of_first_attempts_are_reported(bench: Bench) -> None:
    """A message published for later is in flight from its release until the end of its first attempt."""
    done: list[bytes] = []
    bench.serve(orders(Fair("key", max_in_flight=1)))
    bench.consume(lambda message: done.append(message.value), reports=True)
    for number in range(4):
        bench.connection.publish("orders", b"%d" % number, delay=0.001)
    bench.until(lambda: sorted(done) == [b"0", b"1", b"2", b"3"])


def test_the_ends_of_messages_without_an_attempt_are_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired message is given up, and is no longer in flight."""
    monkeypatch.setattr("retry_topic.consumer.consumer.expired", lambda header, _: header is not None)
    bench.serve(orders(Fair("key", max_in_flight=1)))
    consumer = bench.consume(lambda _: None, reports=True)
    for _ in range(4):
        bench.connection.publish("orders", b"x", delay=0.001, expires=3600)
    bench.until(lambda: consumer.stats.expired == 4)


@pytest.mark.parametrize("secrets", [(), (b"0123456789abcdef",)], ids=["unsigned", "signed"])
def test_a_replayed_dead_letter_gives_its_place_back(bench: Bench, secrets: tuple[bytes, ...]) -> None:
    """With `max_in_flight` 1, the second of two replayed letters goes out as soon as the first was handled."""
    done: list[bytes] = []

    def handle(message: Message) -> None:
        if not read(message.headers).replays:
            raise ValueError
        done.append(message.value)

    bench.serve(orders(Fair("key", max_in_flight=1), max_attempts=1), secrets=secrets)
    bench.consume(handle, reports=True, secrets=secrets)
    bench.publish(b"0", b"1", key=b"a")
    bench.dead(2)
    assert DeadLetters(bench.connection, secrets=secrets).replay().replayed == 2
    bench.until(lambda: sorted(done) == [b"0", b"1"])


def test_a_service_writes_its_settings_and_takes_them_back() -> None:
    with open_store("memory:") as store:
        shares = FairShares(store)
        share_topics(store, orders(Fair("key"), rate=Rate(10)), by_key=True)
        topic = shares.look("orders")
        assert topic is not None
        assert topic.settings.topic_interval_us == 100_000
        store.schedule([Item("a", 0, b"", "orders")])
        share_topics(store, PolicySet(topics={"other": RetryPolicy()}), by_key=True)
        assert shares.topics() == ["orders"]
        share_topics(store, PolicySet(topics={"orders": RetryPolicy()}), by_key=True)
        assert shares.topics() == []
