"""`apply_many`: stores thousands of ETA tasks of one kind, 500 in a call.

It does what a loop over `apply_async(countdown=...)` does, at less than a tenth of the cost. Celery makes one message,
and a template makes the other messages (see `message_template`). While the server stores a batch, this module prepares
the next batch.

For some tasks Celery must make each message, such as tasks with handlers of `before_task_publish`, links, chords, a
fair key, a serializer other than JSON, compression, `expires`, function routers, or their own `apply_async`. Celery
then makes the messages one by one, and this module still stores 500 of them in a call.

Threads: any thread may call any method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import uuid4

from celery import signals
from celery.app.routes import MapRoute
from celery.app.task import Task
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from wheel_sched.errors import Rejected, StoreError, WheelSchedError
from wheel_sched.store.core.items import MAX_BATCH, Item
from wheel_sched_celery.errors import HoldRefused
from wheel_sched_celery.hold.message_template import MessageTemplate, mark_ms, random_uuids
from wheel_sched_celery.message.headers import instant_ms, iso_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import decode
from wheel_sched_celery.release.broker_connection import BrokerConnection
from wheel_sched_celery.wheel import Wheel, wheel_of

# A template can make the messages of a call with these options: the options are equal for all tasks.
_CONSTANT: Final = frozenset(
    {"queue", "exchange", "routing_key", "priority", "serializer", "headers", "ignore_result", "producer"}
    | {"time_limit", "soft_time_limit", "retry", "retry_policy", "delivery_mode", "mandatory", "immediate"}
)
_DEFAULT_LEVELS: Final = 3  # how many levels of nested arguments Celery's `saferepr` shows


class TaskCall(NamedTuple):
    """One task of `apply_many`.

    Args:
        args: positional arguments. Defaults to none.
        kwargs: keyword arguments. Defaults to none.
        eta: the due time of this task. Defaults to None: the due time that `apply_many` got.
        task_id: the id of this task. Defaults to None: a new id.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    eta: datetime | None = None
    task_id: str | None = None


class _Task(NamedTuple):
    """One task of `apply_many`, with its id and due time."""

    id: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    eta: datetime
    eta_ms: int


def apply_many(
    task: Any,
    calls: Iterable[TaskCall | Sequence[Any]],
    *,
    countdown: float | None = None,
    eta: datetime | None = None,
    **options: Any,
) -> list[str]:
    """Send `task` once for each of `calls`. When this returns, the store or the broker has the tasks.

    Args:
        task: a task of an app with the integration installed.
        calls: positional arguments as a tuple or list, or a `TaskCall`, for each task. May be a generator.
        countdown: seconds from now, the same moment for all.
        eta: the due time; without a zone it is in the app's time zone. Give `countdown` or `eta`, unless each call has
            an eta of its own.
        options: further arguments of `apply_async`, the same for all.

    Returns:
        The ids of the tasks, in the order of the calls. `app.AsyncResult(id)` is the result of one task.

    Raises:
        TypeError, EncodeError: arguments do not fit the task, or cannot be serialized. The calls of earlier batches of
            500 were sent, and so may be those of this batch that are due within the horizon.
        ValueError: a call has no `eta`, and neither `countdown` nor `eta` is given; or `countdown` is out of range.
        Rejected: the options have a key of collapse or debounce, or a fair key that is no text.
        HoldRefused: the store is away and `on_outage` is "refuse". The text says how many tasks were sent before, and
            whether the store may have tasks of the batch that failed. `TaskCall`s with a task_id and an eta of their
            own may be sent again.
        OperationalError: the broker did not take tasks that the store does not hold. The other tasks may have been
            sent.
    """
    app = task._get_app()
    wheel = wheel_of(app)
    if wheel is None or not wheel.settings.holds or app.conf.task_always_eager:
        return [
            task.apply_async(one.args, one.kwargs, task_id=one.id, eta=one.eta, **options).id
            for one in _tasks(app, calls, countdown, eta)
        ]
    bulk = _Bulk(wheel, task, options)
    ids: list[str] = []
    prepared = _tasks(app, calls, countdown, eta)
    with app.producer_or_acquire(options.pop("producer", None)) as producer:
        try:
            while batch := list(islice(prepared, MAX_BATCH)):
                bulk.send(producer, batch, len(ids))
                ids += [one.id for one in batch]
        finally:
            bulk.settle()
    return ids


def _tasks(
    app: Any, calls: Iterable[TaskCall | Sequence[Any]], countdown: float | None, eta: datetime | None
) -> Iterator[_Task]:
    """Give each call an id and a due time."""
    if countdown is not None:
        app.amqp._verify_seconds(countdown, "countdown")
        eta = (datetime.now(UTC) + timedelta(seconds=countdown)).astimezone(app.timezone)
    common = None if eta is None else (maybe_make_aware(eta, app.timezone))
    common_ms = None if common is None else instant_ms(common, None)
    ids = random_uuids()
    for call in calls:
        args, kwargs, own, task_id = call if isinstance(call, TaskCall) else (call, {}, None, None)
        due, due_ms = common, common_ms
        if own is not None:
            due = maybe_make_aware(own, app.timezone)
            due_ms = instant_ms(due, None)
        if due is None or due_ms is None:
            raise ValueError("apply_many needs countdown, eta, or an eta in each call; this call was not sent")
        yield _Task(task_id or next(ids), args, dict(kwargs), due, due_ms)


