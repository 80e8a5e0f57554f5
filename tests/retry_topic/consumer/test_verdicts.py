"""What handlers return and raise, and what then happens to their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Ack, DeadLetter, Retry
from retry_topic.message import Message
from retry_topic.message.headers import read
from retry_topic.message.topic_names import retry_topic_of

if TYPE_CHECKING:
    from conftest import Bench, Handler

RETRY = retry_topic_of("billing")
Handlers = Callable[..., "Handler"]


class Nasty(Exception):
    """An error whose attributes all raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def headers(self) -> dict[str, str]:
        raise RuntimeError("no headers")

    @property
    def response(self) -> None:
        raise ValueError("no response")


class NoGet:
    @property
    def get(self) -> None:
        raise RuntimeError("no get")


class NastyGet(Exception):
    """An error whose headers raise when they are read."""

    headers = NoGet()


def failed(bench: Bench, count: int = 1) -> list[Message]:
    bench.until(lambda: len(bench.records(RETRY)) >= count)
    return bench.records(RETRY)


@pytest.mark.parametrize("verdict", [None, Ack()])
def test_nothing_or_ack_settles(bench: Bench, handler: Handlers, verdict: Any) -> None:
    """After None or `Ack()` the message is settled: the broker does not deliver it again, and the retry topic gets no
    record."""
    handle = handler(verdict)
    consumer = bench.consume(handle, idle_ms=100)
    bench.publish(b"m")
    bench.until(lambda: consumer.stats.acknowledged == 1)
    consumer.stop()
    assert bench.unsettled("orders") == []
    assert (bench.records(RETRY), handle.values) == ([], [b"m"])


@pytest.mark.parametrize("wrong", [True, 0, "retry", Retry, DeadLetter, [Ack()]], ids=repr)
def test_a_wrong_verdict_is_a_failure_that_says_so(
    bench: Bench, handler: Handlers, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong return value sends the message to the retry topic with a clear error, which is also logged."""
    bench.consume(handler(lambda message: wrong))
    bench.publish(b"m")
    (record,) = failed(bench)
    state = read(record.headers)
    assert (record.value, state.error_class, state.attempt) == (b"m", "wheel_sched.errors.Rejected", 1)
    assert state.error_message is not None
    assert "expected a handler to return None, Ack(), Retry(...) or DeadLetter(...), got: " in state.error_message
    assert "consumer.bad_verdict" in caplog.text


def test_a_verdict_with_a_wrong_delay_is_a_failure(bench: Bench, handler: Handlers) -> None:
    """`Retry(after=-1)` raises in the handler. So the message fails with this error."""
    bench.consume(handler(lambda message: Retry(after=-1)))
    bench.publish(b"m")
    (record,) = failed(bench)
    assert read(record.headers).error_message == "expected after to be seconds or a timedelta, not negative, got: -1"


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_whatever_is_raised_fails_its_message_alone(bench: Bench, handler: Handlers, error: BaseException) -> None:
    """Even an exception that would end a program fails only its message. The consumer handles the next message."""
    handle = handler(error, None)
    consumer = bench.consume(handle, concurrency=1)
    bench.publish(b"first", b"second")
    (record,) = failed(bench)
    assert (record.value, read(record.headers).error_class) == (
        b"first",
        f"{type(error).__module__}.{type(error).__qualname__}",
    )
    bench.until(lambda: consumer.stats.acknowledged == 1)


@pytest.mark.parametrize("error", [Nasty(), NastyGet()], ids=["nasty", "nasty-get"])
def test_an_error_that_cannot_be_described_is_still_a_failure(
    bench: Bench, handler: Handlers, error: Exception
) -> None:
    """An error whose properties or texts raise fails its message like any other error."""
    consumer = bench.consume(handler(error))
    bench.publish(b"m")
    (record,) = failed(bench)
    assert read(record.headers).error_class == f"{type(error).__module__}.{type(error).__qualname__}"
    bench.until(lambda: consumer.stats.in_flight == 0)


def test_an_async_handler_is_awaited(bench: Bench) -> None:
    """Verdicts, errors and successes of an async handler count like those of a plain handler."""

    async def handle(message: Message) -> Any:
        await asyncio.sleep(0)
        if message.value == b"raise":
            raise ValueError("async")
        return {b"ok": None, b"retry": Retry(after=1), b"dead": DeadLetter("no")}[message.value]

    consumer = bench.consume(handle)
    bench.publish(b"ok", b"raise", b"retry", b"dead")
    records = {record.value: read(record.headers) for record in failed(bench, 3)}
    assert records[b"raise"].error_message == "async"
    assert (records[b"retry"].verdict, records[b"retry"].retry_after_ms) == ("retry", 1_000)
    assert records[b"dead"].verdict == "dead"
    bench.until(lambda: consumer.stats.acknowledged == 1)
    bench.until(lambda: (consumer.stats.retried, consumer.stats.dead) == (2, 1))


def test_an_object_with_an_async_call_is_a_handler(bench: Bench) -> None:
    """An object with an async `__call__` is an async handler."""

    class Handle:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        async def __call__(self, message: Message) -> None:
            await asyncio.sleep(0)
            self.seen.append(message.value)

    handle = Handle()
    consumer = bench.consume(handle)
    bench.publish(b"m")
    bench.until(lambda: consumer.stats.acknowledged == 1)
    assert handle.seen == [b"m"]


def test_a_plain_function_that_returns_an_awaitable_is_told_so(bench: Bench) -> None:
    """If a plain function returns an awaitable, nothing would await it. So the message fails with an error that says
    this, and is not acknowledged."""

    async def work() -> None:
        pass

    bench.consume(lambda message: work())
    bench.publish(b"m")
    (record,) = failed(bench)
    assert "the handler is async and was not awaited" in (read(record.headers).error_message or "")


@pytest.mark.parametrize(("expires_in_ms", "dead"), [(-1_000, 1), (60_000, 0)])
def test_a_message_that_comes_too_late_is_not_handled(
    bench: Bench, handler: Handlers, expires_in_ms: int, dead: int
) -> None:
    """After the time in its header `expires-at` a message becomes a dead letter. Before, it is handled."""
    expires_ms = bench.connection.store.now_ms() + expires_in_ms
    handle = handler()
    consumer = bench.consume(handle)
    bench.publish(b"m", headers=(("expires-at", b"%d" % expires_ms),))
    bench.until(lambda: consumer.stats.dead + consumer.stats.acknowledged == 1)
    assert (consumer.stats.expired, len(handle.calls)) == (dead, 1 - dead)


@pytest.mark.parametrize("nonsense", [b"", b"soon", b"-5", b"9" * 5_000, b"\xff"])
def test_an_unreadable_expiry_never_passes(bench: Bench, handler: Handlers, nonsense: bytes) -> None:
    """A message whose expiry is not a time is handled."""
    consumer = bench.consume(handler())
    bench.publish(b"m", headers=(("expires-at", nonsense),))
    bench.until(lambda: consumer.stats.acknowledged == 1)
