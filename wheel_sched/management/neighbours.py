"""Opens other namespaces on the server of a store that is already open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from wheel_sched.errors import NotDone
from wheel_sched.store import DelayStore, open_store
from wheel_sched.store.redis.library import shard_keys


@contextlib.contextmanager
def beside(store: DelayStore, namespace: str, made_by: str) -> Iterator[DelayStore]:
    """Yield the store of a namespace on the server of an open store, over the same client.

    A store in memory has no server and no other namespaces. Then the open store itself is yielded.

    Args:
        store: the open store; it stays open.
        namespace: the other namespace.
        made_by: the program that creates it; the error message names it.

    Raises:
        NotDone: the namespace does not exist. It was not created.
        StoreError: the server does not answer.
    """
    backend: Any = store.backend
    client = getattr(backend, "client", None)
    if client is None:
        yield store
        return
    level = backend.dialect.level
    with opened_by_client(client, namespace, made_by, level.level, level.replicas) as found:
        yield found


@contextlib.contextmanager
def opened_by_client(
    client: Any, namespace: str, made_by: str, durability: str = "everysec", replicas: int = 1
) -> Iterator[DelayStore]:
    """Yield the store of a namespace that exists, over a redis-py client. The client stays open.

    Args:
        client: a client of the server.
        namespace: the namespace.
        made_by: the program that creates it; the error message names it.
        durability: as in `open_store`. Defaults to "everysec".
        replicas: as in `open_store`. Defaults to 1.

    Raises:
        NotDone: the namespace does not exist. It was not created.
        StoreError: the server does not answer.
    """
    import redis

    from wheel_sched.store.redis.faults import translate

    try:
        schema, shards = client.hmget(shard_keys(namespace, 0)[0].decode(), ["schema", "shards"])
    except (redis.RedisError, OSError) as error:
        raise translate(error) from error
    if schema is None:
        raise NotDone(
            f"there is no namespace {namespace!r} on the server: nothing was changed; create it with {made_by}"
        )
    with open_store(
        client, namespace=namespace, shards=int(shards or 1), durability=durability, replicas=replicas
    ) as store:
        yield store
