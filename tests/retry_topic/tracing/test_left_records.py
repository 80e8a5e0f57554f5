"""The intake ends the span of every record that it has read, also when it does not store the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from retry_topic import Message, RetryPolicy, connect
from retry_topic.connection import Connection
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.intake.worker import IntakeWorker, Reading
from retry_topic.message.headers import write
from retry_topic.policy import PolicySet
from retry_topic.policy.delays import Fixed
from retry_topic.tracing import Tracing
from tests.retry_topic.intake.test_one_batch_ahead import Log, Logs, drain, failed, intake, once
from wheel_sched.store import open_store

T = TypeVar("T")


class Spans:
    """A tracer provider, and the outcomes of the intake's ended spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def outcomes(self) -> list[str]:
        """The outcome of each ended span of the intake, or "stored" if the span has none."""
        spans = [span for span in self._exporter.get_finished_spans() if span.name.startswith("receive ")]
        return [str((span.attributes or {}).get("wheel_sched.outcome", "stored")) for span in spans]


def test_a_batch_of_a_log_that_the_store_refused_is_left() -> None:
    """A batch does not begin at the store's position. The spans of this batch, and of the batch read after it, end with
    the outcome "left". The records are read again and get new spans."""
    spans = Spans()
    with Connection(open_store("memory:"), Logs(), tracing=Tracing(spans.provider)) as connection:
        taking, log = intake(connection), Log(*(failed(name) for name in "abcd"))
        log.place = 2  # the store has no position of this partition
        taking.offer(log, log.next(1), once)
        assert spans.outcomes() == []
        taking.offer(log, log.next(1), once)
        assert spans.outcomes() == ["left", "left"]
        drain(taking, log)
    assert spans.outcomes() == ["left", "left", *["stored"] * 4]


def test_a_batch_of_a_log_without_an_answer_is_left() -> None:
    """The intake stops before it knows the store's answer for the batch in flight. The batch's span ends as "left"."""

    class Stopped(Exception):
        """Raised to stop the intake."""

    def stop(call: Callable[[], T]) -> T:
        call()
        raise Stopped

    spans = Spans()
    with Connection(open_store("memory:"), Logs(), tracing=Tracing(spans.provider)) as connection:
        taking, log = intake(connection), Log(failed("a"), failed("b"))
        part = log.next(1)
        with pytest.raises(Stopped):
            taking.offer(log, part, stop)  # stops before the records have spans
        taking.offer(log, part, once)
        with pytest.raises(Stopped):
            taking.finish(stop)
    assert spans.outcomes() == ["left"]


def test_a_record_of_a_queue_that_cannot_be_stored_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record of a batch cannot be stored. Its span ends as "left", and the spans of the other records as
    "stored"."""
    spans = Spans()
    with connect("memory:", create_topics=True, tracing=Tracing(spans.provider)) as connection:
        broker = connection.broker
        broker.create_topic("g.retry")
        broker.publish([Message("g.retry", b"v", None, write((), failed(name))) for name in ("a", "bad", "c")])
        taking = IntakeFromQueue(connection, "g", PolicySet(RetryPolicy(delay=Fixed(60_000))))
        store = taking.store

        def refuse(deliveries: Any, **more: Any) -> Any:
            if any(dict(one.message.headers)["retry-id"] == b"bad" for one in deliveries):
                raise ValueError("a record that nobody has thought of")
            return store(deliveries, **more)

        monkeypatch.setattr(taking, "store", refuse)
        IntakeWorker(broker, taking, Reading("g.retry", "g", 10, 1_000, lambda: 0)).step()
    assert sorted(spans.outcomes()) == ["left", "stored", "stored"]
