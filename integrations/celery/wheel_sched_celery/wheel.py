"""The integration of one app, `app.wheel`. It has the settings and this process's store, and holds tasks.

Each process opens the store once, when it first needs it. A forked process of the pool opens the store anew, and never
uses the connections of its parent.

Threads: any thread may call any method.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from wheel_sched.errors import ConfigError, InDoubt, Rejected, StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.counts import Look
from wheel_sched.store.core.delay_store import DelayStore, values_of
from wheel_sched.store.core.items import Found, Item, Outcome
from wheel_sched.store.core.schedule import Stored
from wheel_sched_celery.errors import HoldRefused
from wheel_sched_celery.hold.once_per_key import SupersededTasks
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import encode_neutral
from wheel_sched_celery.release.shared_server import SharedServer
from wheel_sched_celery.settings import PREFIX, UNSET, WheelSettings, load_settings
from wheel_sched_celery.store_thread import StoreThread

logger = logger_of("wheel_sched.celery")

T = TypeVar("T")

AWAY_S = 2.0  # after a failure nobody calls the store for this time; otherwise each caller would wait for a timeout
STALE_S = 1.0  # a call over a dead connection fails sooner than this


class Wheel:
    """The integration of one app, which stores the app's tasks.

    Args:
        app: the Celery app.
        given: arguments of `install`.
    """

    def __init__(self, app: Any, given: Mapping[str, Any]) -> None:
        self.app = app
        self._given = dict(given)
        self._settings: WheelSettings | None = None
        self._superseded = SupersededTasks(app)
        self._forget()
        if hasattr(os, "register_at_fork"):
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _start_anew(me()))

    def _forget(self) -> None:
        """Begin without a store. A forked child calls this, because it must not use the parent's sockets.

        The child must not use the parent's lock either: another thread may have held the lock at the fork.
        """
        self._lock = threading.Lock()
        self._store: DelayStore | None = None
        self._client: Any = None
        self._shared_server: SharedServer | None = None
        self._away_until_s = 0.0
        self._away_because = ""
        self._collected = threading.local()
        self.process_id = uuid4().hex  # the name that this process writes into items it takes over
        self.thread = StoreThread()

    @property
    def settings(self) -> WheelSettings:
        """The settings, read from the app's configuration at the first use.

        Raises:
            ConfigError: see `load_settings`.
        """
        if self._settings is None:
            conf = self.app.conf
            self._settings = load_settings(self._given, conf, conf.broker_write_url)
        return self._settings

    def given(self, name: str) -> Any:
        """A setting as the app gives it, unchecked. An argument of `install` wins over `app.conf`.

        UNSET: the app does not give this setting.
        """
        value = self._given.get(name, UNSET)
        return self.app.conf.get(PREFIX + name, UNSET) if value is UNSET else value

    @property
    def store(self) -> DelayStore:
        """The store of this process.

        Raises:
            StoreError: the store is away, or its namespace has another schema, shard count or clock.
            ConfigError: the app has no store, or a setting is wrong.
        """
        with self._lock:
            if self._store is None:
                self._store = self.open_store(self.settings.timeout)
            return self._store

    def open_store(self, timeout_ms: int | None = None) -> DelayStore:
        """Open another connection to the app's store. The caller closes the result.

        Args:
            timeout_ms: how long one call may take. Defaults to the timeout of the store's client, which also counts if
                `url` is a client or embedded:FOLDER.
        """
        settings = self.settings
        target = settings.url
        if isinstance(target, str) and timeout_ms is not None and not target.startswith("embedded:"):
            seconds = timeout_ms / 1000
            joint = "&" if "?" in target else "?"
            connect = "" if target.startswith("unix:") else f"&socket_connect_timeout={seconds:g}"
            target = f"{target}{joint}socket_timeout={seconds:g}{connect}"
        return open_store(
            target,
            namespace=settings.namespace,
            shards=settings.shards,
            durability=settings.durability,
            replicas=settings.replicas,
            repeat_timeouts=timeout_ms is None,
        )

    def store_now_us(self) -> int:
        """The store's time, in microseconds since 1970.

        Raises:
            StoreError: the store is away, or was a moment ago.
        """
        (window,) = self.call(lambda store: values_of(store.execute([Call(0, Look(0, 0))])))
        return int(window.now_us)

    def call(self, function: Callable[[DelayStore], T]) -> T:
        """Call `function` with the store. After a `StoreError` all calls of the next `AWAY_S` seconds fail at once.

        Raises:
            StoreError: the store did not answer now, or did not answer a moment ago and was not asked again.
        """
        self._check_up()
        try:
            return function(self.store)
        except StoreError as error:
            self._note_away(error)
            raise

    def call_in_thread(self, function: Callable[[DelayStore], T]) -> T:
        """Do what `call` does, but in the store's thread. The calling thread waits for at most `PATIENCE_S`.

        Raises:
            StoreError: as for `call`, or the store gave no answer in time.
        """
        return self.thread.ask(lambda: self.call(function))

    @property
    def seems_up(self) -> bool:
        """Whether the store is likely to answer: it was not away a moment ago, and no call hangs."""
        return time.monotonic() >= self._away_until_s and not self.thread.stuck

    def _check_up(self) -> None:
        if time.monotonic() < self._away_until_s:
            raise StoreUnavailable(
                f"the delay store was away a moment ago, so it was not asked; the last error: {self._away_because}"
            )

    def _note_away(self, error: StoreError) -> None:
        self._away_because = str(error)
        self._away_until_s = time.monotonic() + AWAY_S
        logger.warning("celery.store_away: %s", error)

    def close(self) -> None:
        """Close this process's store; the next hold opens it again. Idempotent."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    # -- holding

    def schedule(self, items: Sequence[Item]) -> None:
        """Store items that `item_of` made, at least one, in one call. They are durable when this returns.

        Raises:
            StoreError: the store is away or refuses. It may have stored some of the items. The same call may be
                repeated.
        """
        self.begin_schedule(items)()

    def begin_schedule(self, items: Sequence[Item]) -> Callable[[], None]:
        """Send the items as `schedule` does, and do not wait: the caller can work while the server stores them.

        Call the returned function once. It waits until the items are stored, and raises the errors of `schedule`.
        """
        self._check_up()
        try:
            finish = self._begin(items)
        except StoreError as error:
            self._note_away(error)
            raise

        def stored() -> None:
            try:
                finish()
            except StoreError as error:
                self._note_away(error)
                raise

        return stored

    def _begin(self, items: Sequence[Item]) -> Callable[[], object]:
        """Send the items over a connection that stays open, which makes `apply_async` a tenth faster.

        If that connection has died, send the items once more over another one. A repeat stores nothing twice.
        """
        store = self.store
        if not isinstance(self.settings.url, str):  # a client of the app may have few connections and other users
            return lambda: store.schedule(items, token="")
        started_s = time.monotonic()
        begun = store.begin(next(store.plans.schedule(items, token="")))
        took_s = time.monotonic() - started_s

        def finish() -> None:
            asked_s = time.monotonic()
            try:
                values_of(begun.answers())
            except StoreError as first:
                if (
                    took_s + time.monotonic() - asked_s > STALE_S
                ):  # a timeout: the caller does not wait for a second one
                    raise
                try:
                    store.schedule(items, token="")
                except StoreError as again:
                    if first.in_doubt and not again.in_doubt:  # the server may have executed the first call
                        raise first from again
                    raise

        return finish

    def _schedule_once(self, item: Item) -> Stored:
        return self.call(lambda store: store.schedule([item], token=""))

    def not_held(self, items: Sequence[Item], error: Exception) -> Collection[str]:
        """The ids of the items that the caller must send as stock Celery does, after `schedule` failed with `error`.

        The store may have written an item without confirming it. If the caller sends such a task too, it runs twice. If
        the caller does not send it, a crash of the server loses it. So this method removes such items, and the caller
        sends them. An item that has already left the store is with the broker, and the caller does not send it. If the
        store fails here too, the caller sends all of them, and some may run twice.
        """
        ids = {item.id for item in items}
        if not isinstance(error, InDoubt):
            return ids
        logger.warning(
            "celery.unconfirmed: the store has not confirmed tasks, so they are sent to the broker instead: %s", error
        )
        waiting: dict[int, list[Found]] = {}
        try:
            found = [item for item in self.store.get(list(ids), anywhere=True) if item is not None]
            for item in found:
                if item.state in ("due", "held"):
                    waiting.setdefault(item.shard, []).append(item)
            calls = [
                Call(shard, Change([Alteration(item.id, "c", "", item.version) for item in those]))
                for shard, those in waiting.items()
            ]
            answers = self.store.execute(calls) if calls else []
        except WheelSchedError:
            return ids
        gone = ids - {item.id for those in waiting.values() for item in those}
        for those, answer in zip(waiting.values(), answers, strict=True):
            outcomes = answer.answer if isinstance(answer, InDoubt) else answer
            if isinstance(outcomes, list):
                gone |= {item.id for item, outcome in zip(those, outcomes, strict=True) if outcome is not Outcome.DONE}
        return ids - gone

    @contextlib.contextmanager
    def collecting(self) -> Iterator[list[HeldTask]]:
        """In this block, tasks that this thread would store are added to a list. The caller must store them."""
        tasks: list[HeldTask] = []
        self._collected.tasks = tasks
        try:
            yield tasks
        finally:
            self._collected.tasks = None

    def item_of(self, task: HeldTask) -> Item | None:
        """Make the item that stores a task; None when the store cannot take the task."""
        lead_ms = self.settings.lead
        try:
            queue = self.shared_server.queue
            body = None if queue is None else queue.push_form(task, max(0, task.eta_ms - lead_ms))
            item = task.item(encode_neutral(task) if body is None else body, lead_ms)
            item.check()
        except (Rejected, TypeError, ValueError) as error:
            logger.warning("celery.not_held: task %s goes to the broker, as with stock Celery: %s", task.task_id, error)
            return None
        return item

    def hold_or_fall_back(self, task: HeldTask) -> bool:
        """Hold one task. Returns False if the caller must send it as stock Celery does.

        Raises:
            Rejected: the task has a key of collapse or debounce, and `apply_many` or beat sends it, or the store has
                more than one shard; the task was not sent.
            HoldRefused: the store is away and `on_outage` is "refuse"; the task was not sent, or it is not known
                whether the store has it.
        """
        collected: list[HeldTask] | None = getattr(self._collected, "tasks", None)
        if task.once_ref and (collected is not None or self.settings.shards > 1):
            raise Rejected(
                f"task {task.task_id}: with wheel_collapse or wheel_debounce, expected a store with one shard, and a "
                "task that neither apply_many nor beat sends; the task was not sent"
            )
        if collected is not None:
            collected.append(task)
            return True
        try:
            item = self.item_of(task)
            if item is not None and task.once_ref:
                self._superseded.announce(task, item.id, self._schedule_once(item))
            elif item is not None:
                self.schedule([item])
            return item is not None
        except WheelSchedError as error:
            # a retry is sent in any case: Celery gives up a task whose retry cannot be sent
            if self.settings.on_outage == "refuse" and isinstance(error, StoreError) and not task.retries:
                raise HoldRefused.because(error, f"task {task.task_id}") from error
            item = self.item_of(task)
            return item is not None and item.id not in self.not_held([item], error)

    # -- broker and store on one server

    @property
    def shared_server(self) -> SharedServer:
        """The object that finds out whether the broker's queues are in the store's database."""
        with self._lock:
            if self._shared_server is None:
                self._shared_server = SharedServer(
                    self.app, lambda: self.call(lambda store: store.backend.identity()), self.settings.timeout / 1000
                )
            return self._shared_server


def _start_anew(wheel: Wheel | None) -> None:
    if wheel is not None:
        wheel._forget()


def wheel_with_store(app: Any) -> Wheel | None:
    """The integration of an app that has a store, else None."""
    wheel = wheel_of(app)
    return None if wheel is None or wheel.settings.url is None else wheel


def managed_wheel(app: Any, store: DelayStore | None) -> Wheel:
    """The integration of an app, to manage what is in its store.

    Args:
        app: the app, or its `Wheel`.
        store: an open store to use instead of the app's own; None: its own.

    Raises:
        ConfigError: the integration is not installed, or there is no store.
    """
    wheel = app if isinstance(app, Wheel) else wheel_of(app)
    if wheel is None:
        raise ConfigError(
            "this app has no store: call wheel_sched_celery.install(app) where it is made; nothing was changed"
        )
    if store is None and wheel.settings.url is None:
        raise ConfigError("this app was installed with url=None, so it has no store; nothing was changed")
    return wheel


def wheel_of(app: Any) -> Wheel | None:
    """The integration of an app; None if it is not installed."""
    wheel = app.__dict__.get("wheel")
    return wheel if isinstance(wheel, Wheel) else None
