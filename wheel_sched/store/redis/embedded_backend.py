"""A Redis backend over an embedded server. It starts a new server when the owner of the last one ended.

Several processes share the server of a folder, and the server ends with the process that started it. A call that finds
no server takes over the folder: one process starts a server over the same append-only file, and the others find it.
The backend then repeats the call, as after any lost reply, so the caller of a call that may be repeated only sees a
delay. A process that only waits for markers notices the end of the server when its blocked read fails.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import redis

from wheel_sched.errors import EmbeddedServerError, StoreUnavailable
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.items import Marker
from wheel_sched.store.embedded.server import EmbeddedServer
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect, Send

TAKE_OVER_S = 10.0  # how long a call waits for the end of the last server and for other processes that open the folder
AGAIN_S = 1.0  # after a failure, no call tries again for this time

logger = logger_of("wheel_sched.store.embedded")


class EmbeddedBackend(RedisBackend):
    """A `RedisBackend` over an embedded server. `close` also ends the server, if this backend's `server` started it."""

    def __init__(self, server: EmbeddedServer, client: redis.Redis, dialect: Dialect) -> None:
        super().__init__(client, dialect, owns_client=True)
        self.server = server
        self._taking = threading.Lock()
        self._not_before_s = 0.0

    def _send(self, step: Send) -> list[Any]:
        replies = super()._send(step)
        if any(map(_is_gone, replies)):
            self._take_over()
        return replies

    def info(self) -> dict[str, Any]:
        try:
            return super().info()
        except StoreUnavailable:
            if not self._take_over():
                raise
            return super().info()

    def wait_for_mark(self, waiter: redis.Redis, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        try:
            return super().wait_for_mark(waiter, marks, timeout_ms)
        except StoreUnavailable:
            self._take_over()
            raise

    def _take_over(self) -> bool:
        """Start the folder's server if it has ended. Returns whether a new server runs now."""
        with self._taking:
            if time.monotonic() < self._not_before_s:
                return False
            path = self.server.socket_path
            try:
                if not self.server.take_over(TAKE_OVER_S):
                    return False
            except EmbeddedServerError as error:
                self._not_before_s = time.monotonic() + AGAIN_S
                logger.warning("The embedded server is gone: %s", error)
                return False
            if self.server.socket_path != path:
                self._move_to(str(self.server.socket_path))
            done = "this process has started it again" if self.server.started_here else "another process has it"
            logger.warning("The server of %s had ended; %s (pid %d)", self.server.folder, done, self.server.pid)
            return True

    def _move_to(self, path: str) -> None:
        """Use another socket path. The client stays the same object, because other objects refer to it."""
        pool: Any = self.client.connection_pool  # type: ignore[union-attr]  # never a cluster's
        pool.connection_kwargs["path"] = path
        pool.reset()

    def close(self) -> None:
        super().close()
        self.server.close()


def _is_gone(reply: Any) -> bool:
    """Whether a reply is an error that shows a lost or refused connection. A slow or loading server is not gone."""
    return isinstance(reply, redis.ConnectionError | OSError) and not isinstance(
        reply, redis.AuthenticationError | redis.BusyLoadingError | redis.TimeoutError | TimeoutError
    )
