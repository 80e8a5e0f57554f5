"""The asyncio facade of the store, and the asyncio class of each capability, such as `AsyncHistory` for `History`.

The tests call both through blocking wrappers, so that the cases of the blocking facade test them as well.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.attempt_counts import AsyncAttemptCounts, AttemptCounts
from wheel_sched.store.core.delay_store import AsyncDelayStore, Backend, DelayStore
from wheel_sched.store.death_groups import AsyncDeathGroups, DeathGroups
from wheel_sched.store.documents import AsyncDocuments, Documents
from wheel_sched.store.history import AsyncHistory, History
from wheel_sched.store.known_ids import AsyncKnownIds, KnownIds
from wheel_sched.store.log_intake import AsyncLogIntake, LogIntake
from wheel_sched.store.members import AsyncMembers, Members
from wheel_sched.store.recurring import AsyncRecurring, Recurring
from wheel_sched.store.redis.asyncio_backend import AsyncRedisBackend, async_client_for
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.store.shard_ownership import AsyncShardOwnership, ShardOwnership
from wheel_sched.store.writer_fence import AsyncWriterFences, WriterFences
from wheel_sched.testing.store_conformance import Bench, BenchMaker, StoreConformance

if TYPE_CHECKING:
    import redis

    from tests.servers.valkey import TemporaryServer

T = TypeVar("T")

TWINS: dict[Any, Any] = {
    AttemptCounts: AsyncAttemptCounts,
    DeathGroups: AsyncDeathGroups,
    Documents: AsyncDocuments,
    History: AsyncHistory,
    KnownIds: AsyncKnownIds,
    LogIntake: AsyncLogIntake,
    Members: AsyncMembers,
    Recurring: AsyncRecurring,
    ShardOwnership: AsyncShardOwnership,
    WriterFences: AsyncWriterFences,
}


# asyncio needs no `begin_*`: a caller awaits a task instead. Dispatchers, which use `begin_*`, run in threads
ONLY_BLOCKING = {"begin", "begin_accept"}


@contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class OnALoop:
    """Wraps an object: runs its coroutines on a loop while the caller waits. Other attributes are those of the
    object."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = asyncio.run_coroutine_threadsafe(value(*args, **kwargs), self._loop).result()
            return self if answer is self._inner else answer

        return call


class LogIntakeOnALoop(OnALoop):
    """Wraps a log intake. `begin_accept` begins the task and returns a function that waits for its end."""

    def begin_accept(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        task = asyncio.run_coroutine_threadsafe(self._inner.accept(*args, **kwargs), self._loop)
        refusal = task.exception()
        if isinstance(refusal, Rejected):
            raise refusal
        return task.result


class AsyncBench(Bench):
    """A test bench of the conformance suite on the asyncio facade.

    Its `backend` is blocking, because no asyncio facade waits for markers.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: redis.Redis, url: str, namespace: str, shards: int
    ) -> None:
        self._loop = loop

        def make_store(backend: Backend, *, shards: int, test_clock: Callable[[], int]) -> DelayStore:
            asyncio_backend = AsyncRedisBackend(async_client_for(url), Dialect(namespace), owns_client=True)
            self.face = AsyncDelayStore(asyncio_backend, shards=shards, test_clock=test_clock)
            store: Any = OnALoop(self.face, loop)
            store.backend = backend
            return store  # type: ignore[no-any-return]

        super().__init__(RedisBackend(client, Dialect(namespace)), shards, make_store)

    def capability(self, kind: Callable[[DelayStore], T]) -> T:
        """The asyncio twin of a capability. If there is none, the capability on the wrapped facade."""
        twin: Any = TWINS.get(kind)
        if twin is None:
            return kind(self.store)
        adapter = LogIntakeOnALoop if kind is LogIntake else OnALoop
        on_a_loop: Any = adapter(twin(self.face), self._loop)
        return on_a_loop  # type: ignore[no-any-return]


@pytest.mark.real
class TestAsyncFace(StoreConformance):
    """The conformance suite on the asyncio facade and the asyncio twins of the capabilities, on a real server."""

    @pytest.fixture
    def make_bench(
        self, shared_client: redis.Redis, real_server: TemporaryServer, namespace: str
    ) -> Iterator[BenchMaker]:
        with loop_thread() as loop:
            yield lambda shards: AsyncBench(loop, shared_client, real_server.url, namespace, shards)


@pytest.mark.parametrize(("blocking", "on_a_loop"), [(DelayStore, AsyncDelayStore), *TWINS.items()])
def test_the_asyncio_twin_has_the_same_methods(blocking: type, on_a_loop: type) -> None:
    """An asyncio class has the methods of its blocking class, with the same parameters and defaults.

    It lacks only methods that need a thread.
    """
    mine, theirs = methods_of(blocking), methods_of(on_a_loop)
    assert mine.keys() - theirs.keys() <= ONLY_BLOCKING
    assert not theirs.keys() - mine.keys()
    for name in mine.keys() & theirs.keys() - {"run"}:
        assert mine[name] == theirs[name], name


def methods_of(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """The name, kind and default of each parameter of each public method, by method."""
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(value).parameters.values()]
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
