"""Handlers: run the application's handler and turn its result into an outcome.

Plain handlers run on a pool of threads (`HandlerThreads`), `async def` handlers on one event loop (`HandlerLoop`). Both
get deliveries by `give`. Each delivery ends as one outcome, which goes to the `Sink` that was given with the delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.outcome import HandlerOutcome, Outcomes, Sink
from retry_topic.consumer.reporting import Reporter
from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.consumer")

Handler = Callable[[Message], Any]
Job = tuple[Any, ...]  # the arguments of `handle` that follow the loop


def is_async(handler: Handler) -> bool:
    """Whether calling the handler makes a coroutine; also true of an object whose `__call__` is async."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # an object whose __call__ is async
    )


class HandlerCalls:
    """Calls the handler and makes an outcome of its return value or exception.

    Args:
        handler: the application's handler.
        outcomes: makes the outcomes.
        reporter: counts the results of attempts. Defaults to None: no counts.
    """

    def __init__(self, handler: Handler, outcomes: Outcomes, reporter: Reporter | None = None) -> None:
        self._handler = handler
        self._outcomes = outcomes
        self._reporter = reporter

    def call(self, delivery: Delivery, state: RetryState, message: Message, sink: Sink) -> None:
        """Call a plain handler in the calling thread, and give the outcome to `sink`."""
        started_ms = self._outcomes.now_ms()
        try:
            outcome = self._outcomes.returned(delivery, state, started_ms, self._handler(message))
        except BaseException as error:  # SystemExit in a handler fails its message, not the consumer
            outcome = self._outcomes.raised(delivery, state, started_ms, error)
        self._report(message, state, outcome)
        sink.put(outcome)

    async def call_async(
        self, loop: HandlerLoop, delivery: Delivery, state: RetryState, message: Message, sink: Sink
    ) -> None:
        """Call an `async def` handler, wait for it, and report the outcome to `loop`."""
        started_ms = self._outcomes.now_ms()
        try:
            async with loop.slots:  # with ordering by key, more deliveries may wait than handlers may run
                started_ms = self._outcomes.now_ms()
                awaitable: Awaitable[Any] = self._handler(message)
                outcome = self._outcomes.returned(delivery, state, started_ms, await awaitable)
        except BaseException as error:
            if loop.cut_off:
                raise  # `stop` cancelled the handler: the message did not fail, and comes again
            outcome = self._outcomes.raised(delivery, state, started_ms, error)
        self._report(message, state, outcome)
        loop.ended(sink, outcome)

    def not_called(
        self,
        loop: HandlerLoop,
        delivery: Delivery,
        state: RetryState,
        message: Message,
        sink: Sink,
        error: BaseException,
    ) -> None:
        """Make the outcome when the task of an `async def` handler ended before its first step or could not be made."""
        outcome = self._outcomes.raised(delivery, state, self._outcomes.now_ms(), error)
        self._report(message, state, outcome)
        loop.ended(sink, outcome)

    def _report(self, message: Message, state: RetryState, outcome: HandlerOutcome) -> None:
        if self._reporter is not None:
            self._reporter.note(message, first=state.attempt == 0, succeeded=outcome.ended == "acknowledged")
            self._reporter.ends.note_attempt(state)


