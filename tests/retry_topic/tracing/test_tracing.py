"""OpenTelemetry spans of handlers: parents, links through a delay, and outcomes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from retry_topic import Consumer, Message, Retry, RetryPolicy, RetryService, connect
from retry_topic.message.headers import RetryState, write
from retry_topic.policy.delays import Fixed
from retry_topic.tracing import trace_headers, traced
from wheel_sched.errors import ConfigError

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
TRACEPARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def test_a_first_delivery_is_a_child_of_its_creation(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    """The span of a first delivery belongs to the producer's trace and has the attributes of the semantic conventions.
    Baggage reaches the handler."""
    seen = []
    handler = traced(lambda message: seen.append(baggage.get_baggage("tenant")), tracer_provider=provider)
    handler(Message("orders", b"abc", headers=(TRACEPARENT, ("Baggage", b"tenant=blue"))))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == f"{TRACE}-{SPAN}"
    assert span.links == ()
    assert span.attributes is not None
    assert span.attributes["wheel_sched.attempt"] == 1
    assert span.attributes["messaging.message.body.size"] == 3
    assert seen == ["blue"]
    assert not trace.get_current_span().get_span_context().is_valid  # the span is no longer current on this thread


def test_a_delayed_attempt_starts_a_trace_that_links_to_it(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """The span of a delayed attempt has no parent. It links to the producer's trace and has the due time and the
    lateness."""
    due_ms = int(time.time() * 1000) - 500
    headers = write((TRACEPARENT, ("baggage", b"tenant=blue")), RetryState(id="m", attempt=2, due_ms=due_ms))
    seen = []
    traced(lambda message: seen.append(baggage.get_baggage("tenant")), tracer_provider=provider)(
        Message("orders", b"", headers=headers)
    )
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]
    assert span.attributes is not None
    assert span.attributes["wheel_sched.attempt"] == 3
    assert span.attributes["wheel_sched.due_at"] == due_ms
    lateness_s = span.attributes["wheel_sched.lateness"]
    assert isinstance(lateness_s, float)
    assert lateness_s >= 0.4
    assert seen == ["blue"]


def test_failures_and_verdicts_are_told(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    """An exception is recorded in the span and raised again. A verdict becomes the span's outcome and is returned."""

    def fail(message: Message) -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        traced(fail, tracer_provider=provider)(Message("orders", b""))
    verdict = Retry(after=3)
    assert traced(lambda message: verdict, tracer_provider=provider)(Message("orders", b"")) is verdict
    raised, returned = exporter.get_finished_spans()
    assert raised.status.status_code is StatusCode.ERROR
    assert [event.name for event in raised.events] == ["exception"]
    assert returned.status.status_code is StatusCode.ERROR
    assert returned.attributes is not None
    assert returned.attributes["wheel_sched.outcome"] == "retry"


def test_async_handlers_stay_async(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    """An async function, or an object with an async `__call__`, is still async when it is traced."""

    class Handler:
        async def __call__(self, message: Message) -> str:
            await asyncio.sleep(0)
            return message.topic

    async def function(message: Message) -> str:
        return await Handler()(message)

    for handler in (Handler(), function):
        wrapped = traced(handler, tracer_provider=provider)
        assert inspect.iscoroutinefunction(wrapped)
        assert asyncio.run(wrapped(Message("orders", b""))) == "orders"
    assert len(exporter.get_finished_spans()) == 2


@pytest.mark.parametrize(
    "header",
    [
        ("traceparent", b"\xff\xfe"),
        ("traceparent", b"00-zz-11-01"),
        ("traceparent", b"x" * 100_000),
        ("tracestate", b"=,,"),
    ],
)
def test_broken_headers_make_a_trace_of_its_own(
    exporter: InMemorySpanExporter, provider: TracerProvider, header: tuple[str, bytes]
) -> None:
    """With unreadable trace headers the span has no parent and no link, and the handler runs."""
    traced(lambda message: None, tracer_provider=provider)(Message("orders", b"", headers=(header,)))
    (span,) = exporter.get_finished_spans()
    assert (span.parent, span.links) == (None, ())


def test_what_cannot_be_called_is_refused() -> None:
    """`traced` raises the error at once, not at the first message."""
    with pytest.raises(ConfigError, match="expected a handler that can be called, got: 3"):
        traced(3)  # type: ignore[arg-type]


def test_a_retry_links_to_the_producer_through_the_store(
    quick_poll: None, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """The first delivery's span is a child of the producer's span. The retry's span links to the producer's span and to
    the first delivery's."""
    attempts = []

    def handle(message: Message) -> Any:
        attempts.append(message)
        if len(attempts) == 1:
            raise TimeoutError("once")

    policy = RetryPolicy(delay=Fixed(10))
    with (
        connect("memory:", create_topics=True) as connection,
        RetryService(connection, "billing", policy),
        Consumer(connection, "orders", traced(handle, tracer_provider=provider), group="billing"),
    ):
        with provider.get_tracer("producer").start_as_current_span("create orders") as created:
            connection.publish("orders", b"1", headers=trace_headers())
        until_s = time.monotonic() + 30
        while len(exporter.get_finished_spans()) < 3:
            assert time.monotonic() < until_s, attempts
            time.sleep(0.005)  # until both deliveries were handled
    spans = [span for span in exporter.get_finished_spans() if span.name == "process orders"]
    context = created.get_span_context()
    assert [span.parent and span.parent.span_id for span in spans] == [context.span_id, None]
    first = spans[0].get_span_context()
    assert first is not None
    assert [[link.context.span_id for link in span.links] for span in spans] == [[], [context.span_id, first.span_id]]
