"""Takeover: ETA messages that reach a worker anyway move into the store, and are acknowledged once they are durable.

They come from producers without the integration, in other languages, or from before its installation. Those of one turn
of the event loop go into the store in one call. Whatever cannot be held stays with stock Celery: broadcasts, messages
whose own queue is not known, too large ones, and all of them while the store is away. So does what the store has sent,
see `dispatch_mark`, and what is on its way out of the store: only what waits there is acknowledged here.

Due times are judged by the store's clock, also for what is due soon and stays in the worker's timer: a worker whose
clock is an hour behind or ahead neither runs tasks early or late nor takes a dispatched message over again. The time
used never goes back, so that neither does the store's clock do that.

The consumer's loop never waits for the store: the store's thread decides, the message stays unacknowledged meanwhile,
and goes to the worker's own timer when that takes too long. If the store has it all the same, it is withdrawn from
there, see `withdrawing`; where the store does not answer before the task is due, it runs twice.

Threads: the consumer's, but for what is marked as the store's thread.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery import bootsteps
from celery.worker import state as worker_state
from kombu.asynchronous.timer import to_timestamp
from kombu.utils.functional import maybe_list

from wheel_sched.dispatcher.server_time import ServerTime
from wheel_sched.errors import StoreError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched_celery.hold.recording import eta_of
from wheel_sched_celery.message.dispatch_mark import is_marked
from wheel_sched_celery.message.due import instant_ms, iso_of
from wheel_sched_celery.message.entities import values_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.takeover.source_queue import own_queue
from wheel_sched_celery.takeover.withdrawing import LOOK_AGAIN_S, Doubts
from wheel_sched_celery.wheel import Wheel, wheel_of

logger = logger_of("wheel_sched.celery")

ASK_AGAIN_S = 5.0  # clocks drift by up to 0.1 ms a second; and the quickest of several replies tells the time best
LOOK_S = 0.02  # so often, while the store's thread is at it, a loop looks that no thread can wake (kombu before 5.7)
LEAST_PATIENCE_S = 0.25  # with the store, for a task that is due now; others wait for half of the time that is left
BLOCKING_S = 1.0  # with the store, where there is no event loop
# of the transport, not of the message
_TRANSPORT_PROPERTIES = frozenset(
    {"application_headers", "body_encoding", "content_encoding", "content_type", "delivery_info", "delivery_tag"}
)

Strategy = Callable[..., Any]


@dataclass(slots=True, eq=False)
class _Arrived:
    """A message between its arrival and what becomes of it; until then it is the broker's."""

    candidate: HeldTask | None  # None: the store is only asked for the time
    eta_ms: int
    ttl_ms: int | None
    expires_ms: int | None
    again: bool
    ack: Callable[..., Any]
    stock: Callable[[int | None], Any]
    patience_s: float
    taken: HeldTask | None = None  # it has been moved into the store
    doubled: bool = False  # it waited there already
    makes_room: bool = False  # the worker may prefetch one more for it
    over: bool = False


