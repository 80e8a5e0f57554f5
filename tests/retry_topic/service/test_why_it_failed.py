"""A message keeps its failed attempts and its last traceback: in the store, as a dead letter, and when it is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Consumer, ConsumerConfig, DeadLetter, DeadLetters, Message, Retry, RetryPolicy
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.dead_letters import DeadLetterInfo
from retry_topic.dead_letters.selection import read_dead
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, lighter, write
from retry_topic.policy import Fixed, Rule
from retry_topic.release.broker_publisher import BrokerPublisher
from wheel_sched.dispatcher import Batch, Failed
from wheel_sched.errors import BrokerUnavailable, ConfigError
from wheel_sched.store import Done, Item

if TYPE_CHECKING:
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
SECRET = b"0123456789abcdef"


def pay(message: Message) -> None:
    raise PermissionError("no account at https://u:hunter2@bank/") from KeyError(1)


def waiting(bench: Bench, count: int = 1) -> list[DeadLetterInfo]:
    """Wait for this number of waiting messages, and return them."""
    bench.until(lambda: bench.connection.store.counts().total("due") >= count)
    return [read_dead(found) for found in bench.connection.store.list_items("due").found]


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
def test_a_dead_letter_tells_about_all_its_attempts(
    bench: Bench, handler: Handlers, secrets: tuple[bytes, ...]
) -> None:
    """Each attempt has its time, error, process, delay and what chose it. The last one has a traceback."""
    handle = handler(ValueError("first"), Retry(0.03, "busy"), pay)
    rules = (Rule(errors=("builtins.ValueError",), delay=Fixed(base_ms=10), name="quick"),)
    bench.serve(RetryPolicy("payments", delay=Fixed(base_ms=20), max_attempts=3, rules=rules), secrets=secrets)
    bench.consume(handle, secrets=secrets)
    bench.publish(b"m")
    (letter,) = bench.dead()
    known = letter.failed_attempts
    assert [(one.number, one.error_class, one.text, one.delay_ms, one.chosen_by) for one in known.attempts] == [
        (1, "builtins.ValueError", "first", 10, "rule 1 (quick) of payments@1"),
        (2, None, "busy", 30, "the handler asked for it"),
        (3, "builtins.PermissionError", "no account at https://u:***@bank/", None, "max-attempts, payments@1"),
    ]
    assert known.dropped == 0
    assert {one.process for one in known.attempts} == {f"{os.uname().nodename}:{os.getpid()}"}
    assert [one.at_ms for one in known.attempts] == sorted(one.at_ms for one in known.attempts)
    assert letter.state.last_failed_ms == known.attempts[-1].at_ms
    assert letter.traceback is not None
    assert "in pay" in letter.traceback
    assert "Caused by: KeyError: 1" in letter.traceback
    assert "hunter2@" not in letter.traceback.split("PermissionError: ")[1]


def test_the_handler_gets_the_attempts_and_no_traceback(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """The store keeps the traceback of a waiting message. The message is delivered again without its traceback."""
    handle = handler(pay, None)
    bench.serve(policy(base_ms=300))
    bench.consume(handle)
    bench.publish(b"m")
    (found,) = waiting(bench)
    assert found.traceback is not None
    assert [one.number for one in found.failed_attempts.attempts] == [1]
    bench.until(lambda: len(handle.calls) == 2)
    names = [name for name, _ in handle.calls[1].message.headers]
    assert "retry-failed-attempts" in names
    assert not {"retry-traceback", "store-note:retry-traceback", "retry-process"} & {*names}


def test_the_dead_topic_has_both(bench: Bench, handler: Handlers, policy: Policy) -> None:
    """Readers of the dead topic find the failed attempts and the traceback as headers."""
    bench.serve(policy(max_attempts=1))
    bench.consume(handler(pay))
    bench.publish(b"m")
    bench.dead()
    found: list[Message] = []

    def look() -> bool:
        found.extend(bench.records("billing.dead"))
        return bool(found)

    bench.until(look)
    assert b"in pay" in (found[0].header("retry-traceback") or b"")
    assert b"max-attempts" in (found[0].header("retry-failed-attempts") or b"")


def test_tracebacks_can_be_switched_off(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """With `keep_tracebacks=False` no message has a traceback. The failed attempts stay."""
    memory.serve(policy(max_attempts=2))
    memory.consume(handler(pay), keep_tracebacks=False)
    memory.publish(b"m")
    (letter,) = memory.dead()
    assert letter.traceback is None
    assert len(letter.failed_attempts.attempts) == 2
    with pytest.raises(ConfigError, match="expected keep_tracebacks to be True or False"):
        ConsumerConfig(keep_tracebacks=1)  # type: ignore[arg-type]


def test_an_attempt_that_raised_nothing_has_no_traceback(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """The first attempt raises, and the second returns `DeadLetter`. So the letter has no traceback.

    A traceback is always that of the last failed attempt.
    """
    memory.serve(policy())
    memory.consume(handler(pay, DeadLetter("wrong account")))
    memory.publish(b"m")
    (letter,) = memory.dead()
    assert letter.traceback is None
    assert [one.text for one in letter.failed_attempts.attempts][1:] == ["wrong account"]


async def failing_later(message: Message) -> None:
    pay(message)


def test_an_async_handler_has_a_traceback_of_its_own_code(memory: Bench, policy: Policy) -> None:
    """The traceback of an `async def` handler begins with the handler."""
    memory.serve(policy(max_attempts=1))
    memory.consume(failing_later)
    memory.publish(b"m")
    (letter,) = memory.dead()
    assert letter.traceback is not None
    first = letter.traceback.split("\n")[1]
    assert first.endswith("in failing_later")


def test_a_replayed_letter_keeps_its_attempts(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """The attempts of a replay follow the earlier ones, and are numbered from 1 again."""
    memory.serve(policy(max_attempts=2))
    memory.consume(handler(pay))
    memory.publish(b"m")
    memory.dead()
    assert DeadLetters(memory.connection).replay().replayed == 1
    memory.until(lambda: any(len(one.failed_attempts.attempts) == 4 for one in memory.letters()))
    (letter,) = memory.letters()
    assert [one.number for one in letter.failed_attempts.attempts] == [1, 2, 1, 2]


def test_a_body_that_is_too_large_loses_them(
    memory: Bench, handler: Handlers, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message whose body is above the limit waits without its traceback. It does not become a dead letter.

    If the body is then still above the limit, the message also loses its failed attempts.
    """
    memory.serve(policy(base_ms=60_000))
    memory.consume(handler(pay))
    memory.publish(b"1")
    (whole,) = waiting(memory)
    form: Message | None = whole.message
    for number, expected in ((2, (False, 1)), (3, (False, 0))):
        assert form is not None
        form = lighter(form)
        assert form is not None
        monkeypatch.setattr("retry_topic.intake.records.MAX_BODY_BYTES", len(encode_body(form)) + 9)
        memory.publish(b"%d" % number)
        found = waiting(memory, number)[-1]
        assert (found.traceback is not None, len(found.failed_attempts.attempts)) == expected


