"""An operation that waits until it can be completed, or until its time is up. It is completed exactly once.

Kafka's `DelayedOperation` in its current form: whoever makes an operation's condition true tries it, the timer forces
it, and whichever comes first runs `on_complete`; the others find it completed and go their way.

    waiting ── try_complete said True ──► SATISFIED ─┐
            ── force_complete ──────────► FORCED ────┼─► on_complete, once ─► (EXPIRED only) on_expiration
            ── run, by the timer ───────► EXPIRED ───┘

Locks. `try_complete` runs under the operation's lock, so two threads never try one operation at the same time, and
who comes second waits instead of giving up (a try that is skipped under contention is a completion that is missed).
`on_complete` and `on_expiration` run after the lock has been released, which Kafka's do not: what they take cannot
close a circle with this lock. What remains to be observed is in `wheel_sched.purgatory`'s docstring.

Threads: everything may be called from any thread. Cost: no object but the lock is made per operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    import asyncio


class Completion(Enum):
    """Who completed an operation: a successful try, a caller of `force_complete`, or the timer."""

    SATISFIED = "satisfied"
    FORCED = "forced"
    EXPIRED = "expired"


# Globals, because looking a member up on an Enum class costs as much as a dict insert.
_SATISFIED: Final = Completion.SATISFIED
_FORCED: Final = Completion.FORCED
_EXPIRED: Final = Completion.EXPIRED

_IDLE: Final = 0
_TRYING: Final = 1  # in the thread that holds the lock
_FINISHED: Final = 2  # on_complete has returned
_TAKEN: Final = 3  # taken away by `cancel_for_key`: nothing but force_complete completes it

_RLock: Final = threading.RLock


class Place(Protocol):
    """Where an operation is watched."""

    # Counters, called when an operation has left its lists.
    ended_at_once: Callable[[], object]
    ended_by_force: Callable[[], object]
    ended_by_try: Callable[[], object]

    def expired(self, handle: Any) -> None:
        """Its time was up; `handle` is its timer."""
        ...

    def emptied(self, operation: DelayedOperation) -> None:
        """It was the last in some of its lists."""
        ...


class Lock(Protocol):
    """A reentrant lock, as `threading.RLock` is one."""

    def acquire(self) -> Any:
        """Take it, waiting for it."""
        ...

    def release(self) -> Any:
        """Give it back."""
        ...


class DelayedOperation:
    """What waits. Override `try_complete` and `on_complete`, and `on_expiration` if an expiry is news.

    Watcher lists tell operations apart by identity: leave `__eq__` and `__hash__` as they are.

    Args:
        timeout_ms: how long it may wait once it is watched; 0 or less: it expires at once.
        lock: what `try_complete` runs under, where its condition is already guarded by a lock of the caller's: then it
            must be that one, and reentrant. Defaults to a lock of its own.

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
        "_place",
        "timeout_ms",
    )

    # Set by the place when it is watched; unset before, for a store is half of what making an object costs.
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
        self._place: Place | None = None  # where it is watched
        self._callbacks: list[Callable[[Completion], object]] | None = None

    # -- for subclasses

    def try_complete(self) -> bool:
        """Whether the operation can be completed now; called under its lock. True completes it.

        `force_complete` called in here completes it as well, whatever is answered then.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say when it is complete: override try_complete")

    def on_complete(self) -> None:
        """What happens once, when the operation has been completed; under no lock of its own."""
        raise NotImplementedError(f"{type(self).__name__} does not say what follows: override on_complete")

    def on_expiration(self) -> None:
        """What happens after `on_complete` when it was the timer that completed the operation. Defaults to nothing."""

    # -- for everybody; lock.acquire and release instead of `with`, which costs twice as much

    @property
    def completion(self) -> Completion | None:
        """Who completed it; None while it waits."""
        return self._ended

    @property
    def is_completed(self) -> bool:
        """Whether it is completed; `on_complete` may still be running then."""
        return self._ended is not None

    def force_complete(self) -> bool:
        """Complete it whatever `try_complete` would say. True for the one caller that did."""
        if self._ended is not None:
            return False
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is not None:
                return False
            if self._phase is _TRYING:  # called by try_complete itself: who tries goes on when the lock is free
                self._ended = _SATISFIED
                return True
            self._ended = _FORCED
        finally:
            lock.release()
        self._finish(_FORCED)
        return True

    def run(self) -> None:
        """Its time is up: what the timer calls. Without effect on an operation that is not watched (any more)."""
        lock = self._lock
        lock.acquire()
        try:
            if self._ended is not None or self._place is None:
                return
            self._ended = _EXPIRED
            if self._phase is _TRYING:  # as above: time was moved on by try_complete itself
                return
        finally:
            lock.release()
        self._finish(_EXPIRED)

    def safe_try_complete(self) -> bool:
        """Try it under its lock, waiting for that. True for the one caller that completed it."""
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
        finally:  # `ended` also when try_complete has completed it and then failed
            lock.release()
            if ended is not None:
                self._finish(ended)
        return ended is not None

    def safe_try_complete_or_else(self, action: Callable[[], object]) -> bool:
        """Try it; if that fails, do `action` and try again, all under its lock. Whether this call completed it."""
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
        """Have `callback` called once, after `on_complete`, with who completed it; at once if that is past."""
        self._lock.acquire()
        try:
            callbacks = self._callbacks
            if callbacks is None:
                callbacks = self._callbacks = []
            callbacks.append(callback)
        finally:
            self._lock.release()
        # The finisher sets the phase and then looks at the list; this looks the other way round, so one of both sees
        # the callback, and a pop hands it to one.
        if self._phase is _FINISHED:
            self._call_back(callbacks)

    def wait(self, timeout_s: float | None = None) -> Completion | None:
        """Block until `on_complete` has run; who completed it, None when `timeout_s` (real seconds) were over."""
        done = threading.Event()

        def tell(_: Completion) -> None:
            done.set()

        self.when_completed(tell)
        if done.wait(timeout_s):
            return self._ended
        self._withdraw(tell)
        return None

    @property
    def completed(self) -> Completed:
        """`await operation.completed`: until `on_complete` has run, in any loop; answers who completed it."""
        return Completed(self)

    def __repr__(self) -> str:
        state = "waiting" if self._ended is None else self._ended.value
        return f"<{type(self).__name__} {state} timeout={self.timeout_ms}ms>"

    # -- inside

    def _finish(self, ended: Completion) -> None:
        """What follows on completion; called by the one thread that completed it."""
        place = self._place
        if place is not None:
            emptied = False
            for watchers in self._lists:
                try:
                    del watchers[self]
                except KeyError:  # a key was given twice
                    continue
                if not watchers:
                    emptied = True
            if emptied:
                place.emptied(self)
            handle = self._handle
            self._place = self._lists = self._handle = None
            if handle is None:
                place.ended_at_once()
            elif ended is _FORCED:
                place.ended_by_force()
                handle.cancel()
            elif ended is _SATISFIED:
                place.ended_by_try()
                handle.cancel()
            else:
                place.expired(handle)
        try:
            self.on_complete()
            if ended is _EXPIRED:
                self.on_expiration()
        finally:
            self._phase = _FINISHED
            if self._callbacks is not None:
                self._call_back(self._callbacks)

    def _call_back(self, callbacks: list[Callable[[Completion], object]]) -> None:
        """Call all of them, for somebody may be blocked until his is; then raise what the first that failed raised."""
        ended = self._ended
        problem: BaseException | None = None
        while callbacks and ended is not None:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread was quicker
                break
            try:
                callback(ended)
            except BaseException as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _withdraw(self, callback: Callable[[Completion], object]) -> None:
        """Forget a callback of somebody who waits no more."""
        self._lock.acquire()
        try:
            if self._callbacks is not None:
                self._callbacks.remove(callback)
        except ValueError:  # it is being called
            pass
        finally:
            self._lock.release()


class Completed:
    """The awaitable of `DelayedOperation.completed`."""

    __slots__ = ("_operation",)

    def __init__(self, operation: DelayedOperation) -> None:
        self._operation = operation

    def __await__(self) -> Generator[Any, None, Completion]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()

        def tell(ended: Completion) -> None:
            if not future.done():
                future.set_result(ended)

        def told(ended: Completion) -> None:
            try:
                loop.call_soon_threadsafe(tell, ended)
            except RuntimeError:
                if not loop.is_closed():  # if it is, nobody waits in it any more
                    raise

        self._operation.when_completed(told)
        try:
            return (yield from future.__await__())
        except BaseException:
            self._operation._withdraw(told)
            raise
