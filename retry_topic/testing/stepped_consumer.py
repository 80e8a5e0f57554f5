"""A consumer without threads: the caller makes its steps, and the handler runs in the caller's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retry_topic.brokers.protocol import Delivery
from retry_topic.connection import Connection
from retry_topic.consumer import Consumer, ConsumerConfig
from retry_topic.consumer.handlers import Handler, HandlerCalls
from retry_topic.consumer.outcome import HandlerOutcome, Sink
from retry_topic.message import Message
from retry_topic.message.headers import RetryState


class SteppedConsumer(Consumer):
    """A `Consumer` that handles one message in each step. It is never started.

    Args:
        connection, topics, handler, group: see `Consumer`.
        now_ms: the clock, in epoch ms.
        runner: runs the coroutines of an `async def` handler. Defaults to None: the handler is a plain function.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        handler: Handler,
        group: str,
        now_ms: Callable[[], int],
        runner: asyncio.Runner | None = None,
    ) -> None:
        config = ConsumerConfig(concurrency=1, announce_ms=0)
        super().__init__(connection, topics, handler, group=group, config=config)
        self._outcomes.now_ms = now_ms
        self._runner = runner
        self.reads = (*self.topics, config.group_topics.redelivery_of(group))
        self._open()

    def _make_handlers(self) -> Any:
        return _Handlers(self._calls, self._runner)

    def step_once(self) -> None:
        """Read one message, handle it and settle it. If the broker has no message, this waits some 11 s in vain."""
        self.step()
        self._settler.step()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


class _Handlers:
    """Calls the handler at once. It has the methods of `HandlerThreads`, and what a `HandlerLoop` does for a call."""

    cut_off = False

    def __init__(self, calls: HandlerCalls, runner: asyncio.Runner | None) -> None:
        self._calls, self._runner = calls, runner
        self.slots = asyncio.Semaphore(1)

    def give(self, delivery: Delivery, state: RetryState, message: Message, sink: Sink) -> None:
        if self._runner is None:
            self._calls.call(delivery, state, message, sink)
        else:
            self._runner.run(self._calls.call_async(self, delivery, state, message, sink))  # type: ignore[arg-type]

    def ended(self, sink: Sink, outcome: HandlerOutcome) -> None:
        sink.put(outcome)

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """Do nothing: `give` returns after the handler has ended, so there is nothing to stop."""
