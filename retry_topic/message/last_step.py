"""The span of the last failed attempt, on its way from the traced handler to the retry record.

`traced` notes it when the attempt ends. The consumer takes it when it writes the retry record, in the same thread or
task. This module does not import OpenTelemetry: without traces it costs one look-up for each failure.
"""

from __future__ import annotations

from contextvars import ContextVar

from retry_topic.message.message import Message, Source

_last: ContextVar[tuple[Source | None, str] | None] = ContextVar("retry_topic_last_step", default=None)


def note_last_step(message: Message, step: str) -> None:
    """Note the trace context `step` of an attempt of `message` that failed."""
    _last.set((message.source, step))


def last_step_of(message: Message) -> str | None:
    """The trace context that was noted for this delivery in this thread or task; None if there is none."""
    found = _last.get()
    if found is None:
        return None
    _last.set(None)
    source, step = found
    return step if source is not None and source == message.source else None
