"""An operation waits until it can be completed, or until it expires. It is never completed twice.

This is Kafka's `DelayedOperation` in its current form. A thread that changes the condition of an operation tries it,
which means that it calls `try_complete`. The timer completes the operation at its timeout. The first thread that
completes the operation runs `on_complete`. All other threads find it completed.

    waiting ── try_complete is True ────► SATISFIED ─┐
            ── force_complete ──────────► FORCED ────┼─► on_complete, once ─► (EXPIRED only) on_expiration
            ── run, by the timer ───────► EXPIRED ───┘

Locks. `try_complete` runs under the operation's lock, so two threads never try one operation at the same time. The
second thread waits: if it gave up instead, a completion could be missed. `on_complete` and `on_expiration` run after
the lock was released, unlike Kafka's. So the locks that they take cannot deadlock with the operation's lock, unless the
caller holds that lock too. The remaining rule is in the docstring of `wheel_sched.purgatory`.

Threads: any thread may call any method. Cost: an operation makes one object, its lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any, Final, Protocol

from wheel_sched.errors import Rejected


class Completion(Enum):
    """Why an operation is completed: a successful try, force (`force_complete` or `Purgatory.close`), or its timeout.

    A `force_complete` inside `try_complete` counts as a successful try.
    """

    SATISFIED = "satisfied"
    FORCED = "forced"
    EXPIRED = "expired"


# Globals, because looking a member up on an Enum class costs as much as a dict insert.
_SATISFIED: Final = Completion.SATISFIED
_FORCED: Final = Completion.FORCED
_EXPIRED: Final = Completion.EXPIRED

_IDLE: Final = 0
_TRYING: Final = 1  # the thread that holds the lock runs `try_complete`
_FINISHED: Final = 2  # on_complete has returned
_TAKEN: Final = 3  # removed by `cancel_for_key`: only `force_complete` completes it

_RLock: Final = threading.RLock


class WatchingPurgatory(Protocol):
    """The part of a purgatory that its operations use."""

    # An operation that is completed leaves its lists and then calls one of these, which counts it.
    ended_at_once: Callable[[], object]
    ended_by_force: Callable[[], object]
    ended_by_try: Callable[[], object]

    def expired(self, handle: Any) -> None:
        """Called when an operation has expired. `handle` is its entry in the timer."""
        ...

    def emptied(self, operation: DelayedOperation) -> None:
        """Called when the operation has left its lists and some of them are empty."""
        ...


class Lock(Protocol):
    """A reentrant lock, such as `threading.RLock`."""

    def acquire(self) -> Any:
        """Wait for the lock, and take it."""
        ...

    def release(self) -> Any:
        """Release the lock."""
        ...


class DelayedOperation:
    """An operation that waits. Override `try_complete` and `on_complete`, and perhaps `on_expiration`.

    Watcher lists compare operations by identity: do not override `__eq__` or `__hash__`.

    Args:
        timeout_ms: how long the operation may wait once it is watched. With 0 or less it expires at once.
        lock: `try_complete` runs under it. If a lock of the caller already guards the condition, pass that lock; it
            must be reentrant. Defaults to a new lock.

    Raises:
        Rejected: `timeout_ms` is not an int.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_ended",
        "_handle",
        "_keys",
        "_lists",
        "_lock",
        "_phase",
        "_purgatory",
        "timeout_ms",
    )

    # The purgatory sets these when it watches the operation. `__init__` does not: three stores would double its cost.
    _keys: tuple[Any, ...]
    _lists: Any
    _handle: Any

    def __init__(self, timeout_ms: int, *, lock: Lock | None = None) -> None:
        if type(timeout_ms) is not int:
            raise Rejected(f"expected timeout_ms to be an int (milliseconds), got: {timeout_ms!r}; nothing was made")
        self.timeout_ms = timeout_ms
        self._lock: Lock = _RLock() if lock is None else lock
        self._ended: Completion | None = None
        self._phase = _IDLE
        self._purgatory: WatchingPurgatory | None = None  # the purgatory that watches this operation
        self._callbacks: list[Callable[[Completion], object]] | None = None

    # -- for subclasses

    def try_complete(self) -> bool:
        """Whether the operation can be completed now. Called under its lock. The result True completes the operation.

        If this method calls `force_complete`, the operation is completed too, and the result does not matter.
        """
        raise NotImplementedError(f"{type(self).__name__} has no condition: override try_complete")

    def on_complete(self) -> None:
        """Called once, after the operation was completed. Its lock is released, unless the caller holds it too."""
        raise NotImplementedError(f"{type(self).__name__} has no completion: override on_complete")

    def on_expiration(self) -> None:
        """Called after `on_complete`, unless this raised, when the timer has completed the operation. Does nothing."""

    # -- for all callers; `lock.acquire` and `release`, because `with` costs twice as much

    @property
    def completion(self) -> Completion | None:
        """Why the operation is completed; None while it waits."""
        return self._ended

    @property
    def is_completed(self) -> bool:
        """Whether the operation is completed. `on_complete` may still be running."""
        return self._ended is not None

    def force_complete(self) -> bool:
        """Complete the operation without a try. Returns True to the one caller that has completed it."""
        if self._ended is not None:
            return False
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is not None:
                return False
            if self._phase is _TRYING:  # `try_complete` made this call; the operation is finished without the lock
                self._ended = _SATISFIED
                return True
            self._ended = _FORCED
        finally:
            lock.release()
        self._finish(_FORCED)
        return True

    def run(self) -> None:
        """Expire the operation. The timer calls this. No effect on an operation that is completed or not watched."""
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is not None or self._purgatory is None:
                return
            self._ended = _EXPIRED
            if self._phase is _TRYING:  # `try_complete` has advanced a virtual clock; its caller finishes the operation
                return
        finally:
            lock.release()
        self._finish(_EXPIRED)

    def safe_try_complete(self) -> bool:
        """Wait for the operation's lock and try the operation. Returns True to the one caller that has completed it."""
        if self._ended is not None:
            return False
        ended: Completion | None = None
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is None and self._phase is _IDLE:
                self._phase = _TRYING
                try:
                    if self.try_complete():
                        self._ended = _SATISFIED
                finally:
                    self._phase = _IDLE
                    ended = self._ended
        finally:  # `ended` is also set when `try_complete` completed the operation and then raised
            lock.release()
            if ended is not None:
                self._finish(ended)
        return ended is not None

    def safe_try_complete_or_else(self, action: Callable[[], object]) -> bool:
        """Try the operation.

        If the operation is not completed, call `action` and try again, all under the operation's lock.

        Returns whether this call has completed the operation.
        """
        ended: Completion | None = None
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is None and self._phase is _IDLE:
                self._phase = _TRYING
                try:
                    if self.try_complete():
                        self._ended = _SATISFIED
                    elif self._ended is None:
                        action()
                        if self.try_complete():
                            self._ended = _SATISFIED
                finally:
                    self._phase = _IDLE
                    ended = self._ended
        finally:
            lock.release()
            if ended is not None:
                self._finish(ended)
        return ended is not None

    def when_completed(self, callback: Callable[[Completion], object]) -> None:
        """Call `callback(completion)` once, after `on_complete`; at once if `on_complete` has run already."""
        self._lock.acquire()
        try:
            callbacks = self._callbacks
            if callbacks is None:
                callbacks = self._callbacks = []
            callbacks.append(callback)
        finally:
            self._lock.release()
        # The thread that completes it sets the phase and then reads the list. This thread writes the list and then
        # reads the phase. So at least one of them sees the callback, and `pop` gives it to only one.
        if self._phase is _FINISHED:
            self._call_back(callbacks)

    def wait(self, timeout_s: float | None = None) -> Completion | None:
        """Block until `on_complete` has run. Returns the `Completion`; None after `timeout_s` real seconds."""
        done = threading.Event()

        def notify(_: Completion) -> None:
            done.set()

        self.when_completed(notify)
        if done.wait(timeout_s):
            return self._ended
        self._withdraw(notify)
        return None

    @property
    def completed(self) -> Completed:
        """An awaitable for any event loop. It waits until `on_complete` has run, and returns the `Completion`."""
        return Completed(self)

    def __repr__(self) -> str:
        state = "waiting" if self._ended is None else self._ended.value
        return f"<{type(self).__name__} {state} timeout={self.timeout_ms}ms>"

    # -- inside

    def _finish(self, ended: Completion) -> None:
        """Leave the purgatory and run the callbacks. Only the thread that has completed the operation calls this."""
        purgatory = self._purgatory
        if purgatory is not None:
            emptied = False
            for watchers in self._lists:
                try:
                    del watchers[self]
                except KeyError:  # the caller gave a key twice
                    continue
                if not watchers:
                    emptied = True
            if emptied:
                purgatory.emptied(self)
            handle = self._handle
            self._purgatory = self._lists = self._handle = None
            if handle is None:
                purgatory.ended_at_once()
            elif ended is _FORCED:
                purgatory.ended_by_force()
                handle.cancel()
            elif ended is _SATISFIED:
                purgatory.ended_by_try()
                handle.cancel()
            else:
                purgatory.expired(handle)
        try:
            self.on_complete()
            if ended is _EXPIRED:
                self.on_expiration()
        finally:
            self._phase = _FINISHED
            if self._callbacks is not None:
                self._call_back(self._callbacks)

    def _call_back(self, callbacks: list[Callable[[Completion], object]]) -> None:
        """Call all callbacks, because each may end a wait. Then raise the first error."""
        ended = self._ended
        problem: BaseException | None = None
        while callbacks and ended is not None:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread took the last one
                break
            try:
                callback(ended)
            except BaseException as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _withdraw(self, callback: Callable[[Completion], object]) -> None:
        """Forget a callback, because the caller that passed it no longer waits for the operation."""
        self._lock.acquire()
        try:
            if self._callbacks is not None:
                self._callbacks.remove(callback)
        except ValueError:  # another thread is calling it
            pass
        finally:
            self._lock.release()


class Completed:
    """An awaitable that ends when an operation is completed; see `DelayedOperation.completed`."""

    __slots__ = ("_operation",)

    def __init__(self, operation: DelayedOperation) -> None:
        self._operation = operation

    def __await__(self) -> Generator[Any, None, Completion]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()

        def set_result(ended: Completion) -> None:
            if not future.done():
                future.set_result(ended)

        def notify(ended: Completion) -> None:
            try:
                loop.call_soon_threadsafe(set_result, ended)
            except RuntimeError:
                if not loop.is_closed():  # in a closed loop no task waits any more
                    raise

        self._operation.when_completed(notify)
        try:
            return (yield from future.__await__())
        except BaseException:
            self._operation._withdraw(notify)
            raise
