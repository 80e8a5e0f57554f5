"""Open the home (store and topics) that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.home import Home
from retry_topic.policy import PolicySet, load_policies
from wheel_sched.cli.opening import server_url, shards_of
from wheel_sched.config import Settings
from wheel_sched.store import open_store

KEEP = 10_000  # records of a topic that stay after every group has settled them, as `connect` has it


@contextlib.contextmanager
def opened_home(settings: Settings, *, create: bool = False) -> Iterator[Home]:
    """The home, closed at the end of the block; only with `create` is a namespace or a data folder made."""
    with server_url(settings, create=create) as url:
        store = open_store(
            url,
            namespace=settings.namespace,
            shards=shards_of(settings, url, create=create),
            durability=settings.durability,
            replicas=settings.replicas,
        )
        with store:
            client: Any = getattr(store.backend, "client")  # noqa: B009  # of the kind of backend that a URL gives
            with Home(store, RedisStreamsBroker(client, prefix=settings.prefix, maxlen=KEEP)) as home:
                yield home


def policies_of(settings: Settings, file: str | None = None) -> PolicySet:
    """The policies of a file ("default" = the built-in one), else those of the settings.

    Raises:
        ConfigError: with every mistake of the file.
    """
    path = file or settings.policies
    return PolicySet() if path in (None, "default") else load_policies(Path(str(path)))
