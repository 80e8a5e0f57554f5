"""DelayStore and AsyncDelayStore: the blocking and the asyncio facade of the delay store, over any backend.

Most methods of the two facades are written once, as a plan (see `plans`). `blocking` and `awaited` turn a plan into a
method with the plan's arguments and docstring. The classes of the other capabilities are made in the same way.

The methods raise the errors of `wheel_sched.errors`. After `StoreUnavailable` the outcome may be unknown: repeat
the call with the same `token`, or with the same ids. Within a minute, a repeat with the same token changes nothing more
and gives the first answer (for `claim` see there).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from wheel_sched.errors import InDoubt
from wheel_sched.store.core.call import Call, Plan, SentCalls
from wheel_sched.store.core.items import Marker
from wheel_sched.store.core.levels import opening
from wheel_sched.store.core.plans import Plans

P = ParamSpec("P")
T = TypeVar("T")


class Backend(Protocol):
    """Performs the calls of a `DelayStore`. Stores for other servers implement this."""

    cluster: bool

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls. Returns a value or an exception for each call, in order."""
        ...

    def begin(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> SentCalls:
        """Send one or more calls without waiting, or perform them at once. The result's `answers` gives the answers."""
        ...

    def check_server(self) -> None:
        """Refuse a server that cannot keep the durability level."""
        ...

    def info(self) -> dict[str, Any]:
        """The server's reply to INFO; {} if there is no server, or if it has no such command."""
        ...

    def identity(self) -> tuple[str, int] | None:
        """(run id, database) of a standalone server; None for a cluster, without a server or without its run id."""
        ...

    def waiter(self, shard: int, timeout_ms: int) -> Any:
        """A new connection for `wait_for_mark`."""
        ...

    def wait_for_mark(self, waiter: Any, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """Block until a shard's marker is newer than in `marks`. Returns the newer markers, {} at the timeout.

        A timeout of 0 waits for ever.
        """
        ...

    def interrupt(self, waiter: Any) -> None:
        """Let a `wait_for_mark` that blocks in another thread end at once. It returns, or raises `StoreUnavailable`."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class AsyncBackend(Protocol):
    """Performs the calls of an `AsyncDelayStore`."""

    async def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls. Returns a value or an exception for each call, in order."""
        ...

    async def check_server(self) -> None: ...

    async def close(self) -> None: ...


def values_of(answers: list[Any]) -> list[Any]:
    """Return the answers, or raise the first error among them: `InDoubt` only when there is no other error."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    for error in errors:
        if not isinstance(error, InDoubt):
            raise error
    if errors:
        raise errors[0]
    return answers


class RunsPlans(Protocol):
    """An object that runs plans and blocks until they end. `blocking` makes methods for its class."""

    plans: Plans

    def run(self, plan: Plan[T]) -> T: ...


class AwaitsPlans(Protocol):
    """An object that runs plans on an event loop. `awaited` makes methods for its class."""

    plans: Plans

    async def run(self, plan: Plan[T]) -> T: ...


def blocking(plan: Callable[Concatenate[Plans, P], Plan[T]]) -> Callable[Concatenate[RunsPlans, P], T]:
    """Make a method of a blocking class from a plan. The method runs the plan to its end."""

    @wraps(plan)
    def method(self: RunsPlans, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(plan(self.plans, *args, **kwargs))

    return method


def awaited(
    plan: Callable[Concatenate[Plans, P], Plan[T]],
) -> Callable[Concatenate[AwaitsPlans, P], Coroutine[Any, Any, T]]:
    """Make a method of an asyncio class from a plan. The method runs the plan to its end."""

    @wraps(plan)
    async def method(self: AwaitsPlans, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(plan(self.plans, *args, **kwargs))

    return method


class _Facade:
    """The part that `DelayStore` and `AsyncDelayStore` share."""

    def __init__(self, shards: int, test_clock: Callable[[], int] | None) -> None:
        self.plans = Plans(shards)
        self._test_clock = test_clock

    @property
    def shards(self) -> int:
        return self.plans.shards

    @property
    def ticks(self) -> bool:
        """Whether time passes by itself; False under a test clock."""
        return self._test_clock is None

    def _now_ms(self) -> int | None:
        return None if self._test_clock is None else self._test_clock()


class DelayStore(_Facade):
    """The blocking delay store. It is thread-safe if its backend is, as all backends of this package are.

    Args:
        backend: performs the calls.
        shards: number of shards of the namespace. Defaults to 1.
        test_clock: returns the current time in ms, for a namespace with a test clock. Defaults to None: server time.
    """

    def __init__(self, backend: Backend, *, shards: int = 1, test_clock: Callable[[], int] | None = None) -> None:
        super().__init__(shards, test_clock)
        self.backend = backend

    @property
    def namespace(self) -> str:
        """The namespace of the keys. A store in memory has a name that no other store of its process has."""
        dialect = getattr(self.backend, "dialect", None)
        return str(dialect.namespace) if dialect is not None else f"memory-{id(self.backend):x}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.backend).__name__} shards={self.shards}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, plan: Plan[T], answers: list[Any] | None = None) -> T:
        """Run a plan to its end. `answers`: the answers to its first calls, if these were already sent."""
        try:
            calls = next(plan) if answers is None else plan.send(values_of(answers))
            while True:
                calls = plan.send(values_of(self.execute(calls)))
        except StopIteration as end:
            result: T = end.value
            return result

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls; without a cluster mostly in one round trip. Returns a value or an exception for each."""
        return self.backend.execute(calls, self._now_ms())

    def begin(self, calls: Sequence[Call[Any]]) -> SentCalls:
        """Send calls as `execute` does, and do not wait: the caller can work while the server works.

        With a cluster, and in memory, the calls are performed at once.
        """
        return self.backend.begin(calls, self._now_ms())

    def open(self) -> Self:
        """Check the server. Create the namespace when it is absent, otherwise check that it matches.

        Raises:
            StoreError: the server does not answer, refuses the call, is too old or cannot keep the durability level, or
                the namespace was created with other settings.
        """
        self.backend.check_server()
        with opening():
            self.run(self.plans.open("server" if self.ticks else "test"))
        return self

    def close(self) -> None:
        """Release connections, and end the embedded server if this store has started it. Idempotent."""
        self.backend.close()

    schedule = blocking(Plans.schedule)
    claim = blocking(Plans.claim)
    settle = blocking(Plans.settle)
    extend = blocking(Plans.extend)
    change = blocking(Plans.change)
    reschedule = blocking(Plans.reschedule)
    replace = blocking(Plans.replace)
    cancel = blocking(Plans.cancel)
    hold = blocking(Plans.hold)
    release = blocking(Plans.release)
    requeue = blocking(Plans.requeue)
    delete_dead = blocking(Plans.delete_dead)
    pause = blocking(Plans.pause)
    resume = blocking(Plans.resume)
    get = blocking(Plans.get)
    find = blocking(Plans.find)
    list_items = blocking(Plans.list_items)
    restore = blocking(Plans.restore)
    bury = blocking(Plans.bury)
    now_ms = blocking(Plans.now_ms)
    counts = blocking(Plans.counts)
    counts_by_shard = blocking(Plans.counts_by_shard)
    windows = blocking(Plans.windows)
    sweep = blocking(Plans.sweep)
    report_jump = blocking(Plans.report_jump)


class AsyncDelayStore(_Facade):
    """The asyncio delay store, on one event loop. It has the methods of `DelayStore` but `begin`, as coroutines.

    Args:
        backend: performs the calls.
        shards: number of shards of the namespace. Defaults to 1.
        test_clock: as in `DelayStore`.
    """

    def __init__(self, backend: AsyncBackend, *, shards: int = 1, test_clock: Callable[[], int] | None = None) -> None:
        super().__init__(shards, test_clock)
        self.backend = backend

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.backend).__name__} shards={self.shards}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        try:
            calls = next(plan)
            while True:
                calls = plan.send(values_of(await self.execute(calls)))
        except StopIteration as end:
            result: T = end.value
            return result

    async def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls; without a cluster mostly in one round trip. Returns a value or an exception for each."""
        return await self.backend.execute(calls, self._now_ms())

    async def open(self) -> Self:
        """Do what `DelayStore.open` does."""
        await self.backend.check_server()
        with opening():
            await self.run(self.plans.open("server" if self.ticks else "test"))
        return self

    async def close(self) -> None:
        """Release connections. Idempotent."""
        await self.backend.close()

    schedule = awaited(Plans.schedule)
    claim = awaited(Plans.claim)
    settle = awaited(Plans.settle)
    extend = awaited(Plans.extend)
    change = awaited(Plans.change)
    reschedule = awaited(Plans.reschedule)
    replace = awaited(Plans.replace)
    cancel = awaited(Plans.cancel)
    hold = awaited(Plans.hold)
    release = awaited(Plans.release)
    requeue = awaited(Plans.requeue)
    delete_dead = awaited(Plans.delete_dead)
    pause = awaited(Plans.pause)
    resume = awaited(Plans.resume)
    get = awaited(Plans.get)
    find = awaited(Plans.find)
    list_items = awaited(Plans.list_items)
    restore = awaited(Plans.restore)
    bury = awaited(Plans.bury)
    now_ms = awaited(Plans.now_ms)
    counts = awaited(Plans.counts)
    counts_by_shard = awaited(Plans.counts_by_shard)
    windows = awaited(Plans.windows)
    sweep = awaited(Plans.sweep)
    report_jump = awaited(Plans.report_jump)


class Capability:
    """Base of the blocking classes of capabilities. Any thread may use it. It raises the errors of `DelayStore`.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self.plans = store.plans

    def run(self, plan: Plan[T]) -> T:
        return self._store.run(plan)


class AsyncCapability:
    """Base of the asyncio twins of capabilities, on one event loop.

    Args:
        store: an open asyncio delay store.
    """

    def __init__(self, store: AsyncDelayStore) -> None:
        self._store = store
        self.plans = store.plans

    async def run(self, plan: Plan[T]) -> T:
        return await self._store.run(plan)
