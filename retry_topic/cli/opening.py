"""Open the home (store and topics) that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from retry_topic.home import Home, connect
from retry_topic.policy import PolicySet, load_policies
from wheel_sched.cli.opening import server_url, shards_of
from wheel_sched.config import Settings


@contextlib.contextmanager
def opened_home(settings: Settings, *, create: bool = False) -> Iterator[Home]:
    """The home, closed at the end of the block; only with `create` is a namespace or a data folder made."""
    with server_url(settings, create=create) as url:
        shards = shards_of(settings, url, create=create)
        with connect(
            url,
            namespace=settings.namespace,
            shards=shards,
            durability=settings.durability,
            prefix=settings.prefix,
        ) as home:
            yield home


def policies_of(settings: Settings, file: str | None = None) -> PolicySet:
    """The policies of a file ("default" = the built-in one), else those of the settings.

    Raises:
        ConfigError: with every mistake of the file.
    """
    path = file or settings.policies
    return PolicySet() if path in (None, "default") else load_policies(Path(str(path)))
