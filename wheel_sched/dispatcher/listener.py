"""The listener: one thread that blocks on the store's markers. A marker reports an item that is due before all others.

The blocking read is never used as a timer, because an idle server may wake a blocked client 100 ms late.
The listener has its own connection, with a socket timeout longer than the read. Markers are durable: after a lost
connection the listener reads the markers that were written meanwhile.

No error ends the thread: it logs an unexpected error and starts again, after a growing delay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.delay_store import Backend
from wheel_sched.store.core.items import Marker

logger = logger_of("wheel_sched.dispatcher")

RECONNECT_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
STOP_POLL_S = 0.02
STOP_TRIES = 100  # 2 s in all; only for a backend whose read cannot be interrupted

OnMark = Callable[[int, Marker], None]
OnReconnect = Callable[[Sequence[int]], None]


FIRST_MARK = b"0-0"  # an id before that of every marker


class Listener:
    """Reports the new markers of some shards. A marker says that an item is due before all others of its shard.

    Args:
        backend: the backend of the store.
        marks: the id of the last marker seen of each shard; only newer markers are reported.
        on_mark: called with (shard, mark) from the listener's thread.
        on_reconnect: called with the shards when a lost connection is up again, before the first marker is read on it.
        block_ms: how long one read blocks.
    """

    def __init__(
        self, backend: Backend, marks: dict[int, bytes], on_mark: OnMark, on_reconnect: OnReconnect, block_ms: int
    ) -> None:
        self._backend = backend
        self._marks = marks
        self._on_mark = on_mark
        self._on_reconnect = on_reconnect
        self._block_ms = block_ms
        self._stopping = threading.Event()
        self._waiter: Any = None
        self.down = False  # True while the listener waits after a failure
        self.thread = threading.Thread(target=self._listen, name="wheel-sched-listener", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _listen(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._waiter is None:
                    self._waiter = self._backend.waiter(next(iter(self._marks)), self._block_ms)
                    if failures:
                        self._on_reconnect(list(self._marks))
                        # a server that has lost its last writes may number its next markers lower than those seen here
                        self._marks = dict.fromkeys(self._marks, FIRST_MARK)
                    self.down = False
                for shard, mark in self._backend.wait_for_mark(self._waiter, self._marks, self._block_ms).items():
                    self._marks[shard] = mark.id
                    self._on_mark(shard, mark)
                failures = 0
            except BaseException as error:
                if self._stopping.is_set():
                    break
                self.down = True
                if not isinstance(error, StoreError | OSError | ValueError):  # ValueError: the waiter was closed
                    logger.exception("dispatcher.listener_failed: it starts again")
                self._drop_waiter()
                self._stopping.wait(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
                failures += 1
        self._drop_waiter()

    def _drop_waiter(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.close()

    def stop(self) -> None:
        """End the thread and wait up to 2 s for its end. A blocked read is interrupted: its socket is shut down."""
        self._stopping.set()
        for _ in range(STOP_TRIES):
            waiter = self._waiter
            if waiter is not None:  # in each round, because the thread may begin another read
                self._backend.interrupt(waiter)
            if not self.thread.is_alive() or self.thread is threading.current_thread():
                return
            self.thread.join(STOP_POLL_S)


class Listeners:
    """All listeners of a dispatcher: one for all shards, but in a Redis cluster one for each shard.

    In a cluster a command can read only one shard.

    Args:
        backend, on_mark, on_reconnect, block_ms: see `Listener`.
    """

    def __init__(self, backend: Backend, on_mark: OnMark, on_reconnect: OnReconnect, block_ms: int) -> None:
        self._backend = backend
        self._on_mark = on_mark
        self._on_reconnect = on_reconnect
        self._block_ms = block_ms
        self._all: list[Listener] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def threads(self) -> list[threading.Thread]:
        return [listener.thread for listener in self._all]

    @property
    def down(self) -> bool:
        """Whether any listener waits after a failure, or has ended."""
        return any(listener.down or not listener.thread.is_alive() for listener in self._all)

    def start(self, marks: Mapping[int, bytes]) -> None:
        """Start the listeners. `marks` has the id of the last marker seen of each shard, so they miss no later one."""
        for part in [{shard: mark} for shard, mark in marks.items()] if self._backend.cluster else [dict(marks)]:
            listener = Listener(self._backend, part, self._on_mark, self._on_reconnect, self._block_ms)
            listener.start()
            self._all.append(listener)

    def stop(self) -> None:
        for listener in self._all:
            listener.stop()
