"""Takeover: ETA messages that reach a worker through the broker move into the store.

Such messages come from producers without the integration or in other languages, or were sent before the integration was
installed. The worker acknowledges a message once its task is durable in the store. It stores all messages of one turn
of the event loop in one call.

Some messages stay with stock Celery: broadcasts, messages whose source queue is not known, messages that are too large
or cannot be read, revoked and expired tasks, messages that the store has sent (see `message.headers`), messages whose
item is in flight, and all while the store is away. The worker acknowledges only messages whose item waits in the store.

The store's clock decides what is due, also for messages that are due soon and stay in the worker's timer. So a worker
whose clock is an hour off runs no task early or late once the store has answered, and takes over no message that a
dispatcher has sent. The time that this module uses never goes back, even if the store's clock does.

An event loop never waits for the store: the store's thread decides while the message stays unacknowledged. (A worker
without one waits up to `BLOCKING_S`.) If that takes too long, stock Celery gets the message, which then waits in the
worker's timer. The store may nevertheless have stored the message. Then the store's thread withdraws the item later
(see `store_calls`). If the store does not answer before the task is due, the task may run twice.

    strategy ─► flush ─► [store's thread: _decide] ─► _look: acknowledge, or hand to stock Celery

Threads: the consumer's thread; `_withdraw` and `_decide`, with all that they call, run in the store's thread.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery.worker import state as worker_state
from kombu.asynchronous.timer import to_timestamp
from kombu.utils.functional import maybe_list

from wheel_sched.errors import StoreError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched_celery.message.headers import eta_of, instant_ms, is_marked, iso_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import values_of
from wheel_sched_celery.takeover.source_queue import own_queue
from wheel_sched_celery.takeover.store_calls import DRIFT, LOOK_AGAIN_S, StoreClock, TakenItems, Withdrawals
from wheel_sched_celery.wheel import Wheel

logger = logger_of("wheel_sched.celery")

LOOK_S = 0.02  # the loop looks this often for a decision: no thread can wake a loop of kombu before 5.7
LEAST_PATIENCE_S = 0.25  # a message waits half of the time until it is due for the store, but at least this long
BLOCKING_S = 1.0  # how long a worker without an event loop waits for the store
# properties that the transport adds to a message
_TRANSPORT_PROPERTIES = frozenset(
    {"application_headers", "body_encoding", "content_encoding", "content_type", "delivery_info", "delivery_tag"}
)

Strategy = Callable[..., Any]


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message from its arrival until it is acknowledged or handed to stock Celery."""

    candidate: HeldTask | None  # None: it stays with stock Celery, which only needs the store's time
    eta_ms: int
    ttl_ms: int | None
    expires_ms: int | None
    redelivered: bool
    ack: Callable[..., Any]
    stock: Callable[[int | None], Any]
    patience_s: float
    taken: HeldTask | None = None  # the task, once it is stored
    waits_already: bool = False  # its item waits in the store already
    makes_room: bool = False  # while it waits, the worker may prefetch one more message
    over: bool = False  # acknowledged, or handed to stock Celery


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages about which the store's thread decides together: store each, or leave it to stock Celery."""

    arrived: list[_Arrival]
    since_s: float
    now_us: int | None = None
    decided: threading.Event = field(default_factory=threading.Event)
    # held while the loop hands messages to stock Celery, and while the thread notes its decisions
    lock: threading.Lock = field(default_factory=threading.Lock)


