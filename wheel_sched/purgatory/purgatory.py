"""The purgatory: operations wait under keys, each until it can be completed, or until it expires.

This is Kafka's `DelayedOperationPurgatory`. After a thread has changed what the operations of a key wait for, it
calls `check_and_complete(key)`. So the purgatory neither polls nor purges.

`try_complete_else_watch` tries an operation, watches it under all its keys, tries it again and only then starts its
timer, all under the operation's lock. The second try makes this safe: it sees each change that came before the
operation was watched. A thread that makes a later change finds the operation in its list, and waits for the lock.

Cost. Watching an operation costs a dict operation per key and one `schedule`. Completing it costs a dict operation per
key and one `cancel`. `check_and_complete` tries the operations under its key only. `stats` adds up all lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory.operation import _TAKEN, _TRYING, Completion, DelayedOperation
from wheel_sched.purgatory.reaper import Handle, Reaper, Timer
from wheel_sched.purgatory.statistics import Lateness, PurgatoryStats, Tally, bucketed
from wheel_sched.purgatory.watchers import WatcherLists

logger = logger_of("wheel_sched.purgatory")

K = TypeVar("K", bound=Hashable)

_SATISFIED: Final = Completion.SATISFIED
_FORCED: Final = Completion.FORCED


class Purgatory(Generic[K]):
    """Operations that wait under keys, each until it is completed or expires.

    Args:
        timer: expires the operations, for example a `SystemTimer`. The caller closes it, after the purgatory. It also
            reports errors in callbacks of expired operations. Defaults to a new `Reaper`, which `close` closes.
        clock: the timer's clock. Defaults to the machine's.
        on_error: called with (operation, error) when an operation raises where no caller could catch it: in
            `check_and_complete`, in `close` and in the `Reaper`. Defaults to a line in the log `wheel_sched.purgatory`.

    Threads: any thread may call any method, also from the callbacks of an operation. If the timer belongs to an event
    loop, only the loop's thread may call them.
    """

    def __init__(
        self,
        timer: Timer | None = None,
        *,
        clock: Clock | None = None,
        on_error: Callable[[DelayedOperation, Exception], object] | None = None,
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._on_error = on_error or _log
        self._reaper: Reaper | None = None
        if timer is None:
            timer = self._reaper = Reaper(on_error=self._expiry_failed, clock=self._clock)
        self._schedule = timer.schedule
        self._lists = WatcherLists()
        self._enter = self._lists.enter
        self._closed = False
        self._at_once_tally, self._armed_tally = Tally(), Tally()
        self._forced_tally, self._satisfied_tally, self._expired_tally = Tally(), Tally(), Tally()
        self._armed = self._armed_tally.add
        self.ended_at_once: Callable[[], object] = self._at_once_tally.add
        self.ended_by_force: Callable[[], object] = self._forced_tally.add
        self.ended_by_try: Callable[[], object] = self._satisfied_tally.add
        self._expired = self._expired_tally.add
        self._cancelled = Tally()
        self._failed = Tally()
        self._lateness = Lateness()

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[K]) -> bool:
        """Complete the operation if possible; otherwise let it wait under `keys`. Returns whether it is completed.

        Raises:
            Rejected: there is no key, `keys` is a str, the purgatory or timer is closed, or the operation is watched
                already or was cancelled; nothing was changed.
            TypeError: a key is not hashable; nothing was changed.
            Exception: `try_complete` has raised it, and the operation was not watched; or `on_complete` has raised it,
                and the operation is completed.
        """
        if type(keys) is not tuple:
            if isinstance(keys, str):
                raise Rejected(f"expected a sequence of keys, got one: {keys!r}; the operation was not watched")
            keys = tuple(keys)
        if not keys:
            raise Rejected("expected at least one key to watch, got none; the operation was not watched")
        if operation._ended is not None:
            return True
        # `safe_try_complete`, the watching and the second try are inline: the calls would cost as much as the work.
        ended: Completion | None = None
        lock = operation._lock
        lock.acquire()
        try:
            if operation._ended is not None:
                return True
            if operation._purgatory is not None or operation._phase:
                raise Rejected(f"{operation!r} is watched already, or was cancelled; nothing was changed")
            operation._phase = _TRYING
            try:
                if operation.try_complete():
                    operation._ended = _SATISFIED
                elif operation._ended is None:
                    operation._lists = self._enter(keys, operation)
                    operation._keys = keys
                    operation._handle = None
                    operation._purgatory = self
                    if self._closed:  # read after `_enter`: `close` sees the operation, or this line sees `close`
                        raise Rejected("the purgatory is closed; the operation was not watched")
                    if operation.try_complete():
                        operation._ended = _SATISFIED
                    elif operation._ended is None:
                        operation._handle = self._schedule(operation.timeout_ms, operation.run)
                        self._armed()
            except BaseException:
                if operation._ended is None and operation._purgatory is not None:
                    self._disconnect(operation)
                raise
            finally:
                operation._phase = 0
                ended = operation._ended
        finally:  # `ended` is also set when `try_complete` completed the operation and then raised
            lock.release()
            if ended is not None:
                if operation._purgatory is None:  # the first try completed it
                    self.ended_at_once()
                operation._finish(ended)
        return ended is not None

    def check_and_complete(self, key: K) -> int:
        """Try the operations under `key` in the order of their arrival. Returns how many this call has completed.

        Call it after every change that may complete one of them, and hold no lock that a `try_complete` takes.
        """
        completed = 0
        for operation in self._lists.watching(key):
            if operation._ended is None:
                try:
                    completed += operation.safe_try_complete()
                except Exception as error:
                    completed += operation._ended is not None
                    self._report(operation, error)
        return completed

    def cancel_for_key(self, key: K) -> list[DelayedOperation]:
        """Remove and return the operations under `key` without completing them. They leave their other keys too.

        Afterwards neither the timer nor a check completes them; only `force_complete` does.
        """
        return [each for each in self._lists.watching(key) if self._cancel(each)]

    def watched(self, key: K | None = None) -> int:
        """The number of entries in all watcher lists, one per operation and key. With a `key`, only its list counts."""
        if key is not None:
            return len(self._lists.watching(key))
        return self._lists.watched()

    @property
    def delayed(self) -> int:
        """How many operations wait for their timer."""
        ended = (self._forced_tally, self._satisfied_tally, self._expired_tally, self._cancelled)
        gone = sum(tally.value for tally in ended)  # first, so that the difference is never too small
        return self._armed_tally.value - gone

    @property
    def stats(self) -> PurgatoryStats:
        """Counters, and the sizes of the lists. The lists may change while they are added up."""
        lateness = self._lateness.by_ms()
        return PurgatoryStats(
            watched=self.watched(),
            keys=len(self._lists),
            delayed=self.delayed,
            satisfied=self._satisfied_tally.value + self._at_once_tally.value,
            forced=self._forced_tally.value,
            expired=self._expired_tally.value,
            cancelled=self._cancelled.value,
            failed=self._failed.value,
            lateness_counts=bucketed(lateness),
            lateness_sum_ms=sum(lateness_ms * count for lateness_ms, count in lateness.items()),
            lateness_max_ms=self._lateness.max_ms,
        )

    def close(self) -> list[DelayedOperation]:
        """Accept no more operations. Completes all waiting operations by force, and returns them. Idempotent.

        Waits for a running callback of the `Reaper`, unless this callback calls `close`. So hold no lock that an
        operation takes.
        `on_error` receives the errors of `on_complete`.
        """
        self._closed = True
        waiting = {operation: None for key in self._lists for operation in self._lists.watching(key)}
        forced = []
        for operation in waiting:
            lock = operation._lock
            lock.acquire()
            try:
                # completed meanwhile, or rejected because the purgatory is closed
                if operation._ended is not None or operation._purgatory is not self:
                    continue
                trying = operation._phase is _TRYING  # the operation's `try_complete` called `close`
                if trying and operation._handle is None:
                    continue  # `try_complete_else_watch` will reject the operation
                operation._ended = _FORCED
            finally:
                lock.release()
            forced.append(operation)
            if trying:
                continue  # the thread that tries the operation finishes it without the lock
            try:
                operation._finish(_FORCED)
            except Exception as error:
                self._report(operation, error)
        if self._reaper is not None:
            self._reaper.close()
        return forced

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<Purgatory{state} watched={self.watched()} delayed={self.delayed}>"

    # -- the operation's side

    def expired(self, handle: Handle) -> None:
        """Count an expired operation and its lateness. `handle` is its entry in the timer."""
        self._expired()
        self._lateness.add(self._clock.monotonic_ms() - handle.deadline_ms)

    def emptied(self, operation: DelayedOperation) -> None:
        """Drop those lists of an operation that are empty now."""
        self._lists.drop(operation._keys, operation._lists)

    def _disconnect(self, operation: DelayedOperation) -> Handle | None:
        """Remove an operation from its lists. Returns its entry in the timer; None if it has none yet."""
        self._lists.leave(operation._keys, operation, operation._lists)
        handle: Handle | None = operation._handle
        operation._purgatory = operation._lists = operation._handle = None
        return handle

    def _cancel(self, operation: DelayedOperation) -> bool:
        """Remove an operation without completing it. Returns False if it is completed or was removed already."""
        lock = operation._lock
        lock.acquire()
        try:
            if operation._ended is not None or operation._purgatory is not self or operation._phase is _TRYING:
                return False
            operation._phase = _TAKEN
            handle = self._disconnect(operation)
        finally:
            lock.release()
        if handle is not None:
            self._cancelled.add()
            handle.cancel()
        return True

    def _report(self, operation: DelayedOperation, error: Exception) -> None:
        self._failed.add()
        try:
            self._on_error(operation, error)
        except Exception:  # the other operations of the key must still be tried
            logger.exception("purgatory.on_error_failed: for %r and %r", operation, error)

    def _expiry_failed(self, callback: Any, error: Exception) -> None:
        self._report(callback.__self__, error)  # the callback is the operation's `run`


def _log(operation: DelayedOperation, error: Exception) -> None:
    logger.error("purgatory.operation_failed: %r", operation, exc_info=error)
