"""OpenTelemetry spans over the life of a message, linked through every wait. Needs the extra `otel`.

    send ◄── process (attempt 1) ◄── receive (the wait begins) ◄── process (attempt 2) ◄── ...

The message's own headers (`traceparent`, `tracestate`, `baggage`) keep the creation context, the trace context of the
message's producer, unchanged, as the semantic conventions ask. The span of a first delivery is a child of the creation
context. A delayed attempt starts its own trace, which *links* to the creation context: tail sampling cuts or drops a
trace that stays open for hours, but keeps links. It also links to the step before it, whose context travels in the
header `retry-trace-step`. Headers are only parsed, not trusted: a forged one makes a wrong link and nothing else.

An error of the tracing code never fails a message: it is logged once, and a span or link is missing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.handlers import Handler, is_async
from retry_topic.consumer.outcome import DeadLetter, Retry
from retry_topic.intake.taken import Taken
from retry_topic.message import Headers, Message
from retry_topic.message.headers import RetryState, read
from retry_topic.message.headers.state import TRACE_STEP
from retry_topic.message.last_step import note_last_step
from retry_topic.policy import RetryDecision
from retry_topic.span_guard import SpanGuard
from wheel_sched.errors import ConfigError

_SYSTEM = "wheel_sched"
_W3C = TraceContextTextMapPropagator()


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

    An error of the tracing code does not reach the handler or its caller; the first one is logged. Several threads may
    call the returned handler if they may call `handler`.
    """
    if not callable(handler):
        raise ConfigError([f"expected a handler that can be called, got: {handler!r}"])
    tracer, guard = trace.get_tracer("retry_topic", tracer_provider=tracer_provider), SpanGuard()

    def processing(message: Message) -> AbstractContextManager[Span]:
        return guard.around(lambda: _processing(tracer, message), trace.INVALID_SPAN)

    def with_outcome(span: Span, verdict: Any) -> Any:
        guard(lambda: _set_outcome(span, verdict), None)
        return verdict

    if is_async(handler):

        async def process_async(message: Message) -> Any:
            with processing(message) as span:
                return with_outcome(span, await handler(message))

        return functools.wraps(handler)(process_async) if hasattr(handler, "__name__") else process_async

    def process(message: Message) -> Any:
        with processing(message) as span:
            return with_outcome(span, handler(message))

    return functools.wraps(handler)(process) if hasattr(handler, "__name__") else process


class Tracing:
    """Spans of publishing, of the retry service's intake and of replays, for `connect(..., tracing=Tracing())`.

    `send TOPIC` is around each publish. Its context becomes the message's creation context, unless the message already
    has one; then the span links to it. `receive RETRY-TOPIC` begins when the retry service has read a failed message,
    and ends when the store holds it. It links to the creation context and to the failed attempt, and it has
    `wheel_sched.attempt` (the attempt that failed), `wheel_sched.why` (the rule), and `wheel_sched.due_at` (epoch ms)
    and `wheel_sched.delay` (seconds), or `wheel_sched.outcome` = `dead_letter`. If the record was read and not stored,
    `wheel_sched.outcome` is `left`: the record comes again, with a new span.
    `replay TOPIC` is made of each letter that is replayed, and links to the same two.

    An error of the tracing code does not fail the message; the first one is logged.

    Args:
        tracer_provider: makes the spans. Defaults to OpenTelemetry's global provider.

    Several threads may use one object.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("retry_topic", tracer_provider=tracer_provider)
        self._guard = SpanGuard()
        self._open: dict[str, Span] = {}  # spans of the intake, by their context

    def sending(self, message: Message, message_id: str) -> AbstractContextManager[Message]:
        """A `with` block in a span around the sending of a message. Yields the message with its creation context."""
        return self._guard.around(lambda: self._sending(message, message_id), message)

    @contextmanager
    def _sending(self, message: Message, message_id: str) -> Iterator[Message]:
        created = _origin(message.headers)
        attributes = {**_attributes("send", message), "messaging.message.id": message_id}
        links = [Link(created)] if created.is_valid else []
        with self._tracer.start_as_current_span(
            f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes, links=links
        ):
            yield message if created.is_valid else message.to(message.topic, (*message.headers, *trace_headers()))

    def taking(self, delivery: Delivery, group: str) -> Delivery:
        """Begin the intake's span. Returns the delivery with this span as the last step in its headers.

        End the span with `taken` or `leave`.
        """
        return self._guard(lambda: self._taking(delivery, group), delivery)

    def _taking(self, delivery: Delivery, group: str) -> Delivery:
        message = delivery.message
        attributes = {**_attributes("receive", message), "messaging.consumer.group.name": group}
        span = self._tracer.start_span(
            f"receive {message.topic}",
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(message.headers),
        )
        step = _step(span)
        if step is None:
            return delivery
        self._open[step] = span
        headers = (*(pair for pair in message.headers if pair[0] != TRACE_STEP), (TRACE_STEP, step.encode()))
        return replace(delivery, message=replace(message, headers=headers))

    def taken(self, step: str | None, taken: Taken) -> None:
        """End the intake's span with the context `step`. Without such a span, nothing happens."""
        span = self._open.pop(step or "", None)
        if span is not None:
            self._guard(lambda: _describe(span, taken), None)
            self._guard(span.end, None)

    def leave(self, deliveries: Iterable[Delivery]) -> None:
        """End the intake's spans of deliveries that were not stored. Spans that have ended stay as they are."""
        for delivery in deliveries:
            step = dict(delivery.message.headers).get(TRACE_STEP, b"")
            span = self._open.pop(step.decode("ascii", "replace"), None)
            if span is not None:
                self._guard(partial(span.set_attribute, "wheel_sched.outcome", "left"), None)
                self._guard(span.end, None)

    def replaying(self, message: Message, topic: str, state: RetryState) -> str | None:
        """Make the span of a replay. Returns its context, the last step of the message.

        Args:
            message: the message that is sent again.
            topic: the topic on which it first failed.
            state: its retry state.
        """
        return self._guard(lambda: self._replaying(message, topic, state), None)

    def _replaying(self, message: Message, topic: str, state: RetryState) -> str | None:
        attributes = {
            **_attributes("replay", message, "send"),
            "messaging.destination.name": topic,
            "wheel_sched.replays": state.replays,
        }
        if state.id is not None:
            attributes["messaging.message.id"] = state.id
        links = _links(message.headers)
        name = f"replay {topic}"
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes=attributes, links=links
        ) as span:
            return _step(span)


