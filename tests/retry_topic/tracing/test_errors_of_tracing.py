"""An error in the tracing code never fails a message. The attempt continues without its span."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from retry_topic import Consumer, Message, RetryPolicy, RetryService, connect
from retry_topic.dead_letters import DeadLetters
from retry_topic.policy.delays import Fixed
from retry_topic.span_guard import SpanGuard
from retry_topic.tracing import Tracing, traced


def broken(*_: Any, **__: Any) -> NoReturn:
    raise OSError("the collector is gone")


class BrokenAtStart(SpanProcessor):
    on_start = broken


class BrokenAtEnd(SpanProcessor):
    on_end = broken


class BrokenPropagator:
    extract = inject = broken
    fields: frozenset[str] = frozenset()


def provider_with(processor: SpanProcessor) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.005)  # polls until the service and the consumer have finished


@pytest.mark.parametrize("broken_part", ["start", "end", "propagator"])
def test_a_message_lives_its_life_without_spans(
    broken_part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is published, fails, waits, becomes a dead letter, is replayed and succeeds, while all tracing code
    raises. The policy sees the handler's error and not that of the tracing code. Each `SpanGuard` warns once."""
    provider = provider_with(BrokenAtStart() if broken_part == "start" else BrokenAtEnd())
    if broken_part == "propagator":
        provider = TracerProvider()
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", BrokenPropagator())
    seen: list[Message] = []

    def fail_twice(message: Message) -> None:
        seen.append(message)
        if len(seen) <= 2:
            raise TimeoutError("no answer")

    with (
        connect("memory:", create_topics=True, tracing=Tracing(provider)) as connection,
        RetryService(connection, "billing", RetryPolicy(delay=Fixed(10), max_attempts=2)),
        Consumer(connection, "orders", traced(fail_twice, tracer_provider=provider), group="billing") as consumer,
        caplog.at_level(logging.WARNING),
    ):
        letters = DeadLetters(connection)
        connection.publish("orders", b"1")
        wait_until(lambda: len([*letters.select()]) == 1)
        (letter,) = letters.select()
        assert letter.state.error_class == "builtins.TimeoutError"
        assert letters.replay().replayed == 1
        wait_until(lambda: consumer.stats.acknowledged == 1)
    assert [message.value for message in seen] == [b"1"] * 3
    warnings = [record for record in caplog.records if record.getMessage().startswith("tracing.failed")]
    assert len(warnings) == 2  # one of `Tracing`, one of `traced`
    assert all(record.exc_info is not None and record.exc_info[0] is OSError for record in warnings)


@pytest.mark.parametrize("error", [TimeoutError("no answer"), KeyboardInterrupt()])
def test_the_handlers_error_is_raised_as_it_is(error: BaseException) -> None:
    """An error of the span does not hide the handler's error."""

    def fail(message: Message) -> None:
        raise error

    handler = traced(fail, tracer_provider=provider_with(BrokenAtEnd()))
    with pytest.raises(type(error)) as caught:
        handler(Message("orders", b""))
    assert caught.value is error


def test_a_guard_lets_interrupts_through() -> None:
    """A `SpanGuard` catches errors, but not KeyboardInterrupt."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SpanGuard()(interrupt, None)
