"""HandlerLoop: the event loop that `async def` handlers run on, in a thread of its own.

Waking a loop is what a hand-over costs: it writes to a socket, and two threads change places. So what is polled
together goes over in one call, in which a task is made of each delivery; and what ends in one turn of the loop goes to
be settled in one call. What is given while the loop has not got to the last call goes with that.

Threads: `give` and `together` from any, the rest in the loop's own. A task that is not done is held until it is: the
loop alone would not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from retry_topic.consumer.settling import Outcome, Sink
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.consumer")

Job = tuple[Any, ...]  # what `handle` is called with, after the loop


class HandlerLoop:
    """See the module.

    Args:
        handle: makes the coroutine that handles what was given, and tells this loop when it has `ended`.
        failed: called like `handle`, with the error besides, for what was given and has not ended: its task was
            cancelled before its first step, or could not be made. In the loop's thread.
    """

    def __init__(self, handle: Callable[..., Coroutine[Any, Any, None]], failed: Callable[..., None]) -> None:
        self._handle = handle
        self._failed = failed
        self._loop = asyncio.new_event_loop()
        self._jobs: deque[Job] = deque()
        self._called = False  # and not begun yet
        self._gathering = False
        self._tasks: dict[asyncio.Task[Any] | None, Job] = {}  # those whose delivery has not ended
        self._outcomes: dict[Sink, list[Outcome]] = {}
        self.cut_off = False  # what is cancelled from now on did not fail
        self.ending = threading.Event()

    def __repr__(self) -> str:
        return f"<HandlerLoop jobs={len(self._jobs)} tasks={len(self._tasks)}>"

    def run(self) -> None:
        """The thread. A handler that stops the loop stops nothing: it goes on."""
        while True:
            self._loop.run_forever()
            if self.ending.is_set() or self._loop.is_closed():
                return
            logger.error("consumer.loop_stopped: a handler has stopped the event loop; it goes on")

    def give(self, *job: Any) -> None:
        """Have a delivery handled."""
        self._jobs.append(job)
        if not self._gathering:
            self._call()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is given meanwhile goes over in one call. One thread at a time; what others give goes along."""
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            if self._jobs:
                self._call()

    def ended(self, sink: Sink, outcome: Outcome) -> None:
        """A delivery was handled, in the task that calls."""
        if not self._outcomes:
            self._loop.call_soon(self._pass_on)
        self._outcomes.setdefault(sink, []).append(outcome)
        self._tasks.pop(asyncio.current_task(self._loop), None)

    def end(self) -> None:
        """Cancel what still runs and stop the loop once it has seen that. Any thread."""
        self.cut_off = True
        self._loop.call_soon_threadsafe(self._end)

    def close(self) -> None:
        """Let go of it, unless a handler does not let it stop."""
        if not self._loop.is_running():
            self._loop.close()

    # -- in the loop's thread

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._called = False  # before the jobs are taken: one that comes behind the last calls again
        while self._jobs:
            job = self._jobs.popleft()
            coroutine = self._handle(self, *job)
            try:
                task = self._loop.create_task(coroutine)
            except BaseException as error:  # a handler's task factory; what comes behind it has to begin all the same
                coroutine.close()
                self._failed(self, *job, error)
            else:
                self._tasks[task] = job
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step never entered its coroutine: nobody else tells of it.

        One that cancelled itself and returned has ended, and counts as cancelled nevertheless.
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
        self._loop.call_soon(lambda: self._loop.call_soon(self._stop))  # a cancelled task takes one turn to end

    def _stop(self) -> None:
        self.ending.set()
        self._loop.stop()