class HandlerThreads:
    """The threads on which plain handlers run.

    `give` takes the arguments of `HandlerCalls.call`, and makes that call on the next free thread.

    Args:
        calls: calls the handler.
        concurrency: the number of threads.
        name: the prefix of the threads' names.
    """

    def __init__(self, calls: HandlerCalls, concurrency: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix=name)
        # `give` is an attribute: a method would cost one more call for each message
        submit: Callable[..., object] = self._pool.submit
        self.give: Callable[[Delivery, RetryState, Message, Sink], object] = partial(submit, calls.call)

    def together(self) -> AbstractContextManager[None]:
        """A `with` block that has no effect: threads gain nothing from several deliveries at a time."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Begin no more calls. Does not wait for running handlers."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class HandlerLoop:
    """The event loop on which `async def` handlers run, in its own thread.

    Waking an event loop is expensive: it writes to a socket and switches threads. So all deliveries of one poll go to
    the loop in one call, which makes a task of each. All outcomes of one iteration of the loop go to the settler in one
    call. While the loop has not yet begun a call, further deliveries are added to that call.

    Threads: any thread may call `give`, `together` and `end`, and `close` after `end`. All other methods run in the
    loop's thread. This class holds each task until it is done, because asyncio holds tasks only weakly.

    Args:
        handle: makes the coroutine that handles a delivery and then calls `ended` with the outcome.
        failed: is called like `handle`, and with the error, for a delivery whose coroutine never began: its task was
            cancelled before the first step or could not be made. It runs in the loop's thread.
        concurrency: how many handlers may run at the same time; `handle` enters `slots` for each.
    """

    def __init__(
        self, handle: Callable[..., Coroutine[Any, Any, None]], failed: Callable[..., None], concurrency: int
    ) -> None:
        self._handle = handle
        self._failed = failed
        self.slots = asyncio.Semaphore(concurrency)
        self._loop = asyncio.new_event_loop()
        self._jobs: deque[Job] = deque()
        self._called = False  # the loop was woken, and has not yet begun to take the jobs
        self._gathering = False
        self._tasks: dict[asyncio.Task[Any] | None, Job] = {}  # tasks whose delivery has no outcome yet
        self._outcomes: dict[Sink, list[HandlerOutcome]] = {}
        self.cut_off = False  # set by `end`: from then on a cancelled task is not a failure
        self.ending = threading.Event()

    def __repr__(self) -> str:
        return f"<HandlerLoop jobs={len(self._jobs)} tasks={len(self._tasks)}>"

    def run(self) -> None:
        """Run the loop until `end` stops it. If a handler stops it, run it again. The loop's thread calls this."""
        while True:
            self._loop.run_forever()
            if self.ending.is_set() or self._loop.is_closed():
                return
            logger.error("consumer.loop_stopped: a handler has stopped the event loop; the loop is started again")

    def give(self, *job: Any) -> None:
        """Pass a delivery to the loop, which handles it soon. Does not wait for the handler."""
        self._jobs.append(job)
        if not self._gathering:
            self._call()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A `with` block: all deliveries given in it go to the loop in one call. One thread at a time may use it."""
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            if self._jobs:
                self._call()

    def ended(self, sink: Sink, outcome: HandlerOutcome) -> None:
        """Take the outcome of a delivery, and pass it to `sink` soon. The delivery's task calls this."""
        if not self._outcomes:
            self._loop.call_soon(self._pass_on)
        self._outcomes.setdefault(sink, []).append(outcome)
        self._tasks.pop(asyncio.current_task(self._loop), None)

    def end(self) -> None:
        """Cancel all tasks, let each of them run once more, and stop the loop. Any thread may call it."""
        self.cut_off = True
        self._loop.call_soon_threadsafe(self._end)

    def close(self) -> None:
        """Close the loop. Does nothing while a handler keeps the loop running."""
        if not self._loop.is_running():
            self._loop.close()

    # -- in the loop's thread

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._called = False  # set before the jobs are taken, so that a later job wakes the loop again
        while self._jobs:
            job = self._jobs.popleft()
            coroutine = self._handle(self, *job)
            try:
                task = self._loop.create_task(coroutine)
            except BaseException as error:  # an error of the handler's task factory; the other jobs must begin
                coroutine.close()
                self._failed(self, *job, error)
            else:
                self._tasks[task] = job
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Report a task that ended without an outcome, because it was cancelled before its coroutine began.

        A task that cancelled itself and then returned already has an outcome, although it counts as cancelled.
        """
        job = self._tasks.pop(task, None)
        if job is not None and not self.cut_off:
            error = None if task.cancelled() else task.exception()
            self._failed(self, *job, error or asyncio.CancelledError())

    def _pass_on(self) -> None:
        outcomes, self._outcomes = self._outcomes, {}
        for sink, ended in outcomes.items():
            sink.put_all(ended)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_soon(lambda: self._loop.call_soon(self._stop))  # a cancelled task ends in the next iteration

    def _stop(self) -> None:
        self.ending.set()
        self._loop.stop()
