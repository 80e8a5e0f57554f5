"""Open what the settings name: find the embedded server, look how the namespace was created, create nothing in passing.

A command that only reads or changes what is there never creates a folder or a namespace: a mistyped name is an
error, not an empty list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wheel_sched.cli.failing import CommandFailed
from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted
from wheel_sched.store import DelayStore, open_store

DEFAULT_FOLDER = ".wheel-sched"
_MADE_BY = "`wheel-sched publish` or `wheel-sched serve`"


def embedded_folder(settings: Settings) -> Path | None:
    """The data folder of an embedded store, None for any other."""
    if not settings.store.startswith("embedded:"):
        return None
    return Path(settings.store.removeprefix("embedded:") or DEFAULT_FOLDER)


@contextlib.contextmanager
def server_url(settings: Settings, *, create: bool = False, made_by: str = _MADE_BY) -> Iterator[str]:
    """The address of the store's server; an embedded one runs at least as long as the block.

    `made_by` is what an error says makes a store.

    Raises:
        CommandFailed: an embedded folder does not exist and is not to be created.
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
        raise CommandFailed(
            f"there is no data folder {folder}: nothing was changed; give --store, or start with {made_by}"
        )
    from wheel_sched.store.embedded import EmbeddedServer
    from wheel_sched.store.embedded.settings import fsync_for

    with EmbeddedServer.open(folder, fsync=fsync_for(settings.durability)) as server:
        yield server.url


def created_as(url: str, namespace: str) -> Mapping[str, str]:
    """How a namespace was created (schema, shards, clock) and what it is frozen for; empty when it does not exist.

    Raises:
        StoreError: the server could not answer.
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


def shards_of(settings: Settings, url: str, *, create: bool = False, made_by: str = _MADE_BY) -> int:
    """The namespace's shard count, that of the settings for a new one; `made_by` as above.

    Raises:
        CommandFailed: it does not exist and is not to be created.
    """
    found = created_as(url, settings.namespace)
    if not found and not create:
        raise CommandFailed(
            f"there is no namespace {settings.namespace!r} in {redacted(settings.store)}: nothing was changed; check "
            f"--namespace and --store, or create it with {made_by}"
        )
    return settings.shards or int(found.get("shards", 1))


@contextlib.contextmanager
def opened(settings: Settings, *, create: bool = False, made_by: str = _MADE_BY) -> Iterator[DelayStore]:
    """The store, closed at the end of the block; `made_by` as above."""
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
