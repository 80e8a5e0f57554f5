"""Takeover: ETA messages that reach a worker anyway move into the store, and are acknowledged once they are durable.

They come from producers without the integration, in other languages, or from before its installation. Those of one turn
of the event loop go into the store in one call. Whatever cannot be held stays with stock Celery: broadcasts, messages
whose own queue is not known, too large ones, and all of them while the store is away.

Due times are judged by the store's clock, also for what is due soon and stays in the worker's timer: a worker whose
clock is an hour behind or ahead neither runs tasks early or late nor takes a dispatched message over again. The time
used never goes back, so that neither does the store's clock do that.

Threads: the consumer's alone.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from celery import bootsteps
from celery.worker import state as worker_state
from kombu.asynchronous.timer import to_timestamp

from wheel_sched.dispatcher.server_time import ServerTime
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched_celery.due import instant_ms, iso_of
from wheel_sched_celery.entities import values_of
from wheel_sched_celery.held_task import HeldTask
from wheel_sched_celery.own_queue import own_queue
from wheel_sched_celery.recording import eta_of
from wheel_sched_celery.wheel import Wheel, wheel_of

logger = logger_of("wheel_sched.celery")

ASK_AGAIN_S = 5.0  # clocks drift by up to 0.1 ms a second; and the quickest of several replies tells the time best
# of the transport, not of the message
_TRANSPORT_PROPERTIES = frozenset(
    {"application_headers", "body_encoding", "content_encoding", "content_type", "delivery_info", "delivery_tag"}
)

Strategy = Callable[..., Any]


class _Taken(NamedTuple):
    """A message between its arrival and the end of the loop's turn."""

    task: HeldTask
    ack: Callable[..., Any]
    stock: Callable[[], Any]


