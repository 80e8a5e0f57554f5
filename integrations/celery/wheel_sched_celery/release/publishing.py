"""The dispatcher's publisher: sends due tasks that the store's server does not push to their queue itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from wheel_sched.dispatcher import Answer, Batch, Failed, PublisherTraits
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.settle import Done, Next
from wheel_sched_celery.beat.entry import is_entry
from wheel_sched_celery.beat.ticking import BeatStats, Ticker
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import RedisQueue, decode
from wheel_sched_celery.release.broker_connection import BrokerConnection
from wheel_sched_celery.wheel import wheel_of

logger = logger_of("wheel_sched.celery")

AWAY_S: Final = 3.0  # entries of beat wait this long after a failed send: longer than a dispatcher's backoff


class TaskPublisher:
    """Publishes claimed tasks to the app's broker (a `wheel_sched.dispatcher.Publisher`).

    A `Ticker` decides about claimed entries of beat.

    Args:
        app: the app whose broker is used.
        queue: writes a task as the store's server pushes it to its queue (push form). None when broker and store do not
            share a database.
        shards: the number of shards of the store. Defaults to 1.
    """

    traits = PublisherTraits()

    def __init__(self, app: Any, queue: RedisQueue | None, shards: int = 1) -> None:
        wheel = wheel_of(app)
        self._ticker = None if wheel is None else Ticker(wheel, shards)
        self._broker = BrokerConnection(app)
        self._queue = queue
        self._failed_s = -math.inf  # when the last send failed, by the monotonic clock; -inf: the last one succeeded
        self._lock = threading.Lock()

    def publish(self, batch: Batch) -> None:
        """Publish `batch.items`, and put an answer for each into `batch.answers`."""
        tasks: list[tuple[int, HeldTask]] = []
        for place, item in enumerate(batch.items):
            if self._ticker is not None and is_entry(item.body):
                batch.answers[place] = self._tick(self._ticker, item, batch.claim.now_us // 1000)
                continue
            try:
                tasks.append((place, decode(item.body)))
            except Rejected as error:
                batch.answers[place] = Failed(str(error), transient=False)
        if not tasks:
            return
        with self._lock:
            failures = self._broker.send([task for _, task in tasks])
        self._note(failures)
        for (place, _), failure in zip(tasks, failures, strict=True):
            batch.answers[place] = failure or Done(batch.items[place].id)

    def _tick(self, ticker: Ticker, item: Claimed, now_ms: int) -> Answer:
        """The answer for an entry of beat. While the broker is away, the entry waits: no occurrences pile up."""
        if self._queue is None and time.monotonic() - self._failed_s < AWAY_S:
            return Failed("the broker is away, so the periodic task waits")
        return ticker.tick(item, now_ms)

    def _note(self, failures: Sequence[Failed | None]) -> None:
        if None in failures:
            self._failed_s = -math.inf
        elif any(failure is not None and failure.transient for failure in failures):
            self._failed_s = time.monotonic()

    @property
    def beat_stats(self) -> BeatStats:
        """Counts of what the ticks of this publisher did."""
        return BeatStats() if self._ticker is None else self._ticker.stats

    def refuse(self, item: Claimed, reason: str) -> Answer | None:
        """Decide about an item that the server could not push to its queue. The dispatcher carries out the answer.

        An entry of beat goes to `publish`, in a worker thread: a tick calls the app's code, which may take long.

        The server pushes only a body in push form (see `stored_forms`). A body in another form is written again in push
        form, and the answer stores it. A task that has no push form is published here. If the body had push form, the
        answer is a failure with `reason`.
        """
        if is_entry(item.body):
            return None
        try:
            task = decode(item.body)
        except Rejected as error:
            return Failed(str(error), transient=False)
        if item.body.startswith(b"L1["):
            return Failed(reason)  # the queue's key is not a list; the task waits until somebody removes that key
        now_ms = time.time_ns() // 1_000_000
        form = None if self._queue is None else self._queue.push_form(task, now_ms)
        if form is not None:
            return Next(item.id, item.due_ms, form, item.topic, item.refs, item.route)
        with self._lock:
            (failure,) = self._broker.send([task])
        return failure or Done(item.id)

    def close(self) -> None:
        """Close the connection to the broker."""
        with self._lock:
            self._broker.close()
