"""The keeper: the thread that tells the store how fires ended, extends leases, and the one that hears of earlier jobs.

A pass of the scheduler carries ends along with its claim; the keeper is for the time when there is no pass. It lingers
for a moment, so that many ends make one round trip. It is also who opens the store: a scheduler's start waits for that
no longer than a moment, for it may run on an event loop; one that is away, or does not answer, is waited for here.
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

LINGER_S = 0.01  # what has ended waits so long for company, or for the scheduler's next pass
BLOCK_MS = 20_000  # of a read on the markers; it comes back at once when there is something
RETRY_S = 0.5
OPEN_AT_ONCE_S = 1.0  # so long a start waits for a server to answer; a healthy one takes some milliseconds
OPEN_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between two tries to open the store
TRIES_AT_END = 3
PATIENCE_S = 5.0  # how long `stop` waits for the last words
UNOPENED_PATIENCE_S = 0.2  # the same, where there is no store that could be told any

logger = logger_of("wheel_sched.apscheduler")


class Keeper:
    """See the module.

    Args:
        store: the store whose markers are heard, opened if need be.
        flush: tells the store what there is to tell.
        beat: extends leases.
        nap_s: how long nothing is to be told; None = until `look`.
        heard: called with the due of an earlier job, from the listener's thread.
        opened: called when a store that was away at the start is there, from the keeper's thread; again if it raises.
        beat_every_s: between two heartbeats.
        patient: whether `start` waits for as long as opening takes. Defaults to False.
    """

    def __init__(
        self,
        store: Callable[[], DelayStore],
        flush: Callable[[], None],
        beat: Callable[[], None],
        nap_s: Callable[[], float | None],
        heard: Callable[[int], None],
        opened: Callable[[], None],
        beat_every_s: float,
        *,
        patient: bool = False,
    ) -> None:
        self._store, self._heard, self._opened = store, heard, opened
        self._flush, self._beat, self._nap_s = flush, beat, nap_s
        self._beat_every_s = beat_every_s
        self._patient = patient
        self._looked = threading.Event()
        self._tried = threading.Event()  # to open the store, for the first time
        self._trying = threading.Lock()
        self._left = False  # start has gone on without an answer
        self._refusal: Exception | None = None
        self._stopping = threading.Event()
        self._may_end: Callable[[], bool] = lambda: True
        self._then: Callable[[], None] = lambda: None
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._keep, name="wheel-sched-keeper", daemon=True)

    def start(self) -> None:
        """Start both threads; that of the listener later, if the store is away or does not answer soon.

        Raises:
            StoreError, ConfigError: the store is there and cannot be used.
        """
        self._thread.start()
        if not self._tried.wait(None if self._patient else OPEN_AT_ONCE_S):
            with self._trying:
                self._left = not self._tried.is_set()
        if self._left:
            logger.warning("The store does not answer yet; jobs run when it does")
        elif self._refusal is not None:
            raise self._refusal

    def _open_first(self) -> bool:
        """Try to open the store, for `start`; whether there is something to wait for or to keep."""
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
        heard = self._heard
        self._listener = Listener(
            store.backend,
            marks,
            lambda _, mark: heard(mark.due_ms or 0),  # one that does not say: look
            lambda _: heard(0),  # the connection was lost: look whether something was missed
            BLOCK_MS,
        )
        self._listener.start()

    def _wait_for_store(self) -> None:
        """Until it is open, or we are to stop."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._listener is None:
                    self._listen()
                self._opened()
            except Exception as error:  # what is wrong may be mended meanwhile, whatever it is
                transient = isinstance(error, StoreError) and error.transient
                logger.log(logging.DEBUG if transient else logging.ERROR, "The store cannot be opened yet: %s", error)
                self._stopping.wait(OPEN_AGAIN_S[min(failures, len(OPEN_AGAIN_S) - 1)])
                failures += 1
                continue
            logger.info("The store is there; jobs run")
            break
        if self._stopping.is_set() and self._listener is not None:
            self._listener.stop()

    def look(self) -> None:
        """There may be something to tell. Any thread, never blocks."""
        if not self._looked.is_set():
            self._looked.set()

    def stop(self, *, until: Callable[[], bool], then: Callable[[], None]) -> None:
        """End when `until` holds and everything is told, then call `then`; waits for it unless something still runs."""
        self._may_end, self._then = until, then
        self._stopping.set()
        if self._listener is not None:
            self._listener.stop()
        self._looked.set()
        if until() and self._thread is not threading.current_thread():
            self._thread.join(UNOPENED_PATIENCE_S if self._listener is None else PATIENCE_S)

    def _keep(self) -> None:
        if not self._open_first():
            return
        beat_at = time.monotonic() + self._beat_every_s
        failures = 0
        while True:
            nap_s = self._nap_s()
            left_s = max(0.0, beat_at - time.monotonic())
            if nap_s is None or nap_s > 0:
                if self._stopping.is_set():
                    if self._may_end() or (nap_s is None and failures):
                        break
                    left_s = min(left_s, LINGER_S)
                self._looked.wait(left_s if nap_s is None else min(left_s, nap_s))
            self._looked.clear()
            if not self._stopping.is_set():
                self._stopping.wait(LINGER_S)
            try:
                self._flush()
                if time.monotonic() >= beat_at:
                    self._beat()
                    beat_at = time.monotonic() + self._beat_every_s
                failures = 0
            except Exception as error:  # whatever it is, ends must be told when it is over
                failures += 1
                if isinstance(error, StoreError):
                    logger.debug("the store does not answer: %s", error)
                else:
                    logger.exception("the keeper of a job store met an error; it goes on")
                if self._stopping.is_set() and failures > TRIES_AT_END:
                    break
                self._stopping.wait(RETRY_S)
        self._then()
