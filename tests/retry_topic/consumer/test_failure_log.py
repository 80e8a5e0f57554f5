"""The consumer logs each failed attempt in one line, with a traceback at DEBUG, and calls the hook `on_failure`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, DeadLetter, Message, Retry, RetryPolicy
from retry_topic.policy import Fixed
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from conftest import Bench, Handler

Handlers = Callable[..., "Handler"]
CONSUMER, SERVICE = "retry_topic.consumer", "retry_topic.intake"
# The consumer cannot know whether another copy has succeeded. The service can, and then makes no dead letter.
BURIED = "it goes to the dead letters, unless the retry service finds that it is a second copy"


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage().startswith(f"{event}:")]


def failing(memory: Bench, caplog: pytest.LogCaptureFixture, handler: Any, count: int = 1, **config: Any) -> list[str]:
    """Let one message fail. Return the consumer's log lines about its failed attempts."""
    memory.publish(b"hunter2", key=b"k")
    memory.consume(handler, **config)
    memory.until(lambda: len(lines(caplog, "consumer.failed")) >= count)
    return [record.getMessage() for record in lines(caplog, "consumer.failed")]


def test_each_failed_attempt_is_one_line(memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    """A message fails twice and becomes a dead letter. The consumer logs each attempt with id, topic, attempt and
    error.

    The service logs when the next attempt comes, and why the message is a dead letter. No line has the payload.
    """
    caplog.set_level(logging.INFO, SERVICE)
    memory.serve(RetryPolicy(delay=Fixed(20), max_attempts=2))
    reports = failing(memory, caplog, handler(ValueError("no such customer")), count=2)
    memory.dead()
    assert [record.levelname for record in lines(caplog, "consumer.failed")] == ["WARNING"] * 2
    for number, line in enumerate(reports, 1):
        assert f"of orders, attempt {number}: ValueError: no such customer; the retry service decides" in line
    (decided,) = lines(caplog, "intake.retry")
    assert "attempt 1: next attempt in 20ms" in decided.getMessage()
    memory.until(lambda: bool(lines(caplog, "intake.dead")))
    (died,) = lines(caplog, "intake.dead")
    assert (died.levelname, died.name) == ("WARNING", SERVICE)
    assert "attempt 2: max-attempts: builtins.ValueError: no such customer" in died.getMessage()
    message_id = reports[0].split("message ")[1].split()[0]
    assert all(f"message {message_id} " in line for line in (*reports, decided.getMessage(), died.getMessage()))
    assert "hunter2" not in caplog.text


def test_both_lines_name_the_id_that_was_published(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """The service's lines have the publisher's id and also the id in the store, which is different for each group."""
    caplog.set_level(logging.INFO, SERVICE)
    memory.serve(RetryPolicy(delay=Fixed(20), max_attempts=2))
    memory.consume(handler(ValueError("x")))
    memory.connection.publish("orders", b"1", id="invoice-9")
    (died,) = memory.dead()
    memory.until(lambda: bool(lines(caplog, "intake.dead")))
    (retried,), (dead,) = lines(caplog, "intake.retry"), lines(caplog, "intake.dead")
    assert all("message invoice-9 of orders" in line.getMessage() for line in (retried, dead))
    assert dead.getMessage().endswith(f"it is a dead letter, stored as {died.id}")
    assert retried.getMessage().endswith(f"stored as {died.id[:-1]}1")


@pytest.mark.parametrize("keep", [True, False])
def test_a_death_has_its_traceback(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture, keep: bool
) -> None:
    """The service logs a dead letter with the traceback of its last failed attempt, at every level. There is no
    traceback if the consumer keeps none."""
    memory.serve(RetryPolicy(delay=Fixed(20), max_attempts=1))
    failing(memory, caplog, handler(ValueError("no such customer")), keep_tracebacks=keep)
    memory.until(lambda: bool(lines(caplog, "intake.dead")))
    (died,) = lines(caplog, "intake.dead")
    if keep:
        assert died.exc_text is not None
        first, *_, last = died.exc_text.splitlines()
        assert (first, last) == ("  Traceback (most recent call last):", "  ValueError: no such customer")
    assert (died.exc_text is not None) == keep


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_a_traceback_comes_at_debug(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """The traceback of an error is logged only if the consumer's logger has level DEBUG."""
    failing(memory, caplog, handler(ValueError("x")))
    assert "Traceback" not in caplog.text
    caplog.set_level(level, CONSUMER)
    caplog.clear()
    memory.publish(b"2")
    memory.until(lambda: bool(lines(caplog, "consumer.failed")))
    assert ("Traceback" in caplog.text) == (level == logging.DEBUG)


def test_no_line_has_a_password(memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    """Passwords in an error's text are hidden in the lines of consumer and service, and in the traceback."""
    caplog.set_level(logging.DEBUG, CONSUMER)
    memory.serve(RetryPolicy(delay=Fixed(20), max_attempts=1))
    (line,) = failing(memory, caplog, handler(ValueError("redis://ada:lovelace@host/0 refused, password=enigma")))
    memory.until(lambda: bool(lines(caplog, "intake.dead")))
    assert "ValueError: redis://ada:***@host/0 refused, password=***" in line
    assert "Traceback" in caplog.text
    assert "lovelace" not in caplog.text
    assert "enigma" not in caplog.text


async def _fails(message: Message) -> None:
    raise ValueError("async")


@pytest.mark.parametrize(
    ("answer", "config", "expected"),
    [
        (_fails, {}, "attempt 1: ValueError: async; the retry service decides"),
        (ValueError("x"), {"ordering": "key"}, "attempt 1: ValueError: x; the retry service decides"),
        (Retry(after=3, reason="counting"), {}, "attempt 1: the handler asks for a retry: counting; the retry service"),
        (DeadLetter("no use"), {}, f"attempt 1: the handler gives it up: no use; {BURIED}"),
        (ValueError("red \x1b[31m\nforged \u202e" + "x" * 999), {}, r"ValueError: red \x1b[31m\nforged \u202e"),
    ],
    ids=["async", "ordered", "retry", "dead letter", "hostile text"],
)
def test_every_kind_of_failure_is_told(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture, answer: Any, config: Any, expected: str
) -> None:
    """The failures of async and ordered consumers and the verdicts of handlers are logged too.

    The text of an error is escaped and shortened, so it cannot forge a log line.
    """
    (line,) = failing(memory, caplog, answer if callable(answer) else handler(answer), **config)
    assert expected in line
    assert line.isprintable()
    assert len(line) < 600


def test_what_never_reached_the_handler_is_told(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that arrives after its expiry is given up without a call of the handler, and this is logged."""
    memory.publish(b"1", headers=(("expires-at", b"1"),))
    memory.consume(handler())
    memory.until(lambda: bool(lines(caplog, "consumer.failed")))
    assert f"expired: it came too late; {BURIED}" in caplog.text


def test_the_hook_gets_message_error_and_attempt(memory: Bench, handler: Handlers) -> None:
    """`on_failure` is called once for each failed attempt, with the message as the handler saw it.

    If the handler returned a verdict, the argument `error` is None.
    """
    reports: list[tuple[bytes, str, BaseException | None, int]] = []
    error = ValueError("x")

    def hook(message: Message, error: BaseException | None, attempt: int) -> None:
        reports.append((message.value, message.topic, error, attempt))

    memory.serve(RetryPolicy(delay=Fixed(20), max_attempts=2))
    memory.publish(b"1")
    with Consumer(memory.connection, "orders", handler(error, Retry()), group="billing", on_failure=hook):
        memory.until(lambda: len(reports) == 2)
    assert reports == [(b"1", "orders", error, 1), (b"1", "orders", None, 2)]


def test_a_hook_that_raises_is_logged_and_ignored(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if `on_failure` raises SystemExit, the message is settled as usual."""

    def hook(*_: object) -> None:
        raise SystemExit(3)

    memory.serve(RetryPolicy(delay=Fixed(20)))
    memory.publish(b"1")
    consumer = Consumer(memory.connection, "orders", handler(ValueError("x"), None), group="billing", on_failure=hook)
    with consumer:
        memory.until(lambda: consumer.stats.acknowledged == 1)
    assert len(lines(caplog, "consumer.on_failure_failed")) == 1


def test_an_async_hook_is_refused(memory: Bench, handler: Handlers) -> None:
    """An async `on_failure` is a configuration error, because nothing would await it."""

    async def hook(*_: object) -> None: ...

    with pytest.raises(ConfigError, match="on_failure to be a plain function"):
        Consumer(memory.connection, "orders", handler(), group="billing", on_failure=hook)


def test_an_error_that_cannot_be_told_fails_its_message_only(
    memory: Bench, handler: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """An error whose properties raise SystemExit is logged, and its message is retried."""

    class Hostile(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise SystemExit(3)

    caplog.set_level(logging.DEBUG, CONSUMER)
    memory.serve(RetryPolicy(delay=Fixed(20)))
    memory.publish(b"1")
    consumer = memory.consume(handler(Hostile("x"), None))
    memory.until(lambda: consumer.stats.acknowledged == 1)
    assert "Hostile" in caplog.text


def test_nothing_is_made_of_lines_nobody_reads(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the logger is disabled, the log line of a failure is not formatted."""
    monkeypatch.setattr("retry_topic.consumer.outcome._line", lambda *_: pytest.fail("the log line was formatted"))
    monkeypatch.setattr(logging.getLogger(CONSUMER), "disabled", True)
    memory.publish(b"1")
    consumer = memory.consume(lambda message: Retry(), concurrency=1, idle_ms=ConsumerConfig().idle_ms)
    memory.until(lambda: consumer.stats.retried == 1)
