"""OccurrenceSettler: opens the store, reports to it how occurrences ended, and extends leases.

A pass of the scheduler sends ended occurrences together with its claim. Between passes the settler sends them. It waits
a moment first, so that many ends make one round trip. A second thread, the listener, learns of jobs that other
processes have made due earlier.

The settler also opens the store. A scheduler's start may run on an event loop, so the start waits only a moment for the
store. The settler continues to wait for a store that does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from wheel_sched.dispatcher.listener import Listener
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore

LINGER_S = 0.01  # how long an end waits for other ends, or for the scheduler's next pass
BLOCK_MS = 20_000  # of a read on the markers; it returns at once when there is something
RETRY_S = 0.5
OPEN_AT_ONCE_S = 1.0  # how long a start waits for a server to answer; a healthy one takes some milliseconds
OPEN_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between two tries to open the store
TRIES_AT_END = 3
PATIENCE_S = 5.0  # how long `stop` waits until everything was sent
UNOPENED_PATIENCE_S = 0.2  # the same, when the store was never opened

logger = logger_of("wheel_sched.apscheduler")


class OccurrenceSettler:
    """See the module.

    Args:
        store: opens the store if need be, and returns it.
        flush: sends to the store what is pending.
        extend_leases: of what runs.
        next_s: in how many seconds there is something to send; None = not before `notify`.
        earlier_due: called with the due of an earlier job, from the listener's thread.
        opened: called when a store that was away at the start answers, from the settler's thread; again if it raises.
        extend_every_s: between two calls of `extend_leases`.
        waits_for_store: whether `start` waits for as long as opening takes. Defaults to False.
    """

    def __init__(
        self,
        store: Callable[[], DelayStore],
        flush: Callable[[], None],
        extend_leases: Callable[[], None],
        next_s: Callable[[], float | None],
        earlier_due: Callable[[int], None],
        opened: Callable[[], None],
        extend_every_s: float,
        *,
        waits_for_store: bool = False,
    ) -> None:
        self._store, self._earlier_due, self._opened = store, earlier_due, opened
        self._flush, self._extend_leases, self._next_s = flush, extend_leases, next_s
        self._extend_every_s = extend_every_s
        self._waits_for_store = waits_for_store
        self._notified = threading.Event()
        self._tried = threading.Event()  # to open the store, for the first time
        self._trying = threading.Lock()
        self._left = False  # start has gone on without an answer
        self._refusal: Exception | None = None
        self._stopping = threading.Event()
        self._may_end: Callable[[], bool] = lambda: True
        self._then: Callable[[], None] = lambda: None
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="wheel-sched-settler", daemon=True)

    def start(self) -> None:
        """Start both threads. If the store is away or slow to answer, the listener starts later.

        Raises:
            StoreError, ConfigError: the store is there and cannot be used.
        """
        self._thread.start()
        if not self._tried.wait(None if self._waits_for_store else OPEN_AT_ONCE_S):
            with self._trying:
                self._left = not self._tried.is_set()
        if self._left:
            logger.warning("The store does not answer yet; jobs run when it does")
        elif self._refusal is not None:
            raise self._refusal

    @property
    def listener(self) -> Listener | None:
        """What hears of earlier jobs; None before the store was opened."""
        return self._listener

    def _open_first(self) -> bool:
        """Try to open the store, for `start`; whether this thread goes on."""
        error: Exception | None = None
        try:
            self._listen()
        except Exception as each:
            error = each
        with self._trying:
            if not self._left:
                if isinstance(error, StoreError) and error.transient:
                    logger.warning("The store does not answer yet; jobs run when it does: %s", error)
                else:
                    self._refusal = error
                self._tried.set()
        if self._left or (self._listener is None and self._refusal is None):
            self._wait_for_store()
        return self._refusal is None

    def _listen(self) -> None:
        store = self._store()
        marks = {window.shard: window.mark for window in store.windows(0, 0)}
        earlier_due = self._earlier_due
        self._listener = Listener(
            store.backend,
            marks,
            lambda _, mark: earlier_due(mark.due_ms or 0),  # a marker without a due: look now
            lambda _: earlier_due(0),  # the connection was lost: look now, a marker may have been missed
            BLOCK_MS,
        )
        self._listener.start()

    def _wait_for_store(self) -> None:
        """Until the store is open, or this thread is stopped."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._listener is None:
                    self._listen()
                self._opened()
            except Exception as error:  # whatever is wrong may be mended meanwhile
                transient = isinstance(error, StoreError) and error.transient
                logger.log(logging.DEBUG if transient else logging.ERROR, "The store cannot be opened yet: %s", error)
                self._stopping.wait(OPEN_AGAIN_S[min(failures, len(OPEN_AGAIN_S) - 1)])
                failures += 1
                continue
            logger.info("The store is there; jobs run")
            break
        if self._stopping.is_set() and self._listener is not None:
            self._listener.stop()

    def notify(self) -> None:
        """There may be something to send. Any thread, never blocks."""
        if not self._notified.is_set():
            self._notified.set()

    def stop(self, *, until: Callable[[], bool], then: Callable[[], None]) -> None:
        """End when `until` holds and everything was sent, then call `then`. Waits for that unless a job still runs."""
        self._may_end, self._then = until, then
        self._stopping.set()
        if self._listener is not None:
            self._listener.stop()
        self._notified.set()
        if until() and self._thread is not threading.current_thread():
            self._thread.join(UNOPENED_PATIENCE_S if self._listener is None else PATIENCE_S)

    def _run(self) -> None:
        if not self._open_first():
            return
        extend_at = time.monotonic() + self._extend_every_s
        failures = 0
        while True:
            nap_s = self._next_s()
            left_s = max(0.0, extend_at - time.monotonic())
            if nap_s is None or nap_s > 0:
                if self._stopping.is_set():
                    if self._may_end() or (nap_s is None and failures):
                        break
                    left_s = min(left_s, LINGER_S)
                self._notified.wait(left_s if nap_s is None else min(left_s, nap_s))
            self._notified.clear()
            if not self._stopping.is_set():
                self._stopping.wait(LINGER_S)
            try:
                self._flush()
                if time.monotonic() >= extend_at:
                    self._extend_leases()
                    extend_at = time.monotonic() + self._extend_every_s
                failures = 0
            except Exception as error:  # whatever it is, ends must be sent when it is over
                failures += 1
                if isinstance(error, StoreError):
                    logger.debug("the store does not answer: %s", error)
                else:
                    logger.exception("The settler thread of a job store met an error; it goes on")
                if self._stopping.is_set() and failures > TRIES_AT_END:
                    break
                self._stopping.wait(RETRY_S)
        self._then()
