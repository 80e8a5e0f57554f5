"""Flow control from end to end: a message that a limit of its policy delays waits in the store and uses no attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retry_topic import Message, RetryPolicy
from retry_topic.consumer.reporting import Reporter
from retry_topic.policy import Breaker, Budget, PolicySet, Rate
from wheel_sched.store.rate_limits import RateLimits

if TYPE_CHECKING:
    from ..conftest import Bench

Policy = Callable[..., RetryPolicy]
IDLE_MS = 30_000


class Remote:
    """A handler that calls a remote service, which can be down."""

    def __init__(self) -> None:
        self.down = threading.Event()
        self.down.set()
        self.calls: list[Message] = []
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> Any:
        with self.lock:
            self.calls.append(message)
        if self.down.is_set() and message.header("x-host") != b"well":
            raise ConnectionError("nobody answers")

    def count(self, value: bytes | None = None) -> int:
        with self.lock:
            return sum(value is None or call.value == value for call in self.calls)


def test_a_rate_holds_releases_back_and_loses_none(bench: Bench, policy: Policy) -> None:
    """Thirty retries are due together and come back at 100 a second. Waiting uses no attempt."""
    service = bench.serve(policy(base_ms=20, rate=Rate(100, "s"), burst=2, max_attempts=2))
    assert service.hand_over == "claim, publish, settle"
    again: list[bytes] = []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        if message.header("retry-attempt") is None:
            raise OSError
        with lock:
            again.append(message.value)

    start_ms = bench.connection.store.now_ms()
    bench.publish(*(b"%d" % number for number in range(30)))
    bench.consume(handle, concurrency=1, idle_ms=IDLE_MS)
    bench.until(lambda: len(again) == 30)
    # two at once, then one each 10 ms; in a shorter time the rate would be exceeded
    assert bench.connection.store.now_ms() - start_ms >= 28 * 10
    assert len(set(again)) == 30
    topic = next(flow for flow in RateLimits(bench.connection.store).flows() if flow.destination is None)
    assert topic.numbers["granted"] == 30
    assert bench.connection.store.counts().total("dead") == 0


def test_an_open_circuit_keeps_retries_in_the_store_until_a_probe_succeeds(bench: Bench, policy: Policy) -> None:
    """While the destination is down, only probes reach it. The other messages wait and use no attempt."""
    remote = Remote()
    breaker = Breaker(percent=50, of=5, within_ms=60_000, open_ms=100, by="x-host")
    bench.serve(policy(base_ms=60, max_attempts=None, breaker=breaker))
    control = RateLimits(bench.connection.store)

    def circuit() -> Any:
        return next((flow for flow in control.flows() if flow.destination == "ill"), None)

    bench.publish(*(b"%d" % number for number in range(20)), headers=(("x-host", b"ill"),))
    consumer = bench.consume(remote, reports=True, destination="x-host", idle_ms=IDLE_MS)
    bench.until(lambda: circuit() is not None and circuit().state == "o")
    bench.until(lambda: consumer.stats.in_flight == 0)
    bench.until(lambda: circuit().numbers.get("probes", 0) >= 1)
    remote.down.clear()
    bench.until(lambda: consumer.stats.acknowledged == 20)
    bench.until(lambda: circuit().state == "c" or circuit().numbers.get("pok", 0) > 0)
    assert circuit().numbers["refused"] >= 1
    assert bench.connection.store.counts().total("dead") == 0


def test_one_destination_that_is_down_holds_back_no_other(bench: Bench, policy: Policy) -> None:
    """Each destination has its own circuit, so a message for another destination is retried."""
    remote = Remote()
    breaker = Breaker(percent=50, of=2, within_ms=60_000, open_ms=600_000, by="x-host")
    bench.serve(policy(base_ms=10, max_attempts=None, breaker=breaker))
    control = RateLimits(bench.connection.store)
    control.report("billing/orders", [("ill", 0, 0, 50)])
    bench.publish(b"ill", headers=(("x-host", b"ill"),))
    once: list[Message] = []

    def handle(message: Message) -> Any:
        if message.value == b"well" and not once:
            once.append(message)
            raise OSError
        return remote(message)

    bench.publish(b"well", headers=(("x-host", b"well"),))
    bench.consume(handle, idle_ms=IDLE_MS)
    bench.until(lambda: remote.count(b"well") == 1)
    bench.until(lambda: any(flow.numbers.get("refused") for flow in control.flows()))
    assert remote.count(b"ill") == 1


def test_a_budget_goes_by_the_first_attempts_that_consumers_report(bench: Bench) -> None:
    """`Reporter` counts first attempts by topic, and successes and failures by destination."""
    reporter = Reporter(bench.connection.store, "billing", "x-host")
    for number in range(10):
        message = Message("orders", b"", headers=(("x-host", b"a"),))
        reporter.note(message, first=number < 6, succeeded=number % 2 == 0)
    reporter.report()
    reporter.report()
    topic, circuit = sorted(RateLimits(bench.connection.store).flows(), key=lambda flow: flow.destination or "")
    assert (topic.topic, topic.numbers["f0"] + topic.numbers.get("f1", 0)) == ("billing/orders", 6)
    assert (circuit.numbers["ok0"], circuit.numbers["bad0"]) == (5, 5)


def test_a_budget_without_first_attempts_lets_the_least_through(bench: Bench, policy: Policy) -> None:
    """Without first attempts, retries come back at the budget's least rate. No message waits for ever."""
    bench.serve(policy(base_ms=10, max_attempts=2, budget=Budget(1, Rate(20, "s"))))
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        if message.header("retry-attempt") is None:
            raise OSError
        seen.append(message.value)

    bench.publish(*(b"%d" % number for number in range(10)))
    bench.consume(handle, concurrency=1, idle_ms=IDLE_MS)
    bench.until(lambda: len(seen) == 10)
    assert sorted(seen) == [b"%d" % number for number in range(10)]


def test_spread_dues_are_told_by_topic(bench: Bench, policy: Policy) -> None:
    """The policy's spread adds a random delay to each retry. For a topic with a spread, the number `spread` counts each
    failure that is retried. Failures of other topics are not counted."""
    policies = PolicySet(policy(), {"orders": policy(base_ms=10, spread_ms=20, max_attempts=3)})
    bench.serve(policies)
    bench.publish(*(b"%d" % number for number in range(10)))
    bench.publish(b"other", topic="invoices")

    def handle(message: Message) -> None:
        if message.header("retry-attempt") != b"2":
            raise OSError

    consumer = bench.consume(handle, topics=["orders", "invoices"], idle_ms=IDLE_MS)
    bench.until(lambda: consumer.stats.acknowledged == 11)
    control = RateLimits(bench.connection.store)
    bench.until(lambda: [one.numbers["spread"] for one in control.flows()] == [20])
    (flow,) = control.flows()
    assert (flow.topic, "granted" in flow.numbers) == ("billing/orders", False)


def test_messages_published_for_later_are_not_held_back(bench: Bench, policy: Policy) -> None:
    """A delayed message is no retry, so a rate of one an hour does not delay it further."""
    bench.serve(policy(rate=Rate(1, "h"), burst=1))
    bench.connection.broker.create_topic("orders")
    seen: list[bytes] = []
    for number in range(5):
        bench.connection.publish("orders", b"%d" % number, delay=0.01)
    bench.consume(lambda message: seen.append(message.value), idle_ms=IDLE_MS)
    bench.until(lambda: len(seen) == 5)
