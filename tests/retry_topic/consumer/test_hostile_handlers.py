"""Handlers that raise or return hostile objects or stop the event loop: no slot is blocked, no thread ends, and no
message is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import RetryPolicy
from retry_topic.consumer.outcome import failure_in
from retry_topic.message import Message

if TYPE_CHECKING:
    from conftest import Bench

Policy = Callable[..., RetryPolicy]


class _Raising:
    """A descriptor that raises SystemExit when it is read."""

    def __get__(self, *_: object) -> Any:
        raise SystemExit(3)


class Text(str):
    """A subclass of str whose `encode` raises SystemExit."""

    def encode(self, *_: object) -> Any:  # type: ignore[override]
        raise SystemExit(4)


class Hostile(Exception):
    """An error whose attributes and texts all raise SystemExit."""

    response = status_code = status = code = headers = _Raising()
    __class__ = _Raising()  # type: ignore[assignment]

    def __str__(self) -> str:
        raise SystemExit(5)

    __repr__ = __str__


class Quoting(Exception):
    """An error whose text is a subclass of str."""

    def __str__(self) -> str:
        return Text("quoted")


class Meta(type):
    """A metaclass: reading the name of its classes raises SystemExit."""

    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise SystemExit(6)
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    """An error whose class has no readable name."""


@pytest.mark.parametrize("error", [Hostile, Quoting, Nameless], ids=["hostile", "quoting", "nameless"])
def test_a_hostile_error_is_a_failure_as_any_other(memory: Bench, policy: Policy, error: type[Exception]) -> None:
    """A message whose handler raises a hostile error becomes a dead letter after its attempts. The consumer's only slot
    then handles the next message."""
    memory.serve(policy(max_attempts=2))

    def handle(message: Message) -> None:
        if message.value == b"bad":
            raise error

    consumer = memory.consume(handle, concurrency=1)
    memory.publish(b"bad", b"good")
    memory.dead()
    memory.until(lambda: consumer.stats.acknowledged == 1)


def test_what_can_be_told_of_a_hostile_error_is_told() -> None:
    """The failure made from a hostile error has the error's class, or "unknown". A text of a subclass of str becomes a
    plain str."""
    failure, _ = failure_in(Hostile())
    assert failure.error_class.endswith("Hostile")
    assert type(failure_in(Quoting())[0].message) is str
    assert failure_in(Nameless())[0].error_class == "unknown"


def test_an_answer_with_a_hostile_class_fails_its_message_alone(memory: Bench, policy: Policy) -> None:
    """A returned value that raises when it is inspected fails its own message. The next message is handled."""

    class Answer:
        __class__ = _Raising()  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise SystemExit(7)

    memory.serve(policy(max_attempts=1))
    consumer = memory.consume(lambda message: Answer() if message.value == b"bad" else None, concurrency=1)
    memory.publish(b"bad", b"good")
    memory.dead()
    memory.until(lambda: consumer.stats.acknowledged == 1)


def test_a_handler_that_stops_the_event_loop_ends_nothing(memory: Bench) -> None:
    """A handler stops the event loop. Its message and later messages are handled, and `Consumer.stop` still ends the
    thread."""
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.value == b"bad":
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        handled.append(message.value)

    consumer = memory.consume(handle, concurrency=1)
    memory.publish(b"bad", b"good")
    memory.until(lambda: handled == [b"bad", b"good"])
    assert consumer.ready
    consumer.stop()
    assert not any(thread.is_alive() for thread in consumer._all_threads())


def test_a_task_that_raises_system_exit_ends_nothing(memory: Bench) -> None:
    """SystemExit of a task ends `run_forever` of the event loop. The loop's thread starts again and logs the error."""
    handled: list[bytes] = []

    async def ending() -> None:
        raise SystemExit(8)

    async def handle(message: Message) -> None:
        if message.value == b"bad":
            task = asyncio.get_running_loop().create_task(ending())
            task.add_done_callback(lambda done: done.exception())
        handled.append(message.value)

    consumer = memory.consume(handle, concurrency=1)
    memory.publish(b"bad", b"good")
    memory.until(lambda: handled == [b"bad", b"good"])
    memory.until(lambda: consumer.ready)


def test_a_message_that_cannot_be_handed_over_holds_up_no_other(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If handing a message to the handlers fails, the consumer drops it and hands over the others. The broker delivers
    it again."""
    handled: list[bytes] = []
    consumer = memory.consume(lambda message: handled.append(message.value), idle_ms=150)
    hand_over, failures = consumer._hand_over, [KeyError("once")]

    def failing(delivery: Any) -> None:
        if delivery.message.value == b"bad" and failures:
            raise failures.pop()
        hand_over(delivery)

    monkeypatch.setattr(consumer, "_hand_over", failing)
    memory.publish(b"bad", b"good")
    memory.until(lambda: sorted(handled) == [b"bad", b"good"])
    assert not failures


def test_a_consumer_is_not_ready_while_one_of_its_threads_is_down(
    memory: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that failed starts again, and its error is logged. Until then `ready` is False."""
    monkeypatch.setattr("wheel_sched.reviving._AGAIN_S", (0.05,))
    consumer = memory.consume(lambda message: None)
    assert consumer.ready
    look, failures = consumer._in_flight.room, [KeyError("once")]

    def failing(limit: int, timeout_s: float) -> int:
        if failures:
            raise failures.pop()
        return look(limit, timeout_s)

    monkeypatch.setattr(consumer._in_flight, "room", failing)
    memory.until(lambda: not consumer.ready)
    memory.until(lambda: consumer.ready)
    assert "billing-poll starts again" in caplog.text
    assert consumer.problems() == []


def test_tasks_cancelled_before_their_first_step_fail_their_messages(memory: Bench, policy: Policy) -> None:
    """A handler cancels all tasks of the loop. The message whose task had not begun is delivered again, and no slot is
    blocked."""
    memory.serve(policy(max_attempts=3))
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.value != b"bad":
            handled.append(message.value)
            return
        while len(asyncio.all_tasks()) == 1:
            await asyncio.sleep(0)  # the loop ends once another task exists; that task has not made its first step
        for task in asyncio.all_tasks():
            task.cancel()

    consumer = memory.consume(handle, concurrency=2)
    memory.publish(b"bad", b"good")
    memory.until(lambda: handled == [b"good"] and consumer.stats.in_flight == 0)
    # the good message failed once; the bad one is acknowledged, although its task was cancelled too
    stats = consumer.stats
    assert (stats.delivered, stats.acknowledged, stats.retried) == (3, 2, 1)
    assert consumer.ready


def test_a_task_factory_that_raises_fails_messages(memory: Bench, policy: Policy) -> None:
    """Messages for which no task can be made become dead letters after their attempts. None stays in flight."""
    memory.serve(policy(max_attempts=2))

    def broken(*_: Any, **__: Any) -> Any:
        raise LookupError("no tasks today")

    async def handle(message: Message) -> None:
        asyncio.get_running_loop().set_task_factory(broken)

    consumer = memory.consume(handle, concurrency=2)
    memory.publish(b"bad")
    memory.until(lambda: consumer.stats.acknowledged == 1)
    memory.publish(b"1", b"2", b"3")
    assert all("no tasks today" in letter.reason for letter in memory.dead(3))
    memory.until(lambda: consumer.stats.in_flight == 0)