class _Bulk:
    """Sends the tasks of one call of `apply_many`."""

    def __init__(self, wheel: Wheel, task: Any, options: dict[str, Any]) -> None:
        self._wheel = wheel
        self._task = task
        self._options = options
        self._template: MessageTemplate | None = None
        self._has_template = _is_plain(wheel.app, task, options)
        self._check = getattr(task, "__header__", None) if task.typing else None
        self._under_way: tuple[list[Item], int, Callable[[], None]] | None = None

    def send(self, producer: Any, batch: list[_Task], before: int) -> None:
        """Prepare a batch while the server stores the previous one, then begin to store it. Call `settle` at the end.

        Args:
            producer: the Celery producer for tasks that are not held.
            batch: the tasks.
            before: how many tasks the earlier batches had.
        """
        items, refused = self._prepare(producer, batch)
        self.settle()
        if items:
            try:
                self._under_way = items, before, self._wheel.begin_schedule(items)
            except WheelSchedError as error:
                self._not_held(items, before, error)
        if refused:
            self._send_stock(refused)

    def settle(self) -> None:
        """Wait until the last batch is stored. If it cannot be stored, do what `on_outage` says."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            items, before, stored = under_way
            try:
                stored()
            except WheelSchedError as error:
                self._not_held(items, before, error)

    def _not_held(self, items: list[Item], before: int, error: WheelSchedError) -> None:
        if self._wheel.settings.on_outage == "refuse" and isinstance(error, StoreError):
            what = f"{before} tasks were sent; no task after the next {len(items)} was sent; these {len(items)} tasks"
            raise HoldRefused.because(error, what) from error
        wanted = self._wheel.not_held(items, error)
        if wanted:
            self._send_stock([decode(item.body) for item in items if item.id in wanted])

    def _prepare(self, producer: Any, batch: list[_Task]) -> tuple[list[Item], list[HeldTask]]:
        """Make the items of the tasks due later than the horizon.

        Sends the others, and those for a fanout exchange or an unknown queue.

        Returns:
            The items, and the tasks that the store cannot take.
        """
        later_ms = time.time_ns() // 1_000_000 + (self._wheel.settings.horizon or 0)
        items: list[Item] = []
        refused: list[HeldTask] = []
        eta, iso = None, ""
        with self._wheel.collecting() as tasks:
            for one in batch:
                if self._has_template and one.eta_ms > later_ms:
                    if self._template is None:
                        self._template = self._make_template(producer, one, tasks)
                    if self._template is not None:
                        if self._check is not None:
                            self._check(*one.args, **one.kwargs)
                        if one.eta is not eta:  # mostly the same for all
                            eta, iso = one.eta, one.eta.isoformat()
                        items.append(self._template.fill(one.id, one.args, one.kwargs, one.eta_ms, iso))
                        continue
                self._apply(producer, one.args, one.kwargs, one.id, one.eta)
        for task in tasks:
            item = self._wheel.item_of(task)
            if item is None:
                refused.append(task)
            else:
                items.append(item)
        return items, refused

    def _apply(self, producer: Any, args: Sequence[Any], kwargs: dict[str, Any], task_id: str, eta: datetime) -> None:
        self._task.apply_async(args, kwargs, task_id=task_id, eta=eta, producer=producer, **self._options)

    def _make_template(self, producer: Any, one: _Task, tasks: list[HeldTask]) -> MessageTemplate | None:
        """Make a template from Celery's message for `one`; None when Celery has to make every message."""
        known = len(tasks)
        eta_ms = mark_ms()
        self._apply(producer, one.args, one.kwargs, str(uuid4()), datetime.fromtimestamp(eta_ms / 1000, UTC))
        made, tasks[known:] = tasks[known:], []
        try:
            (pattern,) = made
            if pattern.headers["eta"] != iso_of(eta_ms):
                raise ValueError(pattern.headers["eta"])
            longest = self._wheel.app.amqp.argsrepr_maxsize
            return MessageTemplate(pattern, self._wheel.item_of, self._wheel.settings.lead, longest)
        except (KeyError, IndexError, TypeError, ValueError, Rejected):
            self._has_template = False
            return None

    def _send_stock(self, tasks: list[HeldTask]) -> None:
        connection = BrokerConnection(self._wheel.app, marks=False)  # no mark: a worker may take the messages over
        try:
            failures = [failure for failure in connection.send(tasks) if failure is not None]
        finally:
            connection.close()
        if failures:
            raise OperationalError(f"{len(failures)} of {len(tasks)} tasks were not sent: {failures[0].reason}")


def _is_plain(app: Any, task: Any, options: Mapping[str, Any]) -> bool:
    """Whether a template can make the messages: no handler or option needs Celery to make each message."""
    kind = task.__class__  # the task's own class, also behind a proxy
    return (
        set(options) <= _CONSTANT
        and kind.apply_async is Task.apply_async
        and kind.shadow_name is Task.shadow_name
        and not any(signal.receivers for signal in (signals.before_task_publish, signals.after_task_publish))
        and not app.conf.task_send_sent_event
        and not getattr(task, "_dump_pydantic_arguments", None)
        and all(isinstance(route, MapRoute) for route in app.amqp.router.routes)
        and app.conf.task_protocol == 2
        and app.conf.get("task_repr_maxlevels", _DEFAULT_LEVELS) == _DEFAULT_LEVELS
    )
