"""A jobstore's connection to its delay store, and the two threads of a jobstore that has a scheduler.

The connection opens the store at the first use. Between two claims, `now_ms` estimates the server's time. Most parts of
a jobstore log to `StoreConnection.logger`, so that their lines have the alias of the jobstore. The threads do not.

*The settler* thread reports ended occurrences to the store. A pass of the scheduler does this together with its claim;
the settler does it between two passes. The settler waits a moment first, so that one round trip reports many ends. It
also extends leases. *The listener* thread learns of jobs that other processes have made due earlier.

The settler also opens the store. A scheduler's `start` may run on an event loop, so it waits only a moment for a server
that is not embedded. If the store does not answer by then, the settler continues to wait for it.

Threads: any thread may call any method.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from wheel_sched.dispatcher.listener import Listener
from wheel_sched.errors import NamespaceMismatch, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore, open_store
from wheel_sched.store.core.call import Call
from wheel_sched_apscheduler.stores.fair_jobs import FairJobs

LINGER_S = 0.01  # how long the report of an end waits for further ends, or for the scheduler's next pass
BLOCK_MS = 20_000  # how long a read waits for a marker; it returns at once when there is one
RETRY_S = 0.5
RETRY_AT_END_S = 0.1  # short, because a user waits for this thread to end
OPEN_AT_ONCE_S = 1.0  # how long a start waits for a server to answer; a healthy one takes some milliseconds
OPEN_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # pauses between two tries to open the store
PATIENCE_S = 5.0  # at the end, the settler tries a store that does not answer for this time, and `stop` waits as long
UNOPENED_PATIENCE_S = 0.2  # the same for a store that was never opened

logger = logger_of("wheel_sched.apscheduler")


class StoreConnection:
    """A jobstore's connection to its delay store, opened at the first use.

    Args:
        target: URL or client of the server.
        options: the other arguments of `open_store`: namespace, shards, durability, replicas.
        store: an open store to use instead of `target`. `close` does not close it. Defaults to None.
        fair: how due jobs are shared. Defaults to None: the store decides.
    """

    def __init__(
        self,
        target: Any,
        options: Mapping[str, Any],
        store: DelayStore | None = None,
        fair: FairJobs | None = None,
    ) -> None:
        self.target = target
        self.options = dict(options)
        self.shards: int = self.options["shards"] if store is None else store.shards
        self.fair = fair
        self.logger: Any = logging.getLogger("apscheduler.jobstores")
        self._store = store
        self._owns_store = store is None
        self._opening = threading.Lock()
        self._server_ahead_ms = 0

    @property
    def store(self) -> DelayStore:
        """The delay store, opened on first use.

        Raises:
            StoreError: the server is away, too old, or holds the namespace with other settings.
            ConfigError: the target or an option is wrong.
        """
        if self._store is None:
            with self._opening:
                if self._store is None:
                    opened = open_store(self.target, **self.options)
                    self._store = SelfRestoringStore(opened.backend, shards=opened.shards)
                    self._store.fair = self.fair
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    @property
    def embedded(self) -> bool:
        """Whether the store is a server over a folder of this machine."""
        return isinstance(self.target, str) and self.target.startswith("embedded:")

    def now_ms(self) -> int:
        """The server's time in ms since 1970, estimated from its last answer to a claim. No I/O.

        Before the first claim: this machine's time.
        """
        return time.time_ns() // 1_000_000 + self._server_ahead_ms

    def both_clocks_ms(self) -> int:
        """The earlier of this machine's time and the server's, in ms since 1970. It decides which jobs are due."""
        return time.time_ns() // 1_000_000 + min(self._server_ahead_ms, 0)

    def note_server_time(self, server_ms: int, local_ms: int) -> None:
        """Remember by how much the server's clock is ahead of this machine's clock."""
        self._server_ahead_ms = server_ms - local_ms

    def close(self) -> None:
        """Close the store if this connection has opened it. Idempotent."""
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None


class SelfRestoringStore(DelayStore):
    """A delay store that works again after FLUSHALL. The jobs are lost, but the scheduler continues.

    When the namespace is gone, this store creates it again, empty, and repeats the calls that failed for that reason.
    It checks shard 0 first. If shard 0 exists with other settings, the store creates nothing and returns the errors.

    Attributes:
        fair: how due jobs are shared, written into a namespace that was created again. None: nothing is written.
    """

    fair: FairJobs | None = None

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Do what `DelayStore.execute` does. Also repeats calls after it has created a lost namespace again."""
        answers = super().execute(calls)
        refused = [at for at, answer in enumerate(answers) if _says_absent(answer)]
        if refused:
            try:
                created = DelayStore(self.backend, shards=self.shards)
                created.open()
                if self.fair is not None:
                    self.fair.write_to(created)
            except StoreError:
                return answers
            logger.warning("The namespace was gone (was the server flushed?); the store has created it again, empty")
            for at, again in zip(refused, super().execute([calls[at] for at in refused]), strict=True):
                answers[at] = again
        return answers


