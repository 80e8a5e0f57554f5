"""Writes rows of the history in the background, so that no consumer waits for the store.

If the store does not answer or is too slow, rows are dropped and counted: the history is only for reports, and a
message matters more than its row.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from retry_topic.history.attempt import Attempt
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store import MAX_BATCH, DelayStore, History

logger = logger_of("retry_topic.history")

_MOST_WAITING = 20_000  # rows: a few megabytes


class HistoryWriter:
    """Writes rows into the store's history. Any thread may call `put`; its owner calls `start` and `stop`.

    Args:
        store: holds the history.
        keep: about how many rows the store keeps.
    """

    def __init__(self, store: DelayStore, keep: int) -> None:
        self._store = store
        self._keep = keep
        self._waiting: deque[Attempt] = deque()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._away = False  # the store did not answer the last call
        self.thread = RevivedThread(self._run, "retry-history", self._ending)
        self.written = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<HistoryWriter waiting={len(self._waiting)} written={self.written} dropped={self.dropped}>"

    def start(self) -> None:
        self.thread.start()

    def put(self, rows: Sequence[Attempt]) -> None:
        """Queue rows to be written. Rows that do not fit into the queue are dropped and counted."""
        with self._changed:
            room = _MOST_WAITING - len(self._waiting)
            self._waiting.extend(rows[: max(0, room)])
            self.dropped += max(0, len(rows) - max(0, room))
            self._changed.notify()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread when it has written the queued rows. Waits for that, for `timeout_s` at most. Idempotent."""
        with self._changed:
            self._ending.set()
            self._changed.notify()
        if self.thread.is_alive():
            self.thread.join(timeout_s)

    def _run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Wait for rows, and write a batch of them. Returns False when `stop` was called and no row is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending.is_set())
            rows = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
        if not rows:
            return False
        added = 0
        try:
            added = History(self._store).append([(row.id, row.encode()) for row in rows], keep=self._keep)
            self._away = False
        except WheelSchedError as error:
            if not self._away:
                logger.warning("history.away: rows are dropped: %s", error)
            self._away = True
        self.written += added
        self.dropped += len(rows) - added
        return True
