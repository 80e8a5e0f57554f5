"""The publisher's linger: what comes within a few milliseconds goes out in one call of the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from retry_topic import Connection, Message, RetryService, connect
from retry_topic import lingering as lingering_module
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.lingering import LingeringPublisher
from retry_topic.message.body_codec import encode_body
from retry_topic.publisher import BrokerPublisher
from retry_topic.service import ServiceConfig
from wheel_sched.dispatcher import Batch, DispatcherConfig, Failed
from wheel_sched.errors import ConfigError
from wheel_sched.purgatory import DelayedFetch
from wheel_sched.store import Claim, Claimed, Done, Held

PATIENCE_S = 30


class Counting:
    """A broker that notes what each call brought."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.error: Exception | None = None

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        self.calls.append([message.value for message in messages])
        if self.error is not None:
            raise self.error
        return [PublishFailure("no", transient=False) if m.value == b"bad" else None for m in messages]


def batch_of(*values: bytes, lease_s: float = 60) -> Batch:
    items = [Claimed(value.decode(), 0, 1, "t", encode_body(Message("t", value))) for value in values]
    batch = Batch(Claim(0, 1, 0, 1, None, None, []), items)
    batch.lease_until_ns = time.monotonic_ns() + int(lease_s * 1e9)
    return batch


@pytest.fixture
def broker() -> Counting:
    return Counting()


@pytest.fixture
def linger(broker: Counting) -> Iterator[Callable[..., LingeringPublisher]]:
    made: list[LingeringPublisher] = []

    def make(linger_ms: int = 600_000, messages: int = 4) -> LingeringPublisher:
        made.append(LingeringPublisher(BrokerPublisher(broker), linger_ms=linger_ms, messages=messages))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


def test_batches_wait_for_each_other_and_go_together(broker: Counting, linger: Any) -> None:
    """Nothing goes before there is enough; then all of it in one call, each answered in its own batch."""
    publisher = linger()
    first, second = batch_of(b"a", b"bad"), batch_of(b"c", b"d", b"e")
    told: list[Batch] = []
    first.told = second.told = told.append
    publisher.publish(first)
    assert (broker.calls, first.answers) == ([], [None, None])
    publisher.publish(second)
    assert broker.calls == [[b"a", b"bad", b"c", b"d", b"e"]]
    assert first.answers == [Done("a"), Failed("no", transient=False)]
    assert second.answers == [Done("c"), Done("d"), Done("e")]
    assert told == [first, second]


def test_a_lone_batch_goes_when_the_linger_is_over(broker: Counting, linger: Any) -> None:
    """After the linger, and not before; the next one begins a new linger."""
    publisher = linger(linger_ms=20)
    for value in (b"a", b"b"):
        batch, told = batch_of(value), threading.Event()
        batch.told = lambda _, told=told: told.set()
        begun = time.monotonic()
        publisher.publish(batch)
        assert told.wait(PATIENCE_S)
        assert time.monotonic() - begun >= 0.02
    assert broker.calls == [[b"a"], [b"b"]]


def test_what_is_parked_at_the_end_is_sent(broker: Counting, linger: Any) -> None:
    """`close` waits for nobody."""
    publisher = linger()
    batch = batch_of(b"a")
    publisher.publish(batch)
    publisher.close()
    assert (broker.calls, batch.answers) == ([[b"a"]], [Done("a")])


def test_what_comes_after_the_end_goes_at_once(broker: Counting, linger: Any) -> None:
    """There is nothing left that could wait, and a batch that is parked for ever would be in doubt."""
    publisher = linger()
    publisher.close()
    for value in (b"a", b"b"):
        batch = batch_of(value)
        publisher.publish(batch)
        assert batch.answers == [Done(value.decode())]
    assert broker.calls == [[b"a"], [b"b"]]


def test_a_broker_that_raises_leaves_all_of_them_in_doubt(broker: Counting, linger: Any) -> None:
    """Each batch has its answers; nothing waits for the publish timeout."""
    broker.error = RuntimeError("a bug")
    batch = batch_of(b"a", b"b", b"c", b"d")
    linger().publish(batch)
    assert [answer.in_doubt for answer in batch.answers if isinstance(answer, Failed)] == [True] * 4


def test_what_cannot_be_read_is_held_at_once_and_what_lost_its_lease_is_not_sent(broker: Counting, linger: Any) -> None:
    """Neither reaches the broker; others may have the second by now."""
    publisher = linger(messages=2)
    unreadable, late, good = batch_of(b"x"), batch_of(b"late", lease_s=-1), batch_of(b"a")
    unreadable.items[0] = Claimed("x", 0, 1, "t", b"\xff")
    for batch in (unreadable, late, good):
        publisher.publish(batch)
    assert isinstance(unreadable.answers[0], Held)
    assert isinstance(late.answers[0], Failed)
    assert (broker.calls, good.answers) == ([[b"a"]], [Done("a")])


def test_a_service_lingers_through_a_delayed_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four workers messages of many batches arrive, and each call of the broker is a `DelayedFetch` that ended."""
    fetches: list[int] = []
    calls: list[int] = []

    class Seen(DelayedFetch[Any]):
        def on_complete(self) -> None:
            fetches.append(1)
            super().on_complete()

    monkeypatch.setattr(lingering_module, "DelayedFetch", Seen)
    sent = BrokerPublisher.sent

    def counted(self: BrokerPublisher, messages: Any) -> Any:
        calls.append(len(messages))
        return sent(self, messages)

    monkeypatch.setattr(BrokerPublisher, "sent", counted)
    config = ServiceConfig(linger_ms=50, hand_over="settle", dispatcher=DispatcherConfig(workers=4, batch=5))
    with connect("memory:") as home, RetryService(home, "g", config=config) as service:
        home.broker.create_topic("t")
        arrived = _publish(home, 40)
        deadline = time.monotonic() + PATIENCE_S
        while service.stats.published < 40:
            assert time.monotonic() < deadline
            time.sleep(0.005)  # the dispatcher's doing; its counter is the only sign
    assert sum(calls) == arrived
    assert len(fetches) == len(calls) > 0


def _publish(home: Connection, count: int) -> int:
    for number in range(count):
        home.publish("t", b"%d" % number, delay=0.2)
    return count


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"linger_ms": -1}, "linger_ms"),
        ({"linger_ms": 10_000}, "lease_ms"),
        ({"linger_messages": 0}, "linger_messages"),
    ],
)
def test_a_linger_that_cannot_be_is_refused(wrong: dict[str, int], named: str) -> None:
    """Below the lease, or what was parked could be another dispatcher's when it is sent."""
    with pytest.raises(ConfigError, match=named):
        ServiceConfig(**wrong)  # type: ignore[arg-type]
