"""OpenTelemetry for handlers, with a trace that survives the delay. Needs the extra `otel`.

The message's own headers (`traceparent`, `tracestate`, `baggage`) keep the creation context, the trace context of the
message's producer, unchanged, as the semantic conventions ask. The span of a first delivery is a child of the creation
context. A delayed attempt starts its own trace, which *links* to the creation context: tail sampling cuts or drops a
trace that stays open for hours, but keeps links.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from retry_topic.consumer.handlers import Handler, is_async
from retry_topic.consumer.outcome import DeadLetter, Retry
from retry_topic.message import Headers, Message
from retry_topic.message.headers import read
from wheel_sched.errors import ConfigError

_SYSTEM = "wheel_sched"


def trace_headers() -> Headers:
    """The current context as headers for a message; no headers without a current trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items())


def traced(handler: Handler, *, tracer_provider: TracerProvider | None = None) -> Handler:
    """A handler with a span `process TOPIC` around each call.

    The span has the attributes of the messaging conventions (system, operation, destination, body size) and
    `wheel_sched.attempt` (1 for the first delivery). On a redelivery it also has `wheel_sched.due_at` (epoch ms) and
    `wheel_sched.lateness` (seconds). The span records an exception, which is raised again. `wheel_sched.outcome` names
    a returned `Retry` or `DeadLetter`.

    Args:
        handler: plain or `async def`.
        tracer_provider: makes the spans. Defaults to OpenTelemetry's global provider.

    Raises:
        ConfigError: the handler cannot be called.

    Several threads may call the returned handler if they may call `handler`.
    """
    if not callable(handler):
        raise ConfigError([f"expected a handler that can be called, got: {handler!r}"])
    tracer = trace.get_tracer("retry_topic", tracer_provider=tracer_provider)

    if is_async(handler):

        async def process_async(message: Message) -> Any:
            with _processing(tracer, message) as span:
                return _with_outcome(span, await handler(message))

        return functools.wraps(handler)(process_async) if hasattr(handler, "__name__") else process_async

    def process(message: Message) -> Any:
        with _processing(tracer, message) as span:
            return _with_outcome(span, handler(message))

    return functools.wraps(handler)(process) if hasattr(handler, "__name__") else process


@contextmanager
def _processing(tracer: trace.Tracer, message: Message) -> Iterator[Span]:
    created = propagate.extract(_carrier(message.headers), context=Context())
    state = read(message.headers)
    context, links = created, []
    if state.attempt:
        origin = trace.get_current_span(created).get_span_context()
        links = [Link(origin)] if origin.is_valid else []
        context = trace.set_span_in_context(trace.INVALID_SPAN, created)  # a new trace; the baggage stays
    attributes: dict[str, Any] = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.value),
        "wheel_sched.attempt": state.attempt + 1,
    }
    if state.attempt and state.due_ms is not None:
        attributes["wheel_sched.due_at"] = state.due_ms
        attributes["wheel_sched.lateness"] = max(0.0, time.time() - state.due_ms / 1000)
    token = attach(context)
    try:
        with tracer.start_as_current_span(
            f"process {message.topic}", context=context, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            yield span
    finally:
        detach(token)


def _with_outcome(span: Span, verdict: Any) -> Any:
    if isinstance(verdict, Retry | DeadLetter):
        span.set_attribute("wheel_sched.outcome", "retry" if isinstance(verdict, Retry) else "dead_letter")
        span.set_status(StatusCode.ERROR)
    return verdict


def _carrier(headers: Headers) -> Mapping[str, str]:
    """Text headers by lower-case name. The last header of a name counts. A value that is not ASCII is ignored."""
    found: dict[str, str] = {}
    for name, value in headers:
        try:
            found[name.lower()] = value.decode("ascii")
        except UnicodeDecodeError:
            continue
    return found
