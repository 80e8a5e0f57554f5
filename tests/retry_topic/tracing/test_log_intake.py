"""The spans of an intake from a log, whose records pass through the decision cache."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from retry_topic.connection import Connection
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import RetryState, read
from retry_topic.tracing import Tracing
from tests.retry_topic.intake.test_from_log import Bench, Logs
from wheel_sched.store import open_store

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_each_record_of_a_log_has_its_own_step() -> None:
    """The span of each record links to the attempt that failed, and the stored message has this span as last step. This
    holds for the first record, which the plan decides, and for the later ones, which a template writes."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Connection(open_store("memory:"), Logs(), tracing=Tracing(provider)) as connection:
        bench = Bench(connection)
        states = [
            RetryState(
                id=f"m{n}",
                attempt=1,
                original_topic="orders",
                error_class="E",
                trace_step=f"00-{TRACE}-{n + 1:016x}-01",
            )
            for n in range(8)
        ]
        taken = [*bench.take(*states[:4]), *bench.take(*states[4:], expected=4)]
        stored = [read(decode_body(bench.found(one.id).body).headers).trace_step for one in taken]
    spans = {span.attributes["messaging.message.id"]: span for span in exporter.get_finished_spans() if span.attributes}
    assert len(spans) == 8
    for n, step in enumerate(stored):
        span = spans[f"m{n}.1"]
        assert [link.context.span_id for link in span.links] == [n + 1]
        assert span.context is not None
        assert step is not None
        assert step.split("-")[1:3] == [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]