class StoreClock:
    """The store's time as a worker sees it; never ahead of the store, never going back.

    Args:
        wheel: whose store.
        monotonic_ns: local time. Defaults to the machine's.
    """

    def __init__(self, wheel: Wheel, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wheel = wheel
        self._monotonic_ns = monotonic_ns
        self._time = ServerTime()
        self._asked_us = 0
        self._highest_us = 0

    def now_us(self) -> int | None:
        """Microseconds since 1970; None while the store has not said."""
        local_us = self._monotonic_ns() // 1000
        if not self._time.known or local_us - self._asked_us > ASK_AGAIN_S * 1e6:
            self._ask()
        if not self._time.known:
            return None
        self._highest_us = max(self._highest_us, self._time.now_us(self._monotonic_ns() // 1000))
        return self._highest_us

    def _ask(self) -> None:
        before_us = self._monotonic_ns() // 1000
        try:
            now_us = self._wheel.store_now_us()
        except WheelSchedError:
            return
        after_us = self._asked_us = self._monotonic_ns() // 1000
        self._time.observe(now_us, before_us, after_us)


class Takeover:
    """Stands in front of the strategies of one consumer's connection.

    Args:
        wheel: what holds.
        consumer: Celery's.
        clock: the store's time. Defaults to asking the store.
        wall_us: this machine's clock, microseconds since 1970. Defaults to its own.
    """

    def __init__(
        self,
        wheel: Wheel,
        consumer: Any,
        clock: StoreClock | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._wheel = wheel
        self._consumer = consumer
        self._clock = clock or StoreClock(wheel)
        self._wall_us = wall_us
        self._taken: list[_Taken] = []
        self._over = False

    def wrap(self, stock: Strategy) -> Strategy:
        """A strategy that takes over what is due later than the horizon, and leaves the rest to `stock`."""
        judges = "to_timestamp" in inspect.signature(stock).parameters

        def strategy(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
            eta_ms = eta_of(body, message.headers, lambda: self._wheel.app.timezone)
            now_us = None if eta_ms is None else self._clock.now_us()
            if eta_ms is None or now_us is None:
                return stock(message, body, ack, reject, callbacks, **options)
            if judges:
                options.setdefault("to_timestamp", self._by_the_store(now_us))

            def leave_to_stock() -> Any:
                return stock(message, body, ack, reject, callbacks, **options)

            horizon_ms = self._wheel.settings.horizon
            later = horizon_ms is not None and eta_ms - now_us // 1000 > horizon_ms
            again = bool((message.delivery_info or {}).get("redelivered"))
            task = self._task_of(message, body, eta_ms, now_us // 1000) if later or again else None
            if task is None:
                return leave_to_stock()
            if later:
                return self._take(_Taken(task, ack, leave_to_stock))
            if not self._waits(task):
                return leave_to_stock()
            logger.info("celery.redelivered: task %s waits in the store already: this copy is dropped", task.task_id)
            return ack(logger, self._consumer.connection_errors)

        return strategy

    def end(self) -> None:
        """The connection is gone: what was taken but not acknowledged comes again."""
        self._over = True
        self._taken.clear()

    def flush(self) -> None:
        """Store what was taken, then acknowledge it."""
        taken, self._taken = self._taken, []
        if not taken or self._over:
            return
        try:
            held = self._wheel.hold([one.task for one in taken])
        except WheelSchedError as error:
            logger.warning("celery.takeover_failed: %d tasks stay in this worker: %s", len(taken), error)
            held = [False] * len(taken)
        for one, is_held in zip(taken, held, strict=True):
            if is_held:
                one.ack(logger, self._consumer.connection_errors)
                self._tell(one.task)
            else:
                one.stock()

    def _take(self, one: _Taken) -> None:
        self._taken.append(one)
        hub = self._consumer.hub
        if hub is None:  # without an event loop there is no end of a turn
            self.flush()
        elif len(self._taken) == 1:
            hub.call_soon(self.flush)

    def _task_of(self, message: Any, body: Any, eta_ms: int, now_ms: int) -> HeldTask | None:
        """What would be held of a message; None when it is not to be held."""
        if message.errors:
            return None
        headers = dict(message.headers or {})
        identity = headers if "task" in headers else body
        expires_ms = instant_ms(identity.get("expires"), self._wheel.app.timezone)
        if identity["id"] in worker_state.revoked or (expires_ms is not None and expires_ms <= now_ms):
            return None
        queue = own_queue(message, self._consumer.task_consumer)
        if queue is None:
            return None
        headers.pop("compression", None)  # kombu has decompressed the body
        properties = {name: value for name, value in message.properties.items() if name not in _TRANSPORT_PROPERTIES}
        ttl = properties.get("expiration")
        return HeldTask(
            task_id=str(identity["id"]),
            name=str(identity["task"]),
            retries=int(identity.get("retries") or 0),
            eta_ms=eta_ms,
            exchange="",
            routing_key=queue.name,
            queue=queue.name,
            body=message.body,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=headers,
            priority=properties.pop("priority", None),
            properties=properties,
            declare=values_of([queue]),
            ttl_until_ms=None if ttl is None else now_ms + int(ttl),
            taken_over=True,
            one_of_many=bool((message.delivery_info or {}).get("exchange")) and queue.exchange.type != "direct",
        )

    def _waits(self, task: HeldTask) -> bool:
        """Whether the store holds this very message: its taker was too slow, or died, before it acknowledged it."""
        try:
            return self._wheel.holds(task)
        except WheelSchedError as error:
            logger.warning("celery.not_asked: task %s may run twice: %s", task.task_id, error)
            return False

    def _by_the_store(self, now_us: int) -> Callable[..., float]:
        """`to_timestamp` as if this machine's clock were the store's."""
        ahead_s = (self._wall_us() - now_us) / 1e6

        def judged(instant: Any, *timezone: Any) -> float:
            return float(max(0.0, to_timestamp(instant, *timezone) + ahead_s))

        return judged

    def _tell(self, task: HeldTask) -> None:
        dispatcher = self._consumer.event_dispatcher
        if dispatcher and dispatcher.enabled:
            dispatcher.send(
                "task-scheduled",
                uuid=task.task_id,
                name=task.name,
                retries=task.retries,
                eta=iso_of(task.eta_ms),
                queue=task.queue,
            )


class Strategies(dict[str, Strategy]):
    """A consumer's strategies, each wrapped as it is put in: also those that a reload puts in."""

    def __init__(self, takeover: Takeover, strategies: Iterable[tuple[str, Strategy]]) -> None:
        super().__init__()
        self._takeover = takeover
        for name, strategy in strategies:
            self[name] = strategy

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        super().__setitem__(name, self._takeover.wrap(strategy))


class TakeoverStep(bootsteps.StartStopStep):
    """Puts takeover in front of the strategies at each (re)connect, after Celery has made them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self._takeover: Takeover | None = None
        self._clock: StoreClock | None = None
        super().__init__(c, **kwargs)

    def include_if(self, c: Any) -> bool:
        wheel = wheel_of(c.app)
        return wheel is not None and wheel.settings.holds and wheel.settings.takeover

    def start(self, c: Any) -> None:
        wheel = wheel_of(c.app)
        if wheel is None:
            return
        self._clock = self._clock or StoreClock(wheel)
        self._takeover = Takeover(wheel, c, self._clock)
        c.strategies = Strategies(self._takeover, c.strategies.items())

    def stop(self, c: Any) -> None:
        takeover, self._takeover = self._takeover, None
        if takeover is not None:
            takeover.end()
            c.strategies = {}  # the next connection's are put in anew, and wrapped once

    terminate = stop
    shutdown = stop
