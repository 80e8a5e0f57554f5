"""The event loop of async handlers: deliveries given together wake it once, and their outcomes are reported in one
call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.handlers import HandlerLoop
from retry_topic.consumer.outcome import HandlerOutcome
from retry_topic.message import Message

PATIENCE_S = 30.0
COUNT = 50


class Notes:
    """A sink that receives the outcomes of handlers and records which came in one call."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.changed = threading.Condition()

    def put(self, outcome: HandlerOutcome) -> None:
        self.put_all([outcome])

    def put_all(self, outcomes: Sequence[HandlerOutcome]) -> None:
        with self.changed:
            self.calls.append([outcome.delivery.message.value for outcome in outcomes])
            self.changed.notify_all()

    def until(self, count: int) -> list[list[bytes]]:
        with self.changed:
            assert self.changed.wait_for(lambda: sum(map(len, self.calls)) >= count, PATIENCE_S), self.calls
            return self.calls


async def handle(loop: HandlerLoop, value: bytes, sink: Notes) -> None:
    await asyncio.sleep(0)
    loop.ended(sink, HandlerOutcome(Delivery(Message("t", value), None), "acknowledged"))


def failed(loop: HandlerLoop, value: bytes, sink: Notes, error: BaseException) -> None:
    loop.ended(sink, HandlerOutcome(Delivery(Message("t", value), None), "retried"))


@pytest.fixture
def loop() -> Iterator[HandlerLoop]:
    loop = HandlerLoop(handle, failed, 100)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


def test_what_is_given_together_goes_over_and_comes_back_in_one_call(
    loop: HandlerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deliveries given within `together` need one call to the loop. Their outcomes are reported in one call, in
    order."""
    calls: list[Any] = []
    real = loop._loop.call_soon_threadsafe

    def counted(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", counted)
    notes, values = Notes(), [b"%d" % n for n in range(COUNT)]
    with loop.together():
        for value in values:
            loop.give(value, notes)
        assert not calls
    assert notes.until(COUNT) == [values]
    assert len(calls) == 1


def test_what_several_threads_give_is_all_handled(loop: HandlerLoop) -> None:
    """Three threads give deliveries while a fourth enters and leaves `together` repeatedly. All
    deliveries are handled."""
    notes = Notes()

    def give(first: int) -> None:
        for n in range(first, first + 500):
            loop.give(b"%d" % n, notes)

    threads = [threading.Thread(target=give, args=(first,)) for first in (0, 500, 1_000)]
    for thread in threads:
        thread.start()
    for n in range(1_500, 2_000, 5):
        with loop.together():
            for each in range(n, n + 5):
                loop.give(b"%d" % each, notes)
    for thread in threads:
        thread.join(PATIENCE_S)
    found = [int(value) for call in notes.until(2_000) for value in call]
    assert sorted(found) == list(range(2_000))
