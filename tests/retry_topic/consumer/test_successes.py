"""The consumer reports successes to the store, so that a second copy of the message cannot be retried.

It reports only messages that were in the store before, and it does so before it acknowledges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import RetryPolicy
from retry_topic.consumer.outcome import success_of
from retry_topic.consumer.settling import KNOWN_FOR_MS, Successes
from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState, attempts_key, content_id, published, read
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import ENDED, AttemptCounts, DelayStore
from wheel_sched.store.memory import MemoryBackend

if TYPE_CHECKING:
    from conftest import Bench, Handler

Handlers = Callable[..., "Handler"]
Policy = Callable[..., RetryPolicy]
MESSAGE = Message("orders", b"m", b"k", (), Source("orders", 0, "1", 1))


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of successes that consumers reported to stores."""
    keys: list[str] = []
    raise_to = AttemptCounts.raise_to

    def noting(self: AttemptCounts, counts: Any, **more: Any) -> list[int]:
        keys.extend(key for key, attempts, _ in counts if attempts == ENDED)
        return raise_to(self, counts, **more)

    monkeypatch.setattr(AttemptCounts, "raise_to", noting)
    return keys


@pytest.mark.parametrize(
    ("state", "known"),
    [
        (RetryState(), False),
        (RetryState(id="m"), False),  # parked behind its key's head, and never sent twice
        (RetryState(id="m", attempt=1), True),
        (RetryState(id="m", replays=1), True),
        (RetryState(id="m", published_ms=1), True),
        (RetryState(id="m", attempt=1, unsigned=True), False),
        (RetryState(id=content_id("g", b"m", b"k"), attempt=1), False),  # many messages have this id
    ],
)
def test_only_of_what_has_passed_the_store_something_is_told(state: RetryState, known: bool) -> None:
    """A success is reported only if the message was in the store before and its id belongs to no other message.
    Otherwise the message has no second copy, or the store could not recognise the copy."""
    assert (success_of("g", MESSAGE, state) is not None) is known


def test_a_success_is_told_under_the_key_of_its_attempts() -> None:
    """A success has the key under which the intake counts failures. Group, replay count and payload are part of the
    key."""
    message = published(MESSAGE, "daily", 1_000)
    state = read(message.headers)
    assert success_of("g", message, state) == attempts_key(replace(state, consumer_group="g"), message)
    assert success_of("g", message, state) != success_of("other", message, state)


def test_a_success_is_known_for_an_hour_at_least() -> None:
    """The store remembers a success for an hour by its own clock, and then forgets it."""
    now = [1_000_000]
    store = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: now[0]).open()
    Successes(store).remember(["k"])
    now[0] += KNOWN_FOR_MS - 1_000
    assert AttemptCounts(store).raise_to([("k", 0, 0)]) == [ENDED]
    now[0] += 2_001
    assert AttemptCounts(store).raise_to([("k", 0, 0)]) == [0]


def test_a_store_that_is_away_holds_up_no_acknowledgement(
    memory: Bench, handler: Handlers, policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """After a failed call the consumer does not call the store for some seconds. Messages are
    acknowledged meanwhile."""
    asked: list[Any] = []

    def away(self: Successes) -> int:
        asked.append(1)
        raise StoreUnavailable("away")

    monkeypatch.setattr(Successes, "_now_ms", away)
    consumer = memory.consume(handler())
    memory.serve()
    for _ in range(3):
        memory.connection.publish("orders", b"m", delay=0.001)
    memory.until(lambda: consumer.stats.acknowledged == 3)
    assert asked == [1]
    assert "consumer.cannot_remember_success" in caplog.text


def test_a_first_success_costs_the_store_nothing(
    memory: Bench, handler: Handlers, policy: Policy, reported: list[str]
) -> None:
    """A success at the first delivery causes no call of the store. The success of a delayed message causes one."""
    consumer = memory.consume(handler())
    memory.publish(*(b"%d" % n for n in range(20)))
    memory.until(lambda: consumer.stats.acknowledged == 20)
    assert reported == []
    memory.serve()
    memory.connection.publish("orders", b"m", delay=0.001)
    memory.until(lambda: consumer.stats.acknowledged == 21)
    assert len(reported) == 1
    assert AttemptCounts(memory.connection.store).raise_to([(reported[0], 0, 0)]) == [ENDED]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_success_after_failures_is_told(
    memory: Bench, handler: Handlers, policy: Policy, reported: list[str], ordering: str
) -> None:
    """The success is reported once, with the key that counted the failures of the message."""
    handle = handler(ValueError("x"), ValueError("x"), None)
    consumer = memory.consume(handle, ordering=ordering)
    memory.serve(policy())
    memory.publish(b"m", key=b"k")
    memory.until(lambda: consumer.stats.acknowledged == 1)
    assert len(reported) == 1
    assert reported[0].startswith(f"{handle.calls[-1].state.id}:0:")
