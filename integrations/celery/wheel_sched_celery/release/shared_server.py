"""Finds out whether the broker's queues and the store are in one database of one Redis server.

If so, the server itself moves a due task to its queue, in one script. Each process asks broker and store once. If one
of them does not answer, the process asks again later.

Threads: any thread may call any method. While one thread asks, other threads continue without an answer.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, Final

from kombu.exceptions import OperationalError

from wheel_sched.errors import StoreError
from wheel_sched_celery.message.stored_forms import RedisQueue
from wheel_sched_celery.release.broker_connection import short_connection

FIRST_PAUSE_S: Final = 2.0  # between two attempts to ask; a sender waits for each answer
LONGEST_PAUSE_S: Final = 60.0


class SharedServer:
    """Makes a `RedisQueue` when broker and store share a database.

    Args:
        app: the Celery app.
        store_identity: returns (run id, database) of the store's server; None when it is not a standalone Redis.
        timeout_s: how long the broker may take to answer.
    """

    def __init__(self, app: Any, store_identity: Callable[[], tuple[str, int] | None], timeout_s: float) -> None:
        self._app = app
        self._store_identity = store_identity
        self._timeout_s = timeout_s
        self._queue: RedisQueue | None = None
        self._is_known = False
        self._ask_again_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    @property
    def queue(self) -> RedisQueue | None:
        """The object that writes a task as the server pushes it to its queue (push form).

        None when broker and store are two servers or databases, or while this is not known.
        """
        if not self._is_known and time.monotonic() >= self._ask_again_s:
            self._ask_again_s = math.inf
            connection = short_connection(self._app, self._timeout_s)
            try:
                if not RedisQueue.serves(connection):
                    self._is_known = True
                elif (same := self._is_same(connection)) is not None:
                    self._queue = RedisQueue(connection) if same else None
                    self._is_known = True
            finally:
                connection.release()
                self._ask_again_s = (
                    time.monotonic() + self._pause_s
                )  # from now: the wait for the answers may have been long
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._queue

    def ask(self) -> bool:
        """Ask now whether broker and store share a database, if this is not known. Returns whether it is known."""
        self._ask_again_s = 0.0
        _ = self.queue
        return self._is_known

    def _is_same(self, connection: Any) -> bool | None:
        """Whether store and broker are one database of one server; None when one of them does not answer."""
        mine: tuple[str, int] | None = None
        with contextlib.suppress(StoreError, OSError):
            mine = self._store_identity()
            if mine is None:
                return False
        if mine is None:
            return None
        try:
            hosts = len(connection.alt or ()) or 1
            connection.ensure_connection(max_retries=hosts - 1, interval_start=0, timeout=self._timeout_s)
            with connection.channel() as channel:
                info = channel.client.info()
                database = channel.client.connection_pool.connection_kwargs.get("db") or 0
        except (OperationalError, *connection.connection_errors, *connection.channel_errors):
            return None  # kombu wraps the errors of its clients for some kinds of connection only
        return mine == (str(info.get("run_id")), int(database))
