"""A task's trace context and baggage are the same before and after the wait in the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from celery import signals
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

if TYPE_CHECKING:
    from conftest import InstalledApp

BEFORE = SpanContext(
    trace_id=0x0AF7651916CD43DD8448EB211C80319C,
    span_id=0xB7AD6B7169203331,
    is_remote=True,
    trace_flags=TraceFlags(TraceFlags.SAMPLED),
    trace_state=TraceState([("vendor", "a:1")]),
)


@pytest.fixture
def injecting() -> Iterator[None]:
    """Write the context into each message as OpenTelemetry's instrumentation does: in Celery's signal, by the
    propagator."""

    def inject(headers: dict[str, Any], **_: Any) -> None:
        context = baggage.set_baggage("tenant", "blue", Context())
        propagate.inject(headers, context=trace.set_span_in_context(NonRecordingSpan(BEFORE), context))

    signals.before_task_publish.connect(inject)
    yield
    signals.before_task_publish.disconnect(inject)


@pytest.mark.usefixtures("injecting")
def test_the_context_is_the_same_after_the_wait(installed: InstalledApp) -> None:
    """What the propagator reads from the message that the store sends equals what it wrote into the producer's. The
    stored task has it in between."""
    installed.send(countdown=60)
    (held,) = installed.held()
    (sent,) = installed.dispatch(installed.claim())
    for headers in (held.headers, sent.headers):
        after = propagate.extract(headers, context=Context())
        assert trace.get_current_span(after).get_span_context() == BEFORE
        assert baggage.get_all(after) == {"tenant": "blue"}


def test_a_task_without_a_context_gets_none(installed: InstalledApp) -> None:
    """Neither the store nor the dispatcher adds a context of its own, not even inside a span."""
    installed.send(countdown=60)
    with trace.use_span(NonRecordingSpan(BEFORE)):
        (sent,) = installed.dispatch(installed.claim())
    assert trace.get_current_span(propagate.extract(sent.headers, context=Context())) is trace.INVALID_SPAN
