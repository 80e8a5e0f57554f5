"""The spans of one message form one graph of links, from its publishing to its last attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from retry_topic import Connection, Consumer, Message, RetryPolicy, RetryService, connect
from retry_topic.dead_letters import DeadLetters
from retry_topic.policy.delays import Fixed
from retry_topic.tracing import Tracing, traced

pytestmark = pytest.mark.usefixtures("quick_poll")


class Traces:
    """A tracer provider, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, count: int) -> list[ReadableSpan]:
        """Wait for this number of ended spans. Return them in the order of their start."""
        until_s = time.monotonic() + 30
        while len(spans := self._exporter.get_finished_spans()) < count:
            assert time.monotonic() < until_s, [span.name for span in spans]
            time.sleep(0.005)  # polls until the service and the consumer have finished
        return sorted(spans, key=lambda span: span.start_time or 0)


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture(params=["memory", "embedded"])
def connection(request: pytest.FixtureRequest, traces: Traces, tmp_path: Path) -> Iterator[Connection]:
    url = "memory:" if request.param == "memory" else f"embedded:{tmp_path}"
    with connect(url, create_topics=True, tracing=Tracing(traces.provider)) as connection:
        yield connection


def links_of(span: ReadableSpan, spans: list[ReadableSpan]) -> list[int]:
    """The positions in `spans` of the spans to which `span` links, and of its parent."""
    places = {one.context.span_id: place for place, one in enumerate(spans) if one.context is not None}
    found = [link.context.span_id for link in span.links]
    return [places[one] for one in (*found, *([span.parent.span_id] if span.parent else []))]


class Failing:
    """A handler that fails the first `times` calls."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.seen: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.seen.append(message)
        self.left -= 1
        if self.left >= 0:
            raise TimeoutError("no answer")


def test_links_lead_through_every_wait(connection: Connection, traces: Traces) -> None:
    """The intake's span links to the attempt that failed, and the next attempt links to the intake's span. All spans
    link to the publishing span, whose context in the message never changes."""
    handler = Failing(2)
    with (
        RetryService(connection, "billing", RetryPolicy(delay=Fixed(10))),
        Consumer(connection, "orders", traced(handler, tracer_provider=traces.provider), group="billing"),
    ):
        message_id = connection.publish("orders", b"1")
        spans = traces.spans(6)
    assert [span.name.partition(" ")[0] for span in spans] == [
        "send",
        *("process", "receive"),
        *("process", "receive"),
        "process",
    ]
    assert [links_of(span, spans) for span in spans] == [[], [0], [0, 1], [0, 2], [0, 3], [0, 4]]
    sent, wait = spans[0], spans[2]
    assert (sent.kind, wait.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.attributes is not None
    assert wait.attributes is not None
    assert sent.attributes["messaging.message.id"] == message_id
    assert wait.attributes["wheel_sched.delay"] == 0.01
    assert wait.attributes["wheel_sched.attempt"] == 1
    assert len({message.header("traceparent") for message in handler.seen}) == 1


def test_links_lead_through_a_dead_letter_and_its_replay(connection: Connection, traces: Traces) -> None:
    """The intake's span says that the message is a dead letter. The replay links to this span, and the next attempt
    links to the replay."""
    handler = Failing(1)
    with (
        RetryService(connection, "billing", RetryPolicy(delay=Fixed(10), max_attempts=1)),
        Consumer(connection, "orders", traced(handler, tracer_provider=traces.provider), group="billing"),
    ):
        connection.publish("orders", b"1")
        traces.spans(3)
        assert DeadLetters(connection).replay(dry_run=True).replayed == 1
        assert len(traces.spans(3)) == 3  # a dry run makes no span
        assert DeadLetters(connection).replay().replayed == 1
        spans = traces.spans(5)
    assert [links_of(span, spans) for span in spans] == [[], [0], [0, 1], [0, 2], [0, 3]]
    assert spans[3].name == "replay orders"
    assert spans[2].attributes is not None
    assert spans[2].attributes["wheel_sched.outcome"] == "dead_letter"


def test_a_forged_step_makes_no_link(connection: Connection, traces: Traces) -> None:
    """An unreadable header `retry-trace-step` makes no link. `publish` removes the header, because it names a span of
    another message."""
    handler = Failing(0)
    with Consumer(connection, "orders", traced(handler, tracer_provider=traces.provider), group="billing"):
        connection.publish("orders", b"1", headers=(("retry-trace-step", b"00-\xff"),))
        spans = traces.spans(2)
    assert handler.seen[0].header("retry-trace-step") is None
    traced(handler, tracer_provider=traces.provider)(
        Message("orders", b"", headers=(("retry-attempt", b"1"), ("retry-trace-step", b"00-" + b"z" * 90)))
    )
    assert [len(span.links) for span in traces.spans(len(spans) + 1)] == [0, 0, 0]


def test_links_of_async_handlers_do_not_mix(connection: Connection, traces: Traces) -> None:
    """Messages that fail at the same time on one event loop each link to their own attempt."""

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.01)  # so that several attempts run at a time
        if message.header("retry-attempt") is None:
            raise TimeoutError("no answer")

    with (
        RetryService(connection, "billing", RetryPolicy(delay=Fixed(10))),
        Consumer(connection, "orders", traced(handle, tracer_provider=traces.provider), group="billing"),
    ):
        for number in range(5):
            connection.publish("orders", b"%d" % number)
        spans = traces.spans(20)
    for place, span in enumerate(spans):
        if span.name.startswith("receive"):
            sent, attempt = links_of(span, spans)
            assert links_of(spans[attempt], spans) == [sent], place
    assert sum(span.name.startswith("receive") for span in spans) == 5
