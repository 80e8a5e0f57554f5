"""`OperationRunner`: the thread that takes the steps of durable operations.

Any number of processes may have one. Only the runner that holds an operation's lease works on it. The lease is a field
of the record. When a runner dies, another one continues after the end of the lease. Pause, resume and cancel are
changes of the record, which a runner reads before each batch.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Self
from uuid import uuid4

from wheel_sched.errors import BrokerError, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.management.operations.book import OperationBook
from wheel_sched.management.operations.kind import OperationKind
from wheel_sched.management.operations.operation import DurableOperation
from wheel_sched.management.operations.stepping import LEASE_MS, Stepper, released
from wheel_sched.store import DelayStore

logger = logger_of(__name__)

_IDLE_S = 2.0  # from one look to the next when there is nothing to do
_TROUBLE_S = 2.0  # from an error of the store to the next look


def _ignore(_: DurableOperation) -> None:
    """Do nothing when an operation ends."""


class OperationRunner:
    """Runs the operations of a namespace. `start` begins, `close` ends. Thread-safe.

    Args:
        store: the open store.
        kinds: the kinds that it can run; operations of other kinds are left to other processes.
        on_end: called with each operation that this runner has ended. Defaults to a function that does nothing.
        lease_ms: the time after which another runner takes an operation over, unless this one renews its lease.
            Defaults to 20 s.
    """

    def __init__(
        self,
        store: DelayStore,
        kinds: Sequence[OperationKind],
        *,
        on_end: Callable[[DurableOperation], None] = _ignore,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._store = store
        self._kinds = {kind.name: kind for kind in kinds}
        self._on_end = on_end
        self.owner = f"{socket.gethostname()[:60]}-{os.getpid()}-{uuid4().hex[:8]}"
        self._book = OperationBook(store)
        self._stepper = Stepper(store, self.owner, lease_ms)
        self._stop, self._news = threading.Event(), threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start the thread, unless it runs. Idempotent."""
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="operations", daemon=True)
                self._thread.start()
        return self

    def wake(self) -> None:
        """Look for work now, without waiting for the next regular look."""
        self._news.set()

    def close(self) -> None:
        """Stop before the next batch, wait for the thread, and let other runners go on at once. Idempotent."""
        self._stop.set()
        self._news.set()
        with self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._release()

    def _release(self) -> None:
        try:
            for operation in self._book.open():
                if operation.owner == self.owner:
                    self._book.put(released(operation))  # refused if somebody has changed the record
        except (StoreError, OSError) as error:
            logger.warning("operations.not_released: %s: %s", type(error).__name__, error)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.clear()
            try:
                wait_s = self.run_once()
            except Exception as error:  # without the thread, operations would stop
                logger.warning("operations.trouble: %s: %s", type(error).__name__, error)
                wait_s = _TROUBLE_S
            if wait_s and not self._stop.is_set():
                self._news.wait(wait_s)

    def run_once(self) -> float:
        """Take one step of each operation that needs one.

        Returns:
            After how many seconds to look again.

        Raises:
            StoreError: the operations cannot be read.
        """
        wait_s = _IDLE_S
        for operation in self._book.open():
            kind = self._kinds.get(operation.kind)
            now_ms = self._store.now_ms()
            if self._stop.is_set():
                return 0.0
            if kind is None or not operation.is_free(self.owner, now_ms):
                continue
            if operation.needs_work(now_ms):
                wait_s = min(wait_s, self._step(operation, kind))
            elif operation.state == "running":
                wait_s = min(wait_s, (operation.next_ms - now_ms) / 1000)
        return max(wait_s, 0.0)

    def _step(self, operation: DurableOperation, kind: OperationKind) -> float:
        """Take a step. Returns after how many seconds to look again."""
        try:
            ended = self._stepper.step(operation, kind)
        except (StoreError, BrokerError, OSError) as error:
            logger.warning("operations.waits: %s: %s: %s", operation.id, type(error).__name__, error)
            return _TROUBLE_S
        except Exception as error:  # a wrong argument, or a mistake in the kind: the other operations continue
            logger.warning("operations.failed: %s: %s: %s", operation.id, type(error).__name__, error)
            ended = self._stepper.fail(operation.id, error)
        if ended is not None:
            self._on_end(ended)
        return 0.0
