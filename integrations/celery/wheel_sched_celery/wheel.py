"""The integration of one app: its settings, its store in this process, and putting tasks on hold.

The store is opened at the first hold, once per process: a forked pool child opens its own and never touches what its
parent had open. `app.wheel` is this object.

Threads: any.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import uuid4

from kombu.exceptions import OperationalError

from wheel_sched.errors import InDoubt, Rejected, StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.connect import open_store
from wheel_sched.store.delay_store import DelayStore, values_of
from wheel_sched.store.items import Found, Item, Outcome
from wheel_sched.store.operations import Alteration, Call, Change, Look
from wheel_sched_celery.errors import HoldRefused
from wheel_sched_celery.held_task import REVOKED, HeldTask, bounded, encode_neutral
from wheel_sched_celery.redis_queue import RedisQueue
from wheel_sched_celery.settings import WheelSettings, load_settings
from wheel_sched_celery.store_thread import StoreThread

logger = logger_of("wheel_sched.celery")

T = TypeVar("T")

AWAY_S = 2.0  # after a failure callers go the stock way at once for so long, instead of each waiting for a timeout
LONGEST_PAUSE_S = 60.0  # between two questions whether broker and store are one server; a sender waits for the answer
STALE_S = 1.0  # a connection that has died says so at once
_TAKER: Final = "taker:"


class Wheel:
    """Holds tasks of one app.

    Args:
        app: the Celery app.
        given: arguments of `install`.
    """

    def __init__(self, app: Any, given: Mapping[str, Any]) -> None:
        self.app = app
        self._given = dict(given)
        self._settings: WheelSettings | None = None
        self._forget()
        if hasattr(os, "register_at_fork"):
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _start_anew(me()))

    def _forget(self) -> None:
        """Start anew in a forked child: a lock may have been held, and sockets are the parent's."""
        self._lock = threading.Lock()
        self._store: DelayStore | None = None
        self._client: Any = None
        self._queue: RedisQueue | None = None
        self._queue_known = False
        self._ask_again_s = 0.0
        self._pause_s = AWAY_S
        self._away_until_s = 0.0
        self._away_because = ""
        self._collected = threading.local()
        self._taker = f"{_TAKER}{uuid4().hex}"  # what this process has put its name to, see `withdrawing`
        self.thread = StoreThread()

    @property
    def settings(self) -> WheelSettings:
        """Settings, read from the app's configuration when they are first asked for.

        Raises:
            ConfigError: with everything that is wrong.
        """
        if self._settings is None:
            conf = self.app.conf
            self._settings = load_settings(self._given, conf, conf.broker_write_url)
        return self._settings

    @property
    def store(self) -> DelayStore:
        """The store of this process.

        Raises:
            StoreError: it is away, or another schema, shard count or clock is there.
            ConfigError: the app has none.
        """
        with self._lock:
            if self._store is None:
                self._store = self.open_store(self.settings.timeout)
            return self._store

    def open_store(self, timeout_ms: int | None = None) -> DelayStore:
        """Another handle on the store, which the caller closes.

        Args:
            timeout_ms: of one call. Defaults to what the store's client does.
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
            StoreError: it is away, or was a moment ago.
        """
        (window,) = self.asked(lambda store: values_of(store.execute([Call(0, Look(0, 0))])))
        return int(window.now_us)

    def asked(self, question: Callable[[DelayStore], T]) -> T:
        """The store's answer; a failure is remembered, so that the next callers need not wait for theirs.

        Raises:
            StoreError: there is none; or the store was away a moment ago, and was not asked.
        """
        self._check_near()
        try:
            return question(self.store)
        except StoreError as error:
            self._gone(error)
            raise

    def ask(self, question: Callable[[DelayStore], T]) -> T:
        """The store's answer, for whoever cannot wait: by the store's thread, and within its patience.

        Raises:
            StoreError: there is none, or none in time.
        """
        return self.thread.ask(lambda: self.asked(question))

    @property
    def near(self) -> bool:
        """Whether asking the store now promises an answer: it was not away a moment ago, and no call hangs."""
        return time.monotonic() >= self._away_until_s and not self.thread.stuck

    def _check_near(self) -> None:
        if time.monotonic() < self._away_until_s:
            raise StoreUnavailable(
                f"the delay store was away a moment ago: nothing was sent to it now; it had said: {self._away_because}"
            )

    def _gone(self, error: StoreError) -> None:
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

    def hold(self, tasks: Sequence[HeldTask]) -> list[bool]:
        """Put tasks into the store in one call; durable when this returns.

        Returns:
            For each whether it is held; False: it cannot be (too large, no name), send it the stock way.

        Raises:
            StoreError: the store is away or refuses; what was stored is unknown, and the same tasks may be held again.
        """
        items: list[Item | None] = [self.item_of(task) for task in tasks]
        wanted = [item for item in items if item is not None]
        if wanted:
            self.schedule(wanted)
        return [item is not None for item in items]

    def schedule(self, items: Sequence[Item]) -> None:
        """Store what `item_of` made, one at least.

        Raises:
            StoreError: as of `hold`.
        """
        self.begin_schedule(items)()

    def begin_schedule(self, items: Sequence[Item]) -> Callable[[], None]:
        """`schedule` in two halves, so that the caller works while the server does.

        What is given back waits until they are stored, is called once, and raises what `schedule` raises.
        """
        self._check_near()
        try:
            finish = self._begin(items)
        except StoreError as error:
            self._gone(error)
            raise

        def stored() -> None:
            try:
                finish()
            except StoreError as error:
                self._gone(error)
                raise

        return stored

    def _begin(self, items: Sequence[Item]) -> Callable[[], object]:
        """Send on a connection that is kept, which takes a tenth off `apply_async`; should it have died since, on
        another one: stored by an earlier try is as good as stored by this one."""
        store = self.store
        if not isinstance(self.settings.url, str):  # a client of the app's own may have few connections, and other uses
            return lambda: store.schedule(items, token="")
        started_s = time.monotonic()
        begun = store.begin(next(store.plans.schedule(items, "")))
        took_s = time.monotonic() - started_s

        def finish() -> None:
            asked_s = time.monotonic()
            try:
                values_of(begun.answers())
            except StoreError as first:
                if took_s + time.monotonic() - asked_s > STALE_S:  # that is a timeout, and one is enough
                    raise
                try:
                    store.schedule(items, token="")
                except StoreError as again:
                    if first.in_doubt and not again.in_doubt:  # the first try may have been executed
                        raise first from again
                    raise

        return finish

    def take(self, tasks: Sequence[HeldTask]) -> list[bool]:
        """Put messages that are in a worker's hands into the store in one call.

        Returns:
            For each whether it waits in the store now, so that the worker's may be acknowledged. An id that is there
            already is not enough: one in flight leaves the store when it is settled, a dead one is never sent.

        Raises:
            StoreError: as of `hold`.
        """
        items = [self._named(self.item_of(task)) for task in tasks]
        wanted = [item for item in items if item is not None]
        stored = self.asked(lambda store: store.schedule(wanted, token="")) if wanted else None
        outcomes = iter(stored.outcomes if stored is not None else ())
        waits = [item is not None and next(outcomes) is not Outcome.DUPLICATE for item in items]
        for place, item in enumerate(items):
            if item is not None and not waits[place]:
                with contextlib.suppress(StoreError):
                    waits[place] = self.waits(tasks[place])
        return waits

    def waits(self, task: HeldTask) -> bool:
        """Whether this very message waits in the store: not yet on its way out of it, and not given up.

        Then this process has put its name to it, so that nobody withdraws it any more, see `withdrawing`.

        Raises:
            StoreError: the store is away, or was a moment ago.
        """
        route = bounded(task.task_id)
        (found,) = self.asked(lambda store: store.get([task.item_id], route=route))
        if found is None or found.state not in ("due", "held"):
            return False
        if self._taker in found.refs:
            return True
        change = Alteration(found.id, "p", "=", found.version, self._named(found.item()))
        (outcome,) = self.asked(lambda store: store.change([change], route=route))
        return outcome is Outcome.DONE

    def withdraw(self, item_ids: Sequence[str]) -> Collection[str]:
        """Take items out of the store whose messages are in this worker's hands; not what others put their name to.

        Returns:
            Those that were there.

        Raises:
            StoreError: the store is away, or was a moment ago.
        """
        there = [each for each in self.asked(lambda store: store.get(item_ids, anywhere=True)) if each is not None]
        shards: dict[int, list[Alteration]] = {}
        for found in filter(self._is_mine, there):
            shards.setdefault(found.shard, []).append(Alteration(found.id, "c", "", found.version))
        calls = [Call(shard, Change(changes)) for shard, changes in shards.items()]
        if calls:
            with contextlib.suppress(InDoubt):  # it was executed, and will not be forgotten if it can be helped
                self.asked(lambda store: values_of(store.execute(calls)))
            logger.info("celery.withdrawn: %d tasks stay in this worker alone", sum(map(len, shards.values())))
        return {found.id for found in there}

    def to_send(self, items: Sequence[Item], error: Exception) -> Collection[str]:
        """Which of these, whose hold failed so, are to be sent the stock way: their ids.

        What was written and only not confirmed would run twice then, and is lost with the server otherwise. So it is
        taken out again first; what has left the store meanwhile is the broker's, and not sent as well.
        """
        ids = {item.id for item in items}
        if not isinstance(error, InDoubt):
            return ids
        logger.warning("celery.unconfirmed: taken out again and sent the stock way: %s", error)
        shards: dict[int, list[Found]] = {}
        try:
            there = [found for found in self.store.get(list(ids), anywhere=True) if found is not None]
            for found in there:
                if found.state in ("due", "held"):
                    shards.setdefault(found.shard, []).append(found)
            changes = {
                shard: [Alteration(found.id, "c", "", found.version) for found in each]
                for shard, each in shards.items()
            }
            answers = (
                self.store.execute([Call(shard, Change(each)) for shard, each in changes.items()]) if changes else []
            )
        except WheelSchedError:
            return ids
        left = ids - {found.id for each in shards.values() for found in each}
        for each, answer in zip(shards.values(), answers, strict=True):
            outcomes = answer.answer if isinstance(answer, InDoubt) else answer
            if isinstance(outcomes, list):
                left |= {found.id for found, outcome in zip(each, outcomes, strict=True) if outcome is not Outcome.DONE}
        return ids - left

    def _is_mine(self, found: Found) -> bool:
        if found.state not in ("due", "held") or found.reason == REVOKED:
            return False
        return all(ref == self._taker for ref in found.refs if ref.startswith(_TAKER))

    def _named(self, item: Item | None) -> Item | None:
        """`item` with this process's name."""
        if item is None:
            return None
        return replace(item, refs=(*(ref for ref in item.refs if not ref.startswith(_TAKER)), self._taker))

    @contextlib.contextmanager
    def collecting(self) -> Iterator[list[HeldTask]]:
        """Within, this thread's sends that would be held are put into the list instead; the caller holds them."""
        tasks: list[HeldTask] = []
        self._collected.tasks = tasks
        try:
            yield tasks
        finally:
            self._collected.tasks = None

    def item_of(self, task: HeldTask) -> Item | None:
        """What would be stored for a task; None when the store cannot take it."""
        lead_ms = self.settings.lead
        try:
            queue = self.redis_queue
            body = None if queue is None else queue.push_form(task, max(0, task.eta_ms - lead_ms))
            item = task.item(encode_neutral(task) if body is None else body, lead_ms)
            item.check()
        except (Rejected, TypeError, ValueError) as error:
            logger.warning("celery.not_held: task %s goes the stock way: %s", task.task_id, error)
            return None
        return item

    def hold_or_fall_back(self, task: HeldTask) -> bool:
        """Hold one task; False: send it the stock way.

        Raises:
            HoldRefused: the store is away and the app wants that said; the task was not sent, or is in doubt.
        """
        collected: list[HeldTask] | None = getattr(self._collected, "tasks", None)
        if collected is not None:
            collected.append(task)
            return True
        try:
            return self.hold([task])[0]
        except WheelSchedError as error:
            if self.settings.on_outage == "refuse" and isinstance(error, StoreError):
                raise HoldRefused.because(error, f"task {task.task_id}") from error
            item = self.item_of(task)
            return item is not None and item.id not in self.to_send([item], error)

    # -- broker and store on one server

    @property
    def redis_queue(self) -> RedisQueue | None:
        """Makes push forms when the broker's queues lie in the store's own database, else None.

        Asked once per process; while one of the two cannot answer, the neutral form serves as well.
        """
        if not self._queue_known and time.monotonic() >= self._ask_again_s:
            self._ask_again_s = math.inf  # others go on meanwhile
            connection = self.app.connection_for_write()
            if RedisQueue.serves(connection):  # a server that does not answer must not hold up the caller
                seconds = self.settings.timeout / 1000
                limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
                connection.transport_options = {**limits, **connection.transport_options}
            try:
                if not RedisQueue.serves(connection):
                    self._queue_known = True
                elif (same := self._same_server(connection)) is not None:
                    self._queue = RedisQueue(connection) if same else None
                    self._queue_known = True
            finally:
                connection.release()
                self._ask_again_s = time.monotonic() + self._pause_s  # a broker that hangs takes longer than a pause
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._queue

    def knows_server(self) -> bool:
        """Whether it is known if broker and store are one server; asks when it is not."""
        self._ask_again_s = 0.0
        _ = self.redis_queue
        return self._queue_known

    def _same_server(self, connection: Any) -> bool | None:
        """Whether store and broker are one database of one server; None: it cannot be known now."""
        mine: tuple[str, int] | None = None
        with contextlib.suppress(StoreError, OSError):
            mine = self.asked(lambda store: store.backend.identity())
            if mine is None:
                return False
        if mine is None:
            return None
        try:
            hosts = len(connection.alt or ()) or 1
            connection.ensure_connection(max_retries=hosts - 1, interval_start=0, timeout=self.settings.timeout / 1000)
            with connection.channel() as channel:
                info = channel.client.info()
                database = channel.client.connection_pool.connection_kwargs.get("db") or 0
        except (OperationalError, *connection.connection_errors, *connection.channel_errors):
            return None  # kombu wraps what its clients raise, or does not, by the way a connection is made
        return mine == (str(info.get("run_id")), int(database))


def _start_anew(wheel: Wheel | None) -> None:
    if wheel is not None:
        wheel._forget()


def wheel_of(app: Any) -> Wheel | None:
    """The integration of an app, None where it is not installed."""
    wheel = app.__dict__.get("wheel")
    return wheel if isinstance(wheel, Wheel) else None