class Small(MemoryBroker):
    """A broker that refuses records above a size."""

    limit = 1_000_000

    def publish_fields(self, entries: Any) -> Any:
        refused = PublishFailure("too large", transient=False)
        large = [sum(map(len, fields)) > self.limit for _, fields in entries]
        return [
            refused if big else super(Small, self).publish_fields([one])[0]
            for big, one in zip(large, entries, strict=True)
        ]


def test_a_release_that_is_too_large_goes_without_the_attempts() -> None:
    """The broker refuses a due message as too large. The publisher sends it again without its failed attempts, and it
    does not become a dead letter."""
    broker = Small()
    broker.create_topic("t")
    broker.limit = 100
    state = RetryState(id="a", attempt=1, failed_attempts="[]" * 30, traceback="T" * 300)
    item: Any = Item("a", 0, encode_body(Message("t", b"v", headers=write((("x", b"1"),), state))))
    batch = Batch.__new__(Batch)
    batch.items, batch.answers = [item], [None]
    BrokerPublisher(broker).publish(batch)
    assert batch.answers == [Done("a")]
    (delivery,) = broker.consumer(["t"], "g").poll(10, 0)
    assert [name for name, _ in delivery.message.headers] == ["x", "retry-id", "retry-attempt", "retry-replays"]


def test_a_broker_that_goes_away_meanwhile_gets_nothing_twice() -> None:
    """The broker accepts one message and refuses another as too large. When the other message is sent again, the broker
    does not answer.

    The first message is done. Only the second one fails, and it may be sent again.
    """

    class Leaving(Small):
        def publish_fields(self, entries: Any) -> Any:
            if len(entries) == 1:
                raise BrokerUnavailable("away")
            return [None, PublishFailure("too large", transient=False)]

    body = encode_body(Message("t", b"v", headers=(("retry-failed-attempts", b"[]"),)))
    batch = Batch.__new__(Batch)
    batch.items, batch.answers = [Item("a", 0, body), Item("b", 0, body)], [None, None]  # type: ignore[list-item]
    BrokerPublisher(Leaving()).publish(batch)
    assert batch.answers == [Done("a"), Failed("away", True, False)]


def test_forged_headers_stop_nothing(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """Another program writes a retry record with damaged headers about failures. The message waits as usual, and can be
    read.
    """
    memory.serve(policy(base_ms=60_000))
    Consumer(memory.connection, "orders", handler(None), group="billing")  # never started: it only creates the topics
    bad = (
        ("retry-failed-attempts", b"\xff\n[1]\n999999999999\n" + b"[" * 5_000),
        ("retry-traceback", b"\x1b[2J\x00\xff" * 4_000),
        ("retry-process", b"\x00"),
        ("retry-attempt", b"1"),
    )
    memory.publish(b"m", topic="billing.retry", headers=bad)
    (found,) = waiting(memory)
    assert len(found.failed_attempts.attempts) == 1
    assert found.traceback is not None
    assert len(found.traceback.encode()) <= 4_096