def _describe(span: Span, taken: Taken) -> None:
    """Say in the intake's span what became of the record."""
    span.set_attributes({"messaging.message.id": taken.id, "wheel_sched.attempt": taken.attempt})
    span.set_attribute("wheel_sched.why", taken.why)
    if taken.dead is not None:
        span.set_attribute("wheel_sched.outcome", "dead_letter")
        span.set_status(StatusCode.ERROR, taken.dead)
    elif taken.due_ms is not None:
        span.set_attribute("wheel_sched.due_at", taken.due_ms)
        if isinstance(taken.decision, RetryDecision):
            span.set_attribute("wheel_sched.delay", taken.decision.delay_ms / 1000)


def _attributes(operation: str, message: Message, kind: str | None = None) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind or operation,
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.value),
    }


def _origin(headers: Headers) -> SpanContext:
    """The creation context of a message; an invalid context if it has none."""
    return trace.get_current_span(propagate.extract(_carrier(headers), context=Context())).get_span_context()


def _links(headers: Headers) -> list[Link]:
    """Links to the creation context and to the last step, as far as the headers have them."""
    carrier = _carrier(headers)
    step = _W3C.extract({"traceparent": carrier.get(TRACE_STEP, "")}, context=Context())
    found = (_origin(headers), trace.get_current_span(step).get_span_context())
    return [Link(one) for one in {one.span_id: one for one in found}.values() if one.is_valid]


def _step(span: Span) -> str | None:
    """The context of a span as the header of the last step has it; None if the span has no valid context."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent")


@contextmanager
def _processing(tracer: trace.Tracer, message: Message) -> Iterator[Span]:
    created = propagate.extract(_carrier(message.headers), context=Context())
    state = read(message.headers)
    context, links = created, []
    if state.attempt or state.replays:
        links = _links(message.headers)
        context = trace.set_span_in_context(trace.INVALID_SPAN, created)  # a new trace; the baggage stays
    attributes = {**_attributes("process", message), "wheel_sched.attempt": state.attempt + 1}
    if state.id is not None:
        attributes["messaging.message.id"] = state.id
    if state.attempt and state.due_ms is not None:
        attributes["wheel_sched.due_at"] = state.due_ms
        attributes["wheel_sched.lateness"] = max(0.0, time.time() - state.due_ms / 1000)
    token = attach(context)
    try:
        with tracer.start_as_current_span(
            f"process {message.topic}", context=context, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            if (step := _step(span)) is not None:
                note_last_step(message, step)  # for the retry record, if this attempt fails
            yield span
    finally:
        detach(token)


def _set_outcome(span: Span, verdict: Any) -> None:
    if isinstance(verdict, Retry | DeadLetter):
        span.set_attribute("wheel_sched.outcome", "retry" if isinstance(verdict, Retry) else "dead_letter")
        span.set_status(StatusCode.ERROR)


def _carrier(headers: Headers) -> Mapping[str, str]:
    """Text headers by lower-case name. The last header of a name counts. A value that is not ASCII is ignored."""
    found: dict[str, str] = {}
    for name, value in headers:
        try:
            found[name.lower()] = value.decode("ascii")
        except UnicodeDecodeError:
            continue
    return found
