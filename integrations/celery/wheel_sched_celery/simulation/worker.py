"""A Celery worker of a simulated world. It runs the product's own bootsteps.

Celery's blueprint, its event loop and its pool do not run here; this module calls the product in their place. The
strategy, the requests and their acknowledgements are Celery's own code. The consumer and its messages are kombu's.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.worker.state import task_reserved
from kombu.common import QoS

from wheel_sched.simulation.locks import SimulatedEvent
from wheel_sched.simulation.queues import SimulatedThreadPoolExecutor
from wheel_sched.simulation.scheduler import running
from wheel_sched.simulation.threads import SimulatedThread
from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher
from wheel_sched_celery.remote_control import commands
from wheel_sched_celery.takeover.step import TakeoverStep
from wheel_sched_celery.worker_timer.timer import WheelTimer

POLL_S = 1.0  # Celery's event loop checks its socket at least this often
RECONNECT_S = 0.3
PREFETCH = 8
CONCURRENCY = 2


class Loop:
    """The part of kombu's event loop that the product uses.

    A call from another thread does not wake the loop. kombu before 5.7 behaves in this way.
    """

    def __init__(self) -> None:
        self.timer = WheelTimer()
        self._scheduler = iter(self.timer)
        self._soon: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._soon.append((call, arguments))

    def call_later(self, delay_s: float, call: Callable[..., Any], *arguments: Any) -> Any:
        return self.timer.call_after(delay_s, call, arguments)

    def turn(self) -> float:
        """Run the due calls, as kombu does in one turn of its loop. Returns the seconds until the next turn."""
        for _ in range(len(self._soon)):
            call, arguments = self._soon.popleft()
            call(*arguments)
        for _ in range(10):
            delay_s, entry = next(self._scheduler)
            if entry is None:
                break
            entry()
            delay_s = 0.0
        return 0.0 if self._soon else min(POLL_S, POLL_S if delay_s is None else delay_s)

    def clear(self) -> None:
        """Forget all waiting calls, because the connection was lost."""
        self.timer.clear()
        self._soon.clear()


class Pool:
    """A pool of threads. It reports each result to the event loop as a call."""

    def __init__(self, work: Callable[[dict[str, Any]], None], report: Callable[..., None]) -> None:
        self._work, self._report = work, report
        self._threads = SimulatedThreadPoolExecutor(CONCURRENCY, "pool")
        self.unfinished = 0

    def apply_async(
        self, _trace: object, args: tuple[Any, ...], accept_callback: Any, callback: Any, **_: object
    ) -> None:
        """Run a task, as a pool of Celery does. Calls `callback` with (failed, result, seconds)."""
        request = args[2]
        self.unfinished += 1

        def job() -> None:
            self._report(accept_callback, 1, 0.0)
            self._work(request)
            self._report(self._finished, callback)

        self._threads.submit(job)

    def _finished(self, callback: Any) -> None:
        self.unfinished -= 1
        callback((0, None, 0.0))


class Worker:
    """One worker: its event loop, its dispatcher, and the attributes of Celery's consumer that the product uses.

    Args:
        app: the Celery app of this process, with `app.wheel`.
        task: the task that the worker runs.
        work: the task's function; it gets the request as a dict.
        revoked: the revoked task ids that this process knows.
    """

    def __init__(self, app: Any, task: Any, work: Callable[[dict[str, Any]], None], revoked: Any) -> None:
        self.app = app
        self.hostname = running.scheduler.process.name
        self._task = task
        self._revoked = revoked
        self._woken = SimulatedEvent()
        self._stopping = False
        self.hub = Loop()
        self.timer = self.hub.timer
        self.pool = Pool(work, self._report)
        self.controller = SimpleNamespace(state=SimpleNamespace(revoked=revoked))
        self.event_dispatcher = None
        self.disable_rate_limits = True
        self.task_buckets: dict[str, None] = {task.name: None}
        self._limit_task = self._limit_post_eta = None
        self.strategies: dict[str, Any] = {}
        self.connection: Any = None
        self.connection_errors: tuple[type[BaseException], ...] = (OSError,)
        self.task_consumer: Any = None
        self.qos: Any = None
        self._takeover = TakeoverStep(self)
        self._dispatcher = EmbeddedDispatcher(app.wheel)
        self._thread = SimulatedThread(target=self._run, name="loop")

    def start(self) -> None:
        self._dispatcher.start()
        self._thread.start()

    def stop(self) -> None:
        """Do a warm shutdown: wait until the running tasks have ended, then close the connection."""
        self._stopping = True
        self._woken.set()
        self._thread.join()
        self._dispatcher.stop()

    # -- what Celery's consumer offers

    def on_task_request(self, request: Any) -> None:
        """Hand a request to the pool, as `WorkController` does."""
        with contextlib.suppress(TaskRevokedError):
            request.execute_using_pool(self.pool)

    def apply_eta_task(self, request: Any) -> None:
        """Run a task whose ETA has come. Celery's consumer has a method of this name."""
        task_reserved(request)
        self.on_task_request(request)
        self.qos.decrement_eventually()

    def _report(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.hub.call_soon(call, *arguments)
        self._woken.set()

    # -- the loop

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._connect()
                self._consume()
            except self.connection_errors:
                pass
            if self._stopping:
                self._finish()
            self._disconnect()
            if not self._stopping:
                self._woken.wait(RECONNECT_S)

    def _connect(self) -> None:
        """Connect and start the bootsteps: Celery's `Tasks`, then the product's takeover."""
        self.connection = self.app.connection_for_read()
        self.connection.connect()
        self.connection.default_channel.basic_qos(0, PREFETCH, False)
        self.task_consumer = consumer = self.app.amqp.TaskConsumer(self.connection, on_message=self._on_message)
        self.qos = QoS(lambda prefetch_count: consumer.qos(prefetch_count=prefetch_count), PREFETCH)
        self.strategies = {self._task.name: self._task.start_strategy(self.app, self)}
        self._takeover.start(self)
        consumer.consume()

    def _disconnect(self) -> None:
        """Clean up after a lost connection. The broker delivers all unacknowledged messages again."""
        self._takeover.stop(self)
        self.hub.clear()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.collect()

    def _consume(self) -> None:
        transport = self.connection.transport
        self._woken = transport.consume()
        while not self._stopping:
            wait_s = self.hub.turn()
            if self.qos.prev != self.qos.value:
                self.qos.update()
            self._woken.clear()
            if wait_s and not transport.is_readable():
                self._woken.wait(wait_s)
            if transport.is_readable():
                for command, argument in transport.read():
                    getattr(commands, command)(self._state(), argument)

    def _finish(self) -> None:
        """Wait until the running tasks have ended."""
        for _ in range(100):
            if not self.pool.unfinished:
                return
            self._woken.clear()
            self._woken.wait(0.1)
            try:
                self.hub.turn()
            except self.connection_errors:
                return

    def _state(self) -> Any:
        return SimpleNamespace(app=self.app, hostname=self.hostname, consumer=self)

    def _on_message(self, message: Any) -> None:
        """Hand a message to the task's strategy, as the message handler of Celery's consumer does."""
        strategy = self.strategies.get(message.headers["task"])
        if strategy is not None:
            strategy(message, None, message.ack_log_error, message.reject_log_error, [])