class Takeover:
    """Wraps the task strategies of a consumer, for one connection to the broker.

    Args:
        wheel: the integration of the app, which stores the tasks.
        consumer: Celery's consumer.
        clock: gives the store's time.
        wall_us: returns the time of this machine's clock, in microseconds since 1970. Defaults to the system's clock.
    """

    def __init__(
        self,
        wheel: Wheel,
        consumer: Any,
        clock: StoreClock,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._wheel = wheel
        self._consumer = consumer
        self._clock = clock
        self._wall_us = wall_us
        self._arrived: list[_Arrival] = []
        self._items = TakenItems(wheel)
        self._withdrawals = Withdrawals(self._items, wheel)
        self._will_withdraw = False
        self._over = False

    def wrap(self, stock: Strategy) -> Strategy:
        """Make a strategy that stores messages due later than the horizon, and leaves other messages to `stock`."""
        takes_clock = "to_timestamp" in inspect.signature(stock).parameters

        def strategy(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
            def leave_to_stock(now_us: int | None) -> Any:
                if takes_clock and now_us is not None:
                    options.setdefault("to_timestamp", self._by_the_store(now_us))
                return stock(message, body, ack, reject, callbacks, **options)

            eta_ms = eta_of(body, message.headers, lambda: self._wheel.app.timezone)
            if eta_ms is None:
                return leave_to_stock(None)
            now_us = self._clock.fresh_us()
            redelivered = bool((message.delivery_info or {}).get("redelivered"))
            if now_us is not None and not (redelivered or self._is_later(eta_ms, now_us)):
                return leave_to_stock(now_us)
            if not self._wheel.seems_up:
                return leave_to_stock(self._clock.estimate_us())
            arrival = self._arrival(message, body, eta_ms, redelivered, ack, leave_to_stock)
            if now_us is not None and arrival.candidate is None:
                return leave_to_stock(now_us)
            return self._hand_over(arrival)

        return strategy

    def end(self) -> None:
        """End the takeover, because the connection is lost. The broker delivers all unacknowledged messages again."""
        self._over = True
        self._arrived.clear()

    # -- in the consumer's loop

    def _is_later(self, eta_ms: int, now_us: int) -> bool:
        horizon_ms = self._wheel.settings.horizon
        return horizon_ms is not None and eta_ms - now_us // 1000 > horizon_ms

    def _hand_over(self, one: _Arrival) -> None:
        """Hand a message to the store's thread, together with all others that arrive in this turn of the loop.

        Like an ETA message in Celery's timer, the message does not count against the prefetch limit. Otherwise a few
        messages would stop the worker while the store does not answer.
        """
        qos = self._consumer.qos
        one.makes_room = qos.value < qos.increment_eventually()
        self._arrived.append(one)
        hub = self._consumer.hub
        if hub is None:  # without an event loop there are no turns: decide about each message alone
            self.flush()
        elif len(self._arrived) == 1:
            hub.call_soon(self.flush)

    def flush(self) -> None:
        """Let the store's thread decide about the messages that have arrived. The loop calls this once a turn."""
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
        """Carry out the decisions of the store's thread about the messages of a batch.

        If a message has waited too long without a decision, stock Celery gets it.
        """
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
            logger.warning(
                "celery.takeover_failed: %d tasks stay in this worker, because the store is slow", len(overdue)
            )
        for one in overdue:
            one.stock(self._clock.estimate_us())
        if any(not one.over for one in batch.arrived):
            self._consumer.hub.call_later(LOOK_S, self._look, batch)  # kombu before 5.7 has no other way

    def _let_go(self, one: _Arrival) -> None:
        one.over = True
        if one.makes_room:  # stock Celery itself raises the prefetch limit for a message that it keeps
            self._consumer.qos.decrement_eventually()

    def _carry_out(self, one: _Arrival, now_us: int | None) -> None:
        if one.over:
            return
        self._let_go(one)
        if one.taken is not None:
            one.ack(logger, self._consumer.connection_errors)
            self._send_scheduled_event(one.taken)
        elif one.waits_already:
            one.ack(logger, self._consumer.connection_errors)
        else:
            one.stock(now_us)

    def _withdraw_soon(self) -> None:
        """Let the store's thread remove the pending items as soon as the store answers, see `Withdrawals`."""
        if self._will_withdraw or not self._withdrawals.pending or self._over:
            return
        self._will_withdraw = True
        hub = self._consumer.hub
        if hub is not None:
            hub.call_later(LOOK_AGAIN_S, self._withdraw_now)
            return
        timer = threading.Timer(LOOK_AGAIN_S, self._withdraw_now)
        timer.daemon = True
        timer.start()

    def _withdraw_now(self) -> None:
        self._will_withdraw = False
        if self._wheel.seems_up:
            self._wheel.thread.submit(self._withdraw)
        self._withdraw_soon()

    # -- in the store's thread

    def _withdraw(self) -> None:
        if self._over:
            self._withdrawals.clear()  # the broker delivers these messages again
        self._withdrawals.withdraw()

    def _decide(self, batch: _Batch) -> None:
        try:
            batch.now_us = self._clock.now_us()
            if batch.now_us is not None and not self._over:
                self._decide_at(batch.arrived, batch.now_us)
        finally:
            with batch.lock:
                self._note_withdrawals(batch.arrived)
                batch.decided.set()
            hub = self._consumer.hub
            if hub is not None:
                hub.call_soon(self._look, batch)
            else:
                self._withdraw_soon()

    def _note_withdrawals(self, arrived: list[_Arrival]) -> None:
        """Note which items the store's thread must remove later: the loop has handed their messages to stock Celery.

        The item of a message stays if the loop will acknowledge another copy of it: then only the item is left.
        """
        if not self._withdrawals.pending and not any(one.over for one in arrived):
            return
        waiting = [(one, one.taken or one.candidate) for one in arrived if one.taken is not None or one.waits_already]
        kept = {task.item_id for one, task in waiting if task is not None and not one.over}
        self._withdrawals.add({task.item_id for one, task in waiting if task is not None and one.over})
        self._withdrawals.discard(kept)

    def _decide_at(self, arrived: list[_Arrival], now_us: int) -> None:
        far: list[tuple[_Arrival, HeldTask]] = []
        for one in arrived:
            if one.over or one.candidate is None or (one.expires_ms is not None and one.expires_ms <= now_us // 1000):
                continue
            if self._is_later(one.eta_ms, now_us):
                ttl_until_ms = None if one.ttl_ms is None else now_us // 1000 + one.ttl_ms
                far.append((one, replace(one.candidate, ttl_until_ms=ttl_until_ms)))
            elif one.redelivered and self._waits(one.candidate):
                one.waits_already = True
        if not far:
            return
        try:
            waits = self._items.take([task for _, task in far])
        except WheelSchedError as error:
            logger.warning("celery.takeover_failed: %d tasks stay in this worker: %s", len(far), error)
            if isinstance(error, StoreError) and error.in_doubt:
                self._withdrawals.add(task.item_id for _, task in far)
            return
        for (one, task), is_held in zip(far, waits, strict=True):
            if is_held:
                one.taken = task

    def _arrival(
        self, message: Any, body: Any, eta_ms: int, redelivered: bool, ack: Any, stock: Callable[[int | None], Any]
    ) -> _Arrival:
        """Collect everything that the decision about a message needs."""
        headers = message.headers or {}
        identity = headers if "task" in headers else body
        left_s = eta_ms / 1000 - (self._clock.estimate_us() or self._wall_us()) / 1e6
        ttl = message.properties.get("expiration")
        return _Arrival(
            candidate=self._candidate(message, identity, eta_ms),
            eta_ms=eta_ms,
            ttl_ms=int(ttl) if str(ttl).isdigit() else None,
            expires_ms=instant_ms(identity.get("expires"), self._wheel.app.timezone),
            redelivered=redelivered,
            ack=ack,
            stock=stock,
            patience_s=max(LEAST_PATIENCE_S, min(self._wheel.settings.timeout / 1000, left_s / 2)),
        )

    def _candidate(self, message: Any, identity: Mapping[str, Any], eta_ms: int) -> HeldTask | None:
        """The task to hold; None when the message must stay with stock Celery."""
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
        """Whether the item of a redelivered message waits in the store, because a worker died before acknowledging."""
        try:
            waits = self._items.waits(task)
        except WheelSchedError as error:
            logger.warning(
                "celery.not_asked: task %s may run twice, because the store did not answer: %s", task.task_id, error
            )
            return False
        if waits:
            logger.info(
                "celery.redelivered: task %s waits in the store, so this copy of its message is dropped", task.task_id
            )
        return waits

    def _by_the_store(self, now_us: int) -> Callable[..., float]:
        """Celery's `to_timestamp`, as if this machine's clock showed the store's time.

        This machine's clock may run faster than the store's, so each wait is longer by the fraction `DRIFT`.
        """
        ahead_s = (self._wall_us() - now_us) / 1e6

        def by_the_store(instant: Any, *timezone: Any) -> float:
            due_s = float(to_timestamp(instant, *timezone)) + ahead_s
            return max(0.0, due_s + max(0.0, due_s - time.monotonic()) * DRIFT)

        return by_the_store

    def _send_scheduled_event(self, task: HeldTask) -> None:
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
