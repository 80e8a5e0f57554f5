"""Open a delay store from a URL, a client or nothing at all.

redis://host:6379/0, rediss://..., unix:///path/to.sock   a Redis or Valkey server
embedded:./folder                                         a Valkey server that this package starts in the folder
memory:                                                   this process only
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted
from wheel_sched.store.core.delay_store import AsyncDelayStore, Backend, DelayStore
from wheel_sched.store.core.levels import check_level

_SCHEMES = ("redis://", "rediss://", "unix://")


def open_store(
    target: Any = "memory:",
    *,
    namespace: str = "wheel",
    shards: int = 1,
    durability: str = "everysec",
    replicas: int = 1,
    test_clock: Callable[[], int] | None = None,
    variant: str = "",
    repeat_timeouts: bool = True,
) -> DelayStore:
    """Open (and create when absent) a namespace, ready to use.

    Args:
        target: a URL ("redis://...", "rediss://...", "unix://...", "embedded:FOLDER", "memory:"), or a redis-py client
            for one server, from Sentinel, or for a cluster. Defaults to "memory:".
        namespace: prefix of all keys. Defaults to "wheel".
        shards: number of shards, fixed when the namespace is created. Defaults to 1.
        durability: "memory", "everysec", "fsync" or "replicated", see docs/guarantees.md. A store in memory
            ends with its process, so it refuses the last two. Defaults to "everysec".
        replicas: number of replicas that confirm under "replicated". Defaults to 1.
        test_clock: returns the current time in ms, for a namespace with a test clock. Defaults to None: server time.
        variant: changes only the name of the script library on the server, for tests. Defaults to "".
        repeat_timeouts: whether a call is repeated after a timeout. False: a call takes one timeout at most. Defaults
            to True.

    Raises:
        ConfigError: an argument is wrong; nothing was opened.
        StoreError: as in `DelayStore.open`; or the embedded server cannot be started (`EmbeddedServerError`).
    """
    _check(namespace, shards)
    check_level(durability, replicas, server=target != "memory:")
    store = DelayStore(
        _backend(target, namespace, shards, durability, replicas, test_clock, variant, repeat_timeouts),
        shards=shards,
        test_clock=test_clock,
    )
    try:
        return store.open()
    except BaseException:
        store.close()
        raise


def _backend(
    target: Any,
    namespace: str,
    shards: int,
    durability: str,
    replicas: int,
    test_clock: Callable[[], int] | None,
    variant: str,
    repeat_timeouts: bool,
) -> Backend:
    if target == "memory:":
        from wheel_sched.store.memory import MemoryBackend

        return MemoryBackend(shards, clock="server" if test_clock is None else "test")
    _check_target(
        target,
        ("embedded:", *_SCHEMES),
        "the store to be redis://..., rediss://..., unix://..., embedded:FOLDER or memory:",
    )
    try:
        from wheel_sched.store.redis.backend import RedisBackend, client_for
        from wheel_sched.store.redis.round_trips import Dialect
    except ImportError as error:
        raise _client_missing(target) from error
    dialect = Dialect(namespace, durability, replicas, variant=variant, shards=shards, repeat_timeouts=repeat_timeouts)
    if not isinstance(target, str):
        return RedisBackend(target, dialect)
    if target.startswith("embedded:"):
        from wheel_sched.store.embedded.server import EmbeddedServer
        from wheel_sched.store.embedded.settings import fsync_for
        from wheel_sched.store.redis.embedded_backend import EmbeddedBackend

        folder = target.removeprefix("embedded:") or ".wheel-sched"
        server = EmbeddedServer.open(folder, fsync=fsync_for(durability))
        return EmbeddedBackend(server, client_for(server.url), dialect)
    return RedisBackend(client_for(target), dialect, owns_client=True)


async def open_async_store(
    target: Any,
    *,
    namespace: str = "wheel",
    shards: int = 1,
    durability: str = "everysec",
    replicas: int = 1,
    test_clock: Callable[[], int] | None = None,
) -> AsyncDelayStore:
    """The asyncio twin of `open_store`, for URLs of servers and `redis.asyncio` clients."""
    _check_target(target, _SCHEMES, "an asyncio store to be redis://..., rediss://... or unix://...")
    try:
        from wheel_sched.store.redis.asyncio_backend import AsyncRedisBackend, async_client_for
        from wheel_sched.store.redis.round_trips import Dialect
    except ImportError as error:
        raise _client_missing(target) from error

    _check(namespace, shards)
    dialect = Dialect(namespace, durability, replicas, shards=shards)
    if isinstance(target, str):
        backend = AsyncRedisBackend(async_client_for(target), dialect, owns_client=True)
    else:
        backend = AsyncRedisBackend(target, dialect)
    store = AsyncDelayStore(backend, shards=shards, test_clock=test_clock)
    try:
        return await store.open()
    except BaseException:
        await store.close()
        raise


def _check_target(target: Any, schemes: tuple[str, ...], expected: str) -> None:
    """Refuse a wrong target before any client library is imported."""
    if isinstance(target, str) and not target.startswith(schemes):
        raise ConfigError(f"expected {expected}, got: {redacted(target)!r}")


def _client_missing(target: Any) -> ConfigError:
    embedded = isinstance(target, str) and target.startswith("embedded:")
    what, extra = ("an embedded store", "embedded") if embedded else ("a Redis store", "redis")
    return ConfigError(f'{what} needs the package redis: pip install "wheel-sched[{extra}]"; nothing was opened')


def _check(namespace: str, shards: int) -> None:
    problems = []
    if not namespace or len(namespace) > 64 or any(c in namespace for c in "{}:\n\0 "):
        problems.append(
            f"expected namespace to be 1 to 64 characters without braces, colons or blanks, got: {namespace!r}"
        )
    if type(shards) is not int or not 1 <= shards <= 1024:
        problems.append(f"expected shards to be a whole number from 1 to 1024, got: {shards!r}")
    if problems:
        raise ConfigError(problems)