@dataclass(slots=True, eq=False)
class _Batch:
    """What the store's thread decides about in one go."""

    arrived: list[_Arrived]
    since_s: float
    now_us: int | None = None
    decided: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)  # a message is let go before it is decided, or after


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
        return self.estimate_us()

    def fresh_us(self) -> int | None:
        """The same without asking; None when it would have to."""
        local_us = self._monotonic_ns() // 1000
        if not self._time.known or local_us - self._asked_us > ASK_AGAIN_S * 1e6:
            return None
        return self.estimate_us()

    def estimate_us(self) -> int | None:
        """What is known without asking, however old; None when nothing is."""
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
        self._arrived: list[_Arrived] = []
        self._doubts = Doubts(wheel)
        self._withdraws = False  # whether somebody will
        self._over = False

    def wrap(self, stock: Strategy) -> Strategy:
        """A strategy that takes over what is due later than the horizon, and leaves the rest to `stock`."""
        judges = "to_timestamp" in inspect.signature(stock).parameters

        def strategy(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
            def leave_to_stock(now_us: int | None) -> Any:
                if judges and now_us is not None:
                    options.setdefault("to_timestamp", self._by_the_store(now_us))
                return stock(message, body, ack, reject, callbacks, **options)

            eta_ms = eta_of(body, message.headers, lambda: self._wheel.app.timezone)
            if eta_ms is None:
                return leave_to_stock(None)
            now_us = self._clock.fresh_us()
            again = bool((message.delivery_info or {}).get("redelivered"))
            if now_us is not None and not (again or self._is_later(eta_ms, now_us)):
                return leave_to_stock(now_us)
            if not self._wheel.near:
                return leave_to_stock(self._clock.estimate_us())
            one = self._arrival(message, body, eta_ms, ack, leave_to_stock)
            if now_us is not None and one.candidate is None:
                return leave_to_stock(now_us)
            return self._hand_over(one)

        return strategy

    def end(self) -> None:
        """The connection is gone: what was taken but not acknowledged comes again."""
        self._over = True
        self._arrived.clear()

    # -- in the consumer's loop

    def _is_later(self, eta_ms: int, now_us: int) -> bool:
        horizon_ms = self._wheel.settings.horizon
        return horizon_ms is not None and eta_ms - now_us // 1000 > horizon_ms

    def _hand_over(self, one: _Arrived) -> None:
        """To the store's thread, with whatever else arrives in this turn of the loop.

        As an ETA message in stock's timer it takes no place among the prefetched ones: else some of them, while the
        store hangs, would be all that the worker has.
        """
        qos = self._consumer.qos
        one.makes_room = qos.value < qos.increment_eventually()
        self._arrived.append(one)
        hub = self._consumer.hub
        if hub is None:  # without an event loop there is no end of a turn
            self.flush()
        elif len(self._arrived) == 1:
            hub.call_soon(self.flush)

    def flush(self) -> None:
        """Have the store's thread decide about what has arrived."""
        arrived, self._arrived = self._arrived, []
        if not arrived or self._over:
            return
        batch = _Batch(arrived, time.monotonic())
        self._wheel.thread.submit(lambda: self._decide(batch))
        if self._consumer.hub is None:
            batch.decided.wait(BLOCKING_S)
            for each in arrived:
                each.patience_s = 0
        self._look(batch)

    def _look(self, batch: _Batch) -> None:
        """Carry out what was decided; what cannot wait for that any longer waits in the worker's own timer."""
        if self._over:
            return
        waited_s = time.monotonic() - batch.since_s
        with batch.lock:
            is_decided = batch.decided.is_set()
            overdue = (
                [] if is_decided else [one for one in batch.arrived if not one.over and waited_s >= one.patience_s]
            )
            for one in overdue:
                self._let_go(one)
        if is_decided:
            for one in batch.arrived:
                self._carry_out(one, batch.now_us)
            self._withdraw_soon()
            return
        if overdue:
            logger.warning("celery.takeover_failed: %d tasks stay in this worker: the store is slow", len(overdue))
        for one in overdue:
            one.stock(self._clock.estimate_us())
        if any(not one.over for one in batch.arrived):
            self._consumer.hub.call_later(LOOK_S, self._look, batch)  # where no thread can wake the loop

    def _let_go(self, one: _Arrived) -> None:
        one.over = True
        if one.makes_room:  # stock makes room for what it keeps
            self._consumer.qos.decrement_eventually()

    def _carry_out(self, one: _Arrived, now_us: int | None) -> None:
        if one.over:
            return
        self._let_go(one)
        if one.taken is not None:
            one.ack(logger, self._consumer.connection_errors)
            self._tell(one.taken)
        elif one.doubled:
            one.ack(logger, self._consumer.connection_errors)
        else:
            one.stock(now_us)

    def _withdraw_soon(self) -> None:
        """Have the store's thread take out of the store what is in doubt, as soon as it answers."""
        if self._withdraws or not self._doubts.pending or self._over:
            return
        self._withdraws = True
        hub = self._consumer.hub
        if hub is not None:
            hub.call_later(LOOK_AGAIN_S, self._withdraw_now)
            return
        timer = threading.Timer(LOOK_AGAIN_S, self._withdraw_now)
        timer.daemon = True
        timer.start()

    def _withdraw_now(self) -> None:
        self._withdraws = False
        if self._wheel.near:
            self._wheel.thread.submit(self._withdraw)
        self._withdraw_soon()

    # -- in the store's thread

    def _withdraw(self) -> None:
        if self._over:
            self._doubts.clear()  # the messages are the broker's again
        self._doubts.withdraw()

    def _decide(self, batch: _Batch) -> None:
        try:
            batch.now_us = self._clock.now_us()
            if batch.now_us is not None and not self._over:
                self._decide_at(batch.arrived, batch.now_us)
        finally:
            with batch.lock:
                self._note_doubts(batch.arrived)
                batch.decided.set()
            hub = self._consumer.hub
            if hub is not None:
                hub.call_soon(self._look, batch)
            else:
                self._withdraw_soon()

    def _note_doubts(self, arrived: list[_Arrived]) -> None:
        """What waits in the store now, but was let go; not if another copy of it is about to be acknowledged."""
        if not self._doubts.pending and not any(one.over for one in arrived):
            return
        waiting = [(one, one.taken or one.candidate) for one in arrived if one.taken is not None or one.doubled]
        kept = {task.item_id for one, task in waiting if task is not None and not one.over}
        self._doubts.add({task.item_id for one, task in waiting if task is not None and one.over})
        self._doubts.discard(kept)

    def _decide_at(self, arrived: list[_Arrived], now_us: int) -> None:
        far: list[tuple[_Arrived, HeldTask]] = []
        for one in arrived:
            if one.over or one.candidate is None or (one.expires_ms is not None and one.expires_ms <= now_us // 1000):
                continue
            if self._is_later(one.eta_ms, now_us):
                ttl_until_ms = None if one.ttl_ms is None else now_us // 1000 + one.ttl_ms
                far.append((one, replace(one.candidate, ttl_until_ms=ttl_until_ms)))
            elif one.again and self._waits(one.candidate):
                one.doubled = True
        if not far:
            return
        try:
            waits = self._wheel.take([task for _, task in far])
        except WheelSchedError as error:
            logger.warning("celery.takeover_failed: %d tasks stay in this worker: %s", len(far), error)
            if isinstance(error, StoreError) and error.in_doubt:
                self._doubts.add(task.item_id for _, task in far)
            return
        for (one, task), is_held in zip(far, waits, strict=True):
            if is_held:
                one.taken = task

    def _arrival(self, message: Any, body: Any, eta_ms: int, ack: Any, stock: Callable[[int | None], Any]) -> _Arrived:
        """A message as it is looked at here."""
        headers = message.headers or {}
        identity = headers if "task" in headers else body
        left_s = eta_ms / 1000 - (self._clock.estimate_us() or self._wall_us()) / 1e6
        ttl = message.properties.get("expiration")
        return _Arrived(
            candidate=self._candidate(message, identity, eta_ms),
            eta_ms=eta_ms,
            ttl_ms=int(ttl) if str(ttl).isdigit() else None,
            expires_ms=instant_ms(identity.get("expires"), self._wheel.app.timezone),
            again=bool((message.delivery_info or {}).get("redelivered")),
            ack=ack,
            stock=stock,
            patience_s=max(LEAST_PATIENCE_S, min(self._wheel.settings.timeout / 1000, left_s / 2)),
        )

    def _candidate(self, message: Any, identity: Mapping[str, Any], eta_ms: int) -> HeldTask | None:
        """What would be held of a message; None when it is not to be held, whenever it is due."""
        if message.errors or is_marked(message.headers, identity) or identity["id"] in worker_state.revoked:
            return None
        queue = own_queue(message, self._consumer.task_consumer)
        if queue is None:
            return None
        headers = dict(message.headers or {})
        headers.pop("compression", None)  # kombu has decompressed the body
        properties = {name: value for name, value in message.properties.items() if name not in _TRANSPORT_PROPERTIES}
        delivery = message.delivery_info or {}
        task = HeldTask(
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
            taken_over=True,
            one_of_many=bool(delivery.get("exchange")) and queue.exchange.type != "direct",
            sent_to=(delivery.get("exchange") or "", delivery.get("routing_key") or ""),
        )
        revoked: Any = worker_state.revoked_stamps
        return None if any(value in (maybe_list(revoked.get(name)) or ()) for name, value in task.stamps) else task

    def _waits(self, task: HeldTask) -> bool:
        """Whether this very message waits in the store: its taker was too slow, or died, before it acknowledged it."""
        try:
            waits = self._wheel.waits(task)
        except WheelSchedError as error:
            logger.warning("celery.not_asked: task %s may run twice: %s", task.task_id, error)
            return False
        if waits:
            logger.info("celery.redelivered: task %s waits in the store: this copy is dropped", task.task_id)
        return waits

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
        if self._clock is None:
            preload(wheel)
            self._clock = StoreClock(wheel)
        self._takeover = Takeover(wheel, c, self._clock)
        c.strategies = Strategies(self._takeover, c.strategies.items())

    def stop(self, c: Any) -> None:
        takeover, self._takeover = self._takeover, None
        if takeover is not None:
            takeover.end()
            c.strategies = {}  # the next connection's are put in anew, and wrapped once

    terminate = stop
    shutdown = stop
