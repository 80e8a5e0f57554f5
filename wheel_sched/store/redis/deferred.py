"""A connection that sends commands now and reads their replies later.

A usual client waits for the reply to each command. Here only `replies` waits for them. It does not raise errors: it
returns an error instead of a reply. Only one thread at a time may use the connection.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import redis

from wheel_sched.store.core.call import Argument

_pack: Callable[[tuple[Argument, ...]], bytes] | None = None
with contextlib.suppress(ImportError):  # redis-py tests the type of each argument, which takes longer than the packing
    _pack = importlib.import_module("hiredis").pack_command


class DeferredConnection:
    """Sends commands on one connection of the client's pool. The object keeps the connection until `close`."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._own: redis.Redis | None = None
        self._connection: Any = None  # redis-py leaves its methods unannotated
        self._expected = 0
        self._error: Exception | None = None

    def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """Send commands and do not wait for the replies. The first call connects."""
        self._expected, self._error = len(commands), None
        try:
            if self._own is None:
                pool = self._client.connection_pool
                self._own = redis.Redis(connection_pool=pool, single_connection_client=True)
                self._connection = self._own.connection
            packed = self._connection.pack_commands(commands) if _pack is None else [b"".join(map(_pack, commands))]
            self._connection.send_packed_command(packed)
        except (redis.RedisError, OSError) as error:
            self._error = error

    def replies(self) -> list[Any]:
        """Wait for the replies to the commands of the last `send`. If one is missing, returns exceptions for all."""
        found: list[Any] = []
        error = self._error
        while error is None and len(found) < self._expected:
            try:
                found.append(self._connection.read_response())
            except redis.ResponseError as refusal:
                found.append(refusal)
            except (redis.RedisError, OSError) as failure:
                error = failure
        expected, self._expected = self._expected, 0
        if error is None:
            return found
        if self._connection is not None:
            self._connection.disconnect()  # later replies would belong to the commands that are given up here
        return [error] * expected

    def __del__(self) -> None:
        if self._expected and self._connection is not None:  # an interrupt came between `send` and `replies`
            self._connection.disconnect()

    def close(self) -> None:
        """Give the connection back to its pool. Idempotent."""
        if self._own is not None:
            self._own.close()
            self._own = self._connection = None
