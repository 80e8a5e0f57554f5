"""Flow control of what goes out in transactions: what is held back is no attempt, and none of it is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, Home, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.headers import read
from retry_topic.names import redelivery_topic_of, retry_topic_of
from retry_topic.policy import Breaker, Budget, Fixed, Rate
from wheel_sched.store.flow_control import FlowControl

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PATIENCE_S = 90.0


@pytest.fixture
def home(kafka: TemporaryKafka, name: str) -> Iterator[Home]:
    """Over the session's broker; the store is this process's."""
    with connect("memory:", broker=KafkaBroker(kafka.bootstrap, partitions=2), namespace=name) as home:
        home.broker.create_topic(f"{name}-orders")
        yield home


def until(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain: {told()}"
        time.sleep(0.02)  # other threads' doing; there is nothing to wait on


def flow(home: Home, destination: str | None = None) -> Any:
    """The numbers of the one flow there is, or of a circuit."""
    return next((one for one in FlowControl(home.store).flows() if one.destination == destination), None)


def test_equal_dues_are_spread(home: Home, name: str) -> None:
    """What fails in the same moment becomes due evenly over the spread, and never before the delay."""
    delay_ms, spread_ms, count = 3_600_000, 600_000, 200
    policy = RetryPolicy(delay=Fixed(base_ms=delay_ms), spread_ms=spread_ms)
    home.broker.create_topic(retry_topic_of(name))
    began_ms = home.store.now_ms()
    with RetryService(home, name, policy):
        assert not any(home.broker.publish([Message(retry_topic_of(name), b"%d" % n) for n in range(count)]))
        until(lambda: home.store.counts().total("due") == count, home.store.counts)
        taken_ms = home.store.now_ms() - began_ms
        dues_ms = sorted(item.score_ms for item in home.store.list_items("due", limit=500).found)
    assert len(dues_ms) == count
    assert dues_ms[0] >= began_ms + delay_ms
    assert dues_ms[-1] <= began_ms + delay_ms + spread_ms + taken_ms
    thirds = Counter((due_ms - dues_ms[0]) * 3 // (dues_ms[-1] - dues_ms[0] + 1) for due_ms in dues_ms)
    assert min(thirds[third] for third in range(3)) > count / 10, thirds  # 67 each, give or take 7


def test_retries_are_at_most_a_share_of_first_attempts(
    home: Home, name: str, committed: Callable[[str], list[Message]]
) -> None:
    """By a budget of which nothing is earned one comes out after the other; each comes back exactly once."""
    count = 12
    policy = RetryPolicy(delay=Fixed(base_ms=1), max_attempts=2, budget=Budget(1, Rate(20, "s")))
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        if not read(message.headers).attempt:
            raise OSError("not yet")
        seen.append(message.value)

    config = ConsumerConfig(reports=True, concurrency=1)
    with RetryService(home, name, policy) as service:
        assert service.hand_over == "transactions"
        with Consumer(home, f"{name}-orders", handle, group=name, config=config):
            assert not any(home.broker.publish([Message(f"{name}-orders", b"%d" % n) for n in range(count)]))
            until(lambda: len(seen) == count, lambda: (seen, flow(home), home.store.counts()))
        assert flow(home).numbers["granted"] == count
    redelivered = committed(redelivery_topic_of(name))
    assert Counter(message.value for message in redelivered) == Counter(b"%d" % n for n in range(count))
    assert {read(message.headers).attempt for message in redelivered} == {1}


def test_an_open_circuit_lets_probes_through_until_one_succeeds(
    home: Home, name: str, committed: Callable[[str], list[Message]]
) -> None:
    """While the destination is down only a probe at a time reaches it, half-open; then all come, none of them dead."""
    count = 30
    down = threading.Event()
    down.set()

    def handle(message: Message) -> None:
        if down.is_set():
            raise ConnectionError("nobody answers")

    breaker = Breaker(percent=50, of=5, within_ms=60_000, open_ms=200, by="x-host")
    policy = RetryPolicy(delay=Fixed(base_ms=30), max_attempts=None, breaker=breaker)
    config = ConsumerConfig(reports=True, destination="x-host")
    headers = (("x-host", b"ill"),)
    with RetryService(home, name, policy) as service:
        assert service.hand_over == "transactions"
        with Consumer(home, f"{name}-orders", handle, group=name, config=config) as consumer:
            records = [Message(f"{name}-orders", b"%d" % n, None, headers) for n in range(count)]
            assert not any(home.broker.publish(records))
            until(lambda: flow(home, "ill") is not None and flow(home, "ill").state in "oh", lambda: consumer.stats)
            until(lambda: flow(home, "ill").numbers.get("probes", 0) >= 2, lambda: flow(home, "ill"))
            tried = consumer.stats.delivered
            probes = flow(home, "ill").numbers["probes"]
            until(lambda: flow(home, "ill").numbers["probes"] >= probes + 3, lambda: flow(home, "ill"))
            # all that came meanwhile are probes; a few more may have been let through before we looked
            assert consumer.stats.delivered - tried <= flow(home, "ill").numbers["probes"] - probes + count
            down.clear()
            until(lambda: consumer.stats.acknowledged == count, lambda: (consumer.stats, flow(home, "ill")))
        assert flow(home, "ill").numbers["refused"] >= 1
        assert home.store.counts().total("dead") == 0
    attempts = Counter(message.value for message in committed(redelivery_topic_of(name)))
    assert set(attempts) == {b"%d" % n for n in range(count)}
