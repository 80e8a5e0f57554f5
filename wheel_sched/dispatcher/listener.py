"""The listener: one thread that blocks on the store's markers and says when an earlier head arrived.

Its blocking read is only a signal, never a timer: a blocked client is woken up to 100 ms late by an otherwise quiet
server. It has a connection of its own, whose socket waits longer than the read. Markers are durable: what was written
while the connection was down is read after it is up again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.store.delay_store import Backend
from wheel_sched.store.items import Mark

RECONNECT_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
STOP_POLL_S = 0.02
STOP_TRIES = 100  # 2 s; only a backend that cannot be interrupted needs them


class Listener:
    """Watches the markers of some shards.

    Args:
        backend: of the store.
        marks: the last marker seen of each shard; it decides what counts as newer.
        heard: called with (shard, mark) from the listener's thread.
        reconnected: called after a lost connection is back, before anything is heard on it.
        block_ms: how long one read blocks.
    """

    def __init__(
        self,
        backend: Backend,
        marks: dict[int, bytes],
        heard: Callable[[int, Mark], None],
        reconnected: Callable[[Sequence[int]], None],
        block_ms: int,
    ) -> None:
        self._backend = backend
        self._marks = marks
        self._heard = heard
        self._reconnected = reconnected
        self._block_ms = block_ms
        self._stopping = threading.Event()
        self._waiter: Any = None
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
                        self._reconnected(list(self._marks))
                for shard, mark in self._backend.wait_for_mark(self._waiter, self._marks, self._block_ms).items():
                    self._marks[shard] = mark.id
                    self._heard(shard, mark)
                failures = 0
            except (StoreError, OSError, ValueError):  # ValueError: the waiter was closed under the read
                if self._stopping.is_set():
                    break
                self._drop_waiter()
                self._stopping.wait(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
                failures += 1
        self._drop_waiter()

    def _drop_waiter(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.close()

    def stop(self) -> None:
        """End the thread; a blocked read is interrupted by shutting its socket down."""
        self._stopping.set()
        for _ in range(STOP_TRIES):
            waiter = self._waiter
            if waiter is not None:  # again and again, for the thread may be about to connect and to read
                self._backend.interrupt(waiter)
            if not self.thread.is_alive() or self.thread is threading.current_thread():
                return
            self.thread.join(STOP_POLL_S)
