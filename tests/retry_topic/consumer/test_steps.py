"""One step of each background loop, called without its thread. The thread only repeats the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery
from retry_topic.connection import Connection
from retry_topic.consumer import Consumer, ConsumerConfig, ConsumerStats, failed_message
from retry_topic.consumer.ordered.assignment import ReaderContext
from retry_topic.consumer.ordered.key_heads import KeyHeads
from retry_topic.consumer.ordered.leased_topic import OrderedTopic
from retry_topic.consumer.outcome import HandlerOutcome
from retry_topic.consumer.settling import InFlightDeliveries, Settler
from retry_topic.history import Attempt, HistoryWriter
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.intake.worker import IntakeWorker, Reading
from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState
from retry_topic.policy import Failure, PolicySet
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.store import History, open_store


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Store and broker in memory, with short waits."""
    monkeypatch.setattr("retry_topic.intake.worker._POLL_MS", 1)
    monkeypatch.setattr("retry_topic.intake.worker._AWAY_S", (0.001,))
    monkeypatch.setattr("retry_topic.consumer.ordered.leased_topic._POLL_MS", 1)
    with Connection(open_store("memory:"), MemoryBroker(create_topics=True)) as opened:
        yield opened


def test_a_step_of_the_intake_takes_in_the_records_of_one_poll(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker does not answer, a step waits. The next step opens a new consumer and takes in the records."""
    broker = connection.broker
    intake = IntakeFromQueue(connection, "g", PolicySet())
    worker = IntakeWorker(broker, intake, Reading("g.retry", "g", 10, 1_000, lambda: 0))
    for offset in "12":
        message = Message("orders", b"m", source=Source("orders", 0, offset))
        broker.publish([failed_message("g", message, RetryState(), Failure(error_class="E"))])
    opened = broker.consumer
    with monkeypatch.context() as away:

        def unavailable(*_: Any, **__: Any) -> Any:
            raise BrokerUnavailable("away")

        away.setattr(broker, "consumer", unavailable)
        worker.step()
    assert connection.store.counts().total("due") == 0
    assert broker.consumer == opened
    worker.step()
    assert connection.store.counts().total("due") == 2
    assert not worker.alive


def test_a_step_of_the_consumer_polls_once_and_hands_over(connection: Connection) -> None:
    """The consumer's step polls and starts the handler. The settler's step settles the outcome."""
    handled: list[bytes] = []
    consumer = Consumer(connection, "orders", lambda message: handled.append(message.value), group="g")
    consumer._open()
    connection.broker.publish([Message("orders", b"m")])
    consumer.step()
    while not consumer.stats.acknowledged:
        assert consumer._settler.step()
    assert (handled, consumer.stats.delivered, consumer.stats.in_flight) == ([b"m"], 1, 0)
    consumer._handlers.close()
    consumer._consumer.close()


def test_a_step_of_the_settler_settles_what_has_ended(connection: Connection) -> None:
    """A step settles the outcomes given so far. After `finish`, `step` returns False when nothing is left."""
    broker, in_flight, stats = connection.broker, InFlightDeliveries(1_000), ConsumerStats()
    broker.publish([Message("orders", b"m")])
    consumer = broker.consumer(["orders"], "g", idle_ms=1_000)
    settler = Settler(broker, consumer, in_flight, stats, 1_000)
    (delivery,) = consumer.poll(1, 1)
    in_flight.add(delivery)
    settler.put(HandlerOutcome(delivery, "acknowledged"))
    assert settler.step()
    assert (stats.acknowledged, len(in_flight)) == (1, 0)
    settler.finish()
    assert not settler.step()


def test_a_step_of_an_ordered_reader_polls_once(connection: Connection) -> None:
    """The first steps acquire the topic, and later steps read it. Messages of one key are handled in order."""
    given: list[bytes] = []

    def give(delivery: Delivery, state: RetryState, sink: Any) -> None:
        given.append(delivery.message.value)
        sink.put(HandlerOutcome(delivery, "acknowledged"))

    connection.broker.publish([Message("orders", value, b"key") for value in (b"1", b"2")])
    context = ReaderContext(connection, "orders", "g", ConsumerConfig(idle_ms=1_000), ConsumerStats(), give)
    reader = OrderedTopic(context)
    while context.stats.acknowledged < 2:
        reader.step()
    assert given == [b"1", b"2"]
    reader._turns.close()  # gives up the topic


def test_a_step_of_the_key_heads_hands_over_what_came_back(connection: Connection) -> None:
    """A step gives a message without an ordering key to the handlers at once."""
    given: list[Delivery] = []
    heads = KeyHeads(connection.store, lambda delivery, *_: given.append(delivery), None, lambda _: RetryState())  # type: ignore[arg-type]
    delivery = Delivery(Message("g.redelivery", b"m"), None)
    heads.arrived(delivery)
    assert heads.step()
    assert given == [delivery]


def test_a_step_of_the_history_writer_writes_a_batch(connection: Connection) -> None:
    """A step writes the rows given so far. After `stop`, `step` returns False when nothing is left."""
    writer = HistoryWriter(connection.store, 100)
    writer.put([Attempt("m", "orders", 1, None, 0, "failed")])
    assert writer.step()
    assert (writer.written, len(History(connection.store).read(0, "").entries)) == (1, 1)
    writer.stop()
    assert not writer.step()
