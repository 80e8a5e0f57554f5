"""The thread that settles deliveries, with a broker that refuses, does not answer or has lost a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.consumer.config import ConsumerStats
from retry_topic.consumer.outcome import HandlerOutcome
from retry_topic.consumer.settling import InFlightDeliveries, Settler
from retry_topic.message import Message, Source
from wheel_sched.errors import BrokerUnavailable

RECORD = Message("billing.retry", b"m", headers=(("retry-attempt", b"1"),))


class Stub:
    """A broker consumer that returns prepared answers and records its calls."""

    def __init__(self) -> None:
        self.acked: list[Delivery] = []
        self.forwarded: list[Message] = []
        self.beaten: list[Delivery] = []
        self.plan: list[Any] = []  # the result of each coming call: an exception, a failure, or None for success
        self.beat_error: Exception | None = None
        self.asked = 0

    def _next(self) -> PublishFailure | None:
        self.asked += 1
        planned = self.plan.pop(0) if self.plan else None
        if isinstance(planned, Exception):
            raise planned
        failure: PublishFailure | None = planned
        return failure

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        return []

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._next()
        self.acked += deliveries

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = []
        for _, message in pairs:
            answers.append(self._next())
            if answers[-1] is None:
                self.forwarded.append(message)
        return answers

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        if self.beat_error is not None:
            raise self.beat_error
        self.beaten += deliveries

    def close(self) -> None:
        pass


class Rig:
    """A running settler with a stub in place of the broker's consumer."""

    def __init__(self, idle_ms: int = 60_000) -> None:
        self.broker = MemoryBroker()
        self.stub = Stub()
        self.in_flight = InFlightDeliveries(idle_ms)
        self.stats = ConsumerStats()
        self.settler = Settler(self.broker, self.stub, self.in_flight, self.stats, idle_ms)
        self.thread = threading.Thread(target=self.settler.run, daemon=True)
        self.thread.start()

    def deliver(self, offset: str = "1", handle: Any = None) -> Delivery:
        delivery = Delivery(Message("orders", b"m", source=Source("orders", 0, offset)), handle or offset)
        self.in_flight.add(delivery)
        return delivery

    def drained(self, timeout_s: float = 40) -> bool:
        return self.in_flight.wait_until_at_most(0, timeout_s)

    def finish(self) -> bool:
        self.settler.finish()
        self.thread.join(40)
        return not self.thread.is_alive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.finish()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retry_topic.consumer.settling.AWAY_S", (0.01, 0.02))


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), RuntimeError("a bug")])
@pytest.mark.parametrize("forward", [None, RECORD])
def test_what_could_not_be_settled_is_settled_later(rig: Rig, error: Exception, forward: Message | None) -> None:
    """Whatever the broker raises, the thread continues and settles the outcome later."""
    rig.stub.plan = [error, error, error]
    ended: Any = "acknowledged" if forward is None else "retried"
    rig.settler.put(HandlerOutcome(rig.deliver(), ended, forward))
    assert rig.drained()
    assert len(rig.stub.acked) + len(rig.stub.forwarded) == 1
    assert (rig.stats.acknowledged, rig.stats.retried) == ((1, 0) if forward is None else (0, 1))


def test_one_refused_record_does_not_hold_up_the_others(rig: Rig) -> None:
    """While one outcome waits for its next attempt, new outcomes are settled at once."""
    rig.stub.plan = [PublishFailure("busy")] * 10_000
    rig.settler.put(HandlerOutcome(rig.deliver("refused"), "retried", RECORD))
    _until(lambda: rig.stub.asked > 2)
    rig.stub.plan = [PublishFailure("busy")]
    for offset in map(str, range(20)):
        rig.settler.put(HandlerOutcome(rig.deliver(offset), "acknowledged"))
    assert rig.drained()
    assert (len(rig.stub.acked), len(rig.stub.forwarded)) == (20, 1)


def test_a_deleted_retry_topic_is_created_again(rig: Rig) -> None:
    """After the answer "unknown topic" the settler creates the topic and sends the same record again."""
    rig.stub.plan = [PublishFailure("unknown topic", transient=False)]
    rig.settler.put(HandlerOutcome(rig.deliver(), "retried", RECORD))
    assert rig.drained()
    assert rig.stub.forwarded == [RECORD]
    assert "billing.retry" in rig.broker.topics()


def test_a_record_our_headers_make_too_large_goes_without_them(rig: Rig) -> None:
    """A record refused for too many headers is sent without retry headers, so that the message is not lost."""
    rig.stub.plan = [PublishFailure("too many headers", transient=False)] * 2
    rig.settler.put(HandlerOutcome(rig.deliver(), "retried", RECORD))
    assert rig.drained()
    assert rig.stub.forwarded == [Message("billing.retry", b"m")]