def _says_absent(answer: Any) -> bool:
    """Whether the answer says that the namespace does not exist. A frozen namespace has another error code."""
    return isinstance(answer, NamespaceMismatch) and str(answer).startswith("WSABSENT")


class OccurrenceSettler:
    """The settler thread and the listener thread of a jobstore.

    The settler reports ended occurrences to the store and extends leases. The listener waits for markers of the store,
    which tell that a job is due earlier.

    Args:
        connection: the connection to the store.
        flush: sends all pending reports to the store.
        extend_leases: extends the leases of running jobs.
        next_s: returns after how many seconds there is something to send; None = not before the next `notify`.
        earlier_due: called with the due time of an earlier job, from the listener's thread.
        opened: called by the settler at the store's first answer, if that comes after `start`. If it raises, it is
            called again.
        extend_every_s: seconds between two calls of `extend_leases`.
    """

    def __init__(
        self,
        connection: StoreConnection,
        *,
        flush: Callable[[], None],
        extend_leases: Callable[[], None],
        next_s: Callable[[], float | None],
        earlier_due: Callable[[int], None],
        opened: Callable[[], None],
        extend_every_s: float,
    ) -> None:
        self._connection, self._earlier_due, self._opened = connection, earlier_due, opened
        self._flush, self._extend_leases, self._next_s = flush, extend_leases, next_s
        self._extend_every_s = extend_every_s
        self._retry_s = min(RETRY_S, extend_every_s / 4)  # a short lease, too, lasts for several tries
        self._notified = threading.Event()
        self._first_try: Future[None] = Future()  # the first try to open the store; cancelled: `start` did not wait
        self._stopping = threading.Event()
        self._may_end: Callable[[], bool] = lambda: True
        self._runs: Callable[[], bool] = lambda: False
        self._then: Callable[[], None] = lambda: None
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="wheel-sched-settler", daemon=True)

    def start(self) -> None:
        """Start the settler thread, which opens the store and then starts the listener thread.

        Waits for the end of the first try to open the store, at most `OPEN_AT_ONCE_S` seconds; for an embedded server
        without a limit. If the store does not answer, the settler continues to try, and starts the listener later.

        Raises:
            StoreError, ConfigError: the store answers but cannot be used.
        """
        self._thread.start()
        # an embedded server takes as long as it takes to start, and has no network that hangs
        wait([self._first_try], None if self._connection.embedded else OPEN_AT_ONCE_S)
        if self._first_try.cancel():
            logger.warning("The store does not answer yet; jobs run when it does")
        else:
            self._first_try.result()

    def _open_first(self) -> bool:
        """Try to open the store, for `start`. Returns whether the store can be used, now or later."""
        error: Exception | None = None
        try:
            self._listen()
        except Exception as each:
            error = each
        in_time = self._first_try.set_running_or_notify_cancel()
        if in_time and error is not None:
            if not isinstance(error, StoreError) or not error.transient:
                self._first_try.set_exception(error)
                return False
            logger.warning("The store does not answer yet; jobs run when it does: %s", error)
        if in_time:
            self._first_try.set_result(None)
        if not in_time or error is not None:
            self._wait_for_store()
        return True

    def _listen(self) -> None:
        store = self._connection.store
        if self._connection.fair is not None:
            self._connection.fair.write_to(store)
        marks = {window.shard: window.mark for window in store.windows(0, 0)}
        earlier_due = self._earlier_due
        self._listener = Listener(
            store.backend,
            marks,
            lambda _, mark: earlier_due(mark.due_ms or 0),  # a marker without a due time: claim now
            lambda _: earlier_due(0),  # the connection was lost and a marker may be missed: claim now
            BLOCK_MS,
        )
        self._listener.start()

    def _wait_for_store(self) -> None:
        """Return when the store is open, or this thread must stop."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._listener is None:
                    self._listen()
                self._opened()
            except Exception as error:  # a person may repair the cause of any error
                transient = isinstance(error, StoreError) and error.transient
                logger.log(logging.DEBUG if transient else logging.ERROR, "The store cannot be opened yet: %s", error)
                self._stopping.wait(OPEN_AGAIN_S[min(failures, len(OPEN_AGAIN_S) - 1)])
                failures += 1
                continue
            logger.info("The store answers; jobs run")
            break
        if self._stopping.is_set() and self._listener is not None:
            self._listener.stop()

    def notify(self) -> None:
        """Tell the settler that there may be something to send. Any thread may call it. It never blocks."""
        if not self._notified.is_set():
            self._notified.set()

    def stop(self, *, until: Callable[[], bool], runs: Callable[[], bool], then: Callable[[], None]) -> None:
        """Let the settler end and then call `then`.

        The settler ends when all reports are sent and, in addition, `until()` is true or no job runs.

        If `runs()` says that a job still runs, this method returns at once. Otherwise it waits for the settler, for
        at most `PATIENCE_S` seconds, or `UNOPENED_PATIENCE_S` if the store was never opened. If the store does not
        answer for `PATIENCE_S` while no job runs, the settler ends without sending the other reports.
        """
        self._may_end, self._runs, self._then = until, runs, then
        self._stopping.set()
        if self._listener is not None:
            self._listener.stop()
        self._notified.set()
        if not runs() and self._thread is not threading.current_thread():
            self._thread.join(UNOPENED_PATIENCE_S if self._listener is None else PATIENCE_S)

    def _run(self) -> None:
        if not self._open_first():
            return
        extend_at = time.monotonic() + self._extend_every_s
        ending = False
        give_up_at: float | None = None
        while True:
            nap_s = self._next_s()
            left_s = max(0.0, extend_at - time.monotonic())
            if nap_s is None or nap_s > 0:
                if self._stopping.is_set():
                    if self._may_end() or (nap_s is None and not self._runs()):
                        break
                    left_s = min(left_s, LINGER_S)
                self._notified.wait(left_s if nap_s is None else min(left_s, nap_s))
            self._notified.clear()
            if self._stopping.wait(LINGER_S):
                if ending:  # something is left from the round before
                    time.sleep(LINGER_S)
                ending = True
            try:
                self._flush()
                if time.monotonic() >= extend_at:
                    self._extend_leases()
                    extend_at = time.monotonic() + self._extend_every_s
                give_up_at = None
            except Exception as error:  # after any error, the ends must be sent later
                if isinstance(error, StoreError):
                    logger.debug("The store does not answer: %s", error)
                else:
                    logger.exception("The settler thread of a job store met an error; it tries again")
                if self._stopping.wait(self._retry_s):
                    now_s = time.monotonic()
                    if self._runs():
                        give_up_at = None
                    elif give_up_at is None:
                        give_up_at = now_s + PATIENCE_S
                    elif now_s >= give_up_at:
                        break
                    time.sleep(RETRY_AT_END_S)
        self._then()
