"""What the pages of retry topics share: the connection, and the policies and secrets that the settings name."""

from __future__ import annotations

from typing import Any

from retry_topic.brokers.protocol import Broker
from retry_topic.connection import Connection
from retry_topic.management.opening import kafka_broker, process_tracing
from retry_topic.management.settings import RetrySettings
from wheel_sched.dashboard import Dashboard
from wheel_sched.store import DelayStore

PART = "retry_topic"
_KEEP = 10_000  # how many settled records a topic keeps, the default of `connect`


class SharedConnection(Connection):
    """A connection whose `close` leaves the store open, because the dashboard owns the store.

    It makes tracing spans if the process has a tracer provider.

    Args:
        store: an open delay store.
        broker: holds the topics.
        owned: whether closing this connection closes the broker.
    """

    def __init__(self, store: DelayStore, broker: Broker, *, owned: bool) -> None:
        super().__init__(store, broker, tracing=process_tracing())
        self._owned = owned

    def close(self) -> None:
        """Close the broker if this connection owns it. The store stays open. Idempotent."""
        if self._owned:
            self.broker.close()


def open_connection(dashboard: Dashboard) -> SharedConnection:
    """Open the connection of a dashboard.

    The broker is the dashboard's extra "broker", if there is one. Otherwise it is the Kafka cluster that the settings
    name. Otherwise it is the streams on the store's server; for a store in memory, topics in memory.

    Raises:
        ConfigError: the settings of the broker are wrong, or the Python package for the broker is not installed.
    """
    given: Broker | None = dashboard.config.extras.get("broker")
    if given is not None:
        return SharedConnection(dashboard.store, given, owned=False)
    return SharedConnection(dashboard.store, _broker_of(dashboard.store, settings_of(dashboard)), owned=True)


def connection_of(dashboard: Dashboard) -> Connection:
    """The connection that all pages share. The first call opens it."""
    found: Connection = dashboard.opened(PART)
    return found


def settings_of(dashboard: Dashboard) -> RetrySettings:
    """The settings of retry topics; their defaults if the dashboard has only the core's settings."""
    loaded = dashboard.loaded
    if "prefix" in loaded.values:
        return loaded.read(RetrySettings)
    core = loaded.settings
    return RetrySettings(core.store, core.namespace, core.shards, core.durability, core.replicas)


def _broker_of(store: DelayStore, settings: RetrySettings) -> Broker:
    if settings.kafka is not None:
        return kafka_broker(settings)
    backend: Any = store.backend
    if not hasattr(backend, "client"):
        from retry_topic.brokers.memory import MemoryBroker

        return MemoryBroker()
    from retry_topic.brokers.redis_streams import RedisStreamsBroker

    level = backend.dialect.level  # the store's own level: the broker must be as durable as the store
    return RedisStreamsBroker(
        backend.client, prefix=settings.prefix, maxlen=_KEEP, durability=level.level, replicas=level.replicas
    )