def test_a_record_that_is_too_large_loses_its_traceback_first(rig: Rig) -> None:
    """While the broker refuses a record as too large, the settler makes it smaller. It removes the traceback, then the
    failed attempts, and at last all retry headers."""
    names = ("retry-attempt", "retry-failed-attempts", "retry-traceback")
    record = Message("billing.retry", b"m", headers=tuple((name, b"1") for name in names))
    too_large = PublishFailure("too large", transient=False)
    for refusals, left in ((2, names[:2]), (3, names[:1]), (4, ())):
        rig.stub.plan, rig.stub.forwarded = [too_large] * refusals, []
        rig.settler.put(HandlerOutcome(rig.deliver(f"{refusals}"), "retried", record))
        assert rig.drained()
        assert rig.stub.forwarded == [Message("billing.retry", b"m", headers=tuple((name, b"1") for name in left))]


def test_a_record_refused_for_ever_stays_in_flight_and_is_kept_alive() -> None:
    """The broker refuses a record each time. The settler repeats the attempt until the settler ends, and renews the
    delivery, so no other consumer gets it."""
    rig = Rig(idle_ms=30)
    rig.stub.plan = [PublishFailure("never", transient=False)] * 10_000
    delivery = rig.deliver()
    rig.settler.put(HandlerOutcome(delivery, "retried", RECORD))
    _until(lambda: rig.stub.beaten.count(delivery) > 2 and rig.stub.asked > 5)
    assert len(rig.in_flight) == 1
    assert rig.finish()
    assert rig.stub.forwarded == []


def test_what_is_in_flight_is_kept_alive_even_when_a_beat_fails() -> None:
    """After a failed heartbeat the settler sends more. A settled delivery gets no more heartbeats."""
    rig = Rig(idle_ms=30)
    rig.stub.beat_error = BrokerUnavailable("away")
    delivery = rig.deliver()
    time.sleep(0.05)  # a few beats fail
    rig.stub.beat_error = None
    _until(lambda: rig.stub.beaten.count(delivery) > 2)
    rig.settler.put(HandlerOutcome(delivery, "acknowledged"))
    assert rig.drained()
    assert rig.finish()
    beats = len(rig.stub.beaten)
    assert rig.stub.beaten[:beats] == [delivery] * beats


def test_finishing_settles_what_is_there(rig: Rig) -> None:
    """All outcomes given before `finish` are settled before the thread ends."""
    for offset in map(str, range(500)):
        rig.settler.put(HandlerOutcome(rig.deliver(offset), "acknowledged"))
    assert rig.finish()
    assert len(rig.stub.acked) == 500


def test_finishing_does_not_wait_for_a_broker_that_is_away(rig: Rig) -> None:
    """After `finish` the thread ends within 20 s, although the broker does not answer."""
    rig.stub.plan = [BrokerUnavailable("away")] * 10_000
    rig.settler.put(HandlerOutcome(rig.deliver(), "acknowledged"))
    start = time.monotonic()
    assert rig.finish()
    assert time.monotonic() - start < 20


def test_a_record_that_is_here_already_is_settled_with_its_newest_handle(rig: Rig) -> None:
    """The broker delivers a record again while its handler runs. The record is settled once, with the newer handle."""
    first = rig.deliver("1", handle="old")
    again = Delivery(first.message, "new", 2)
    assert rig.in_flight.add(again) is False
    rig.settler.put(HandlerOutcome(first, "acknowledged"))
    assert rig.drained()
    assert [delivery.handle for delivery in rig.stub.acked] == ["new"]


def test_room_is_what_is_free() -> None:
    """`room` returns the number of free places. If there is none, it waits for one, but not longer than its timeout."""
    in_flight = InFlightDeliveries(60_000)
    deliveries = [Delivery(Message("t", b"", source=Source("t", 0, str(n))), n) for n in range(3)]
    for delivery in deliveries:
        in_flight.add(delivery)
    assert (in_flight.room(5, 0), in_flight.room(3, 0.01)) == (2, 0)
    threading.Timer(0.02, in_flight.remove, [deliveries[:1]]).start()
    assert in_flight.room(3, 40) == 1


def test_holds_are_renewed_because_a_heartbeat_monitor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unsettled delivery is a member of a heartbeat monitor. The settler calls `beat` only for deliveries that the
    monitor reports as expired."""
    rig = Rig(idle_ms=300)
    try:
        kept = rig.deliver("kept")
        gone = rig.deliver("gone")
        _until(lambda: len(rig.in_flight._holds) == 2)  # a hold is absent while it is being renewed
        _until(lambda: rig.stub.beaten.count(kept) >= 2)
        rig.settler.put(HandlerOutcome(gone, "acknowledged"))
        assert rig.in_flight.wait_until_at_most(1, 40)
        _until(lambda: len(rig.in_flight._holds) == 1)  # the hold is absent while it is being renewed
        assert rig.in_flight._holds.expired >= 2
        monkeypatch.setattr(rig.in_flight._holds, "run_due", lambda: 0)
        seen = len(rig.stub.beaten)
        time.sleep(0.3)  # the time of three renewals
        assert len(rig.stub.beaten) <= seen + 1  # one beat may have been running
        rig.settler.put(HandlerOutcome(kept, "acknowledged"))
        assert rig.drained()
        assert len(rig.in_flight._holds) == 0
    finally:
        assert rig.finish()


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)  # polls until the settling thread has finished
