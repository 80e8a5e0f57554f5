"""Open the home (store and topics) that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.home import Home
from retry_topic.policy import PolicySet, load_policies
from wheel_sched.cli.opening import server_url, shards_of
from wheel_sched.config import Settings
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore, open_store

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

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
        with store, Home(store, _broker(settings, store)) as home:
            yield home


def _broker(settings: Settings, store: DelayStore) -> Broker:
    if settings.kafka is not None:
        return kafka_broker(settings.kafka)
    client: Any = getattr(store.backend, "client")  # noqa: B009  # of the kind of backend that a URL gives
    return RedisStreamsBroker(client, prefix=settings.prefix, maxlen=KEEP)


def kafka_broker(servers: str, **more: Any) -> KafkaBroker:
    """The cluster at `servers`, or that of a file of client properties.

    Raises:
        ConfigError: the extra is missing, the file cannot be read, or a setting is wrong.
    """
    try:
        from retry_topic.brokers.kafka import KafkaBroker
    except ImportError as error:
        raise ConfigError('Kafka needs the extra: pip install "wheel-sched[kafka]"; nothing was opened') from error
    return KafkaBroker(kafka_settings(servers), **more)


def kafka_settings(servers: str) -> dict[str, str]:
    """The client's settings: the address, or what a file of client properties holds.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not servers.endswith(".properties"):
        return {"bootstrap.servers": servers}
    try:
        lines = Path(servers).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected {servers} to be a readable file of client properties, got: {error}") from error
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def policies_of(settings: Settings, file: str | None = None) -> PolicySet:
    """The policies of a file ("default" = the built-in one), else those of the settings.

    Raises:
        ConfigError: with every mistake of the file.
    """
    path = file or settings.policies
    return PolicySet() if path in (None, "default") else load_policies(Path(str(path)))
