"""Opens the store that the settings name: starts or finds the embedded server, and reads the namespace's shard count.

Only commands that store new items create a folder or a namespace. In all other commands a mistyped name is an error,
and not shown as an empty namespace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError, NotDone
from wheel_sched.extensions import installed
from wheel_sched.redacting import redacted
from wheel_sched.store import DelayStore, open_store

DEFAULT_FOLDER = ".wheel-sched"


def embedded_folder(settings: Settings) -> Path | None:
    """The data folder of an embedded store; None for any other store."""
    if not settings.store.startswith("embedded:"):
        return None
    return Path(settings.store.removeprefix("embedded:") or DEFAULT_FOLDER)


@contextlib.contextmanager
def server_url(settings: Settings, *, create: bool = False, made_by: str = "") -> Iterator[str]:
    """Yield the address of the store's server. An embedded server runs at least until the `with` block ends.

    Args:
        settings: the settings that name the store.
        create: whether an absent data folder is created. Defaults to False.
        made_by: the command or program that creates a store; error messages name it. Defaults to "": the programs
            that the extensions name as dispatchers.

    Raises:
        NotDone: the data folder does not exist and may not be created.
        ConfigError: the store is in memory.
        StoreError: the server cannot be started.
    """
    folder = embedded_folder(settings)
    if folder is None:
        if settings.store == "memory:":
            raise ConfigError(
                "expected the store to be a server: a memory store would end with this command; use embedded:FOLDER"
            )
        yield settings.store
        return
    if not create and not folder.is_dir():
        raise NotDone(
            f"there is no data folder {folder}: nothing was changed; give --store, or start with "
            f"{made_by or installed().dispatchers}"
        )
    from wheel_sched.store.embedded import EmbeddedServer
    from wheel_sched.store.embedded.settings import fsync_for

    with EmbeddedServer.open(folder, fsync=fsync_for(settings.durability)) as server:
        yield server.url


def created_as(url: str, namespace: str) -> Mapping[str, str]:
    """Read the fields `schema`, `shards`, `clock` and `frozen` of a namespace; empty when it does not exist.

    `frozen` is the reason why the namespace is frozen. It is missing when the namespace is not frozen.

    Raises:
        StoreError: the server did not answer.
    """
    import redis

    from wheel_sched.store.redis.backend import client_for
    from wheel_sched.store.redis.faults import translate
    from wheel_sched.store.redis.library import shard_keys

    names = ("schema", "shards", "clock", "frozen")
    try:
        with client_for(url) as client:
            values: Any = client.hmget(shard_keys(namespace, 0)[0].decode(), list(names))
    except (redis.RedisError, OSError) as error:
        raise translate(error) from error
    return {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}


def shards_of(settings: Settings, url: str, *, create: bool = False, made_by: str = "") -> int:
    """The shard count with which to open the namespace: that of the settings, else the stored one, else 1.

    Arguments: see `server_url`.

    Raises:
        NotDone: the namespace does not exist and may not be created.
    """
    found = created_as(url, settings.namespace)
    if not found and not create:
        raise NotDone(
            f"there is no namespace {settings.namespace!r} in {redacted(settings.store)}: nothing was changed; check "
            f"--namespace and --store, or create it with {made_by or installed().dispatchers}"
        )
    return settings.shards or int(found.get("shards", 1))


@contextlib.contextmanager
def opened(settings: Settings, *, create: bool = False, made_by: str = "") -> Iterator[DelayStore]:
    """Yield the open store, and close it at the end of the `with` block.

    Arguments and errors: see `server_url` and `shards_of`.
    """
    with server_url(settings, create=create, made_by=made_by) as url:
        shards = shards_of(settings, url, create=create, made_by=made_by)
        with open_store(
            url,
            namespace=settings.namespace,
            shards=shards,
            durability=settings.durability,
            replicas=settings.replicas,
        ) as store:
            yield store
