"""Which hand-over is in force between a store and its topics, for `wheel-sched doctor`."""

from __future__ import annotations

from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.cli.opening import kafka_broker
from retry_topic.home import Home
from wheel_sched.config import Settings
from wheel_sched.store.delay_store import DelayStore
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.conversation import Dialect


def hand_over(url: str, settings: Settings) -> str:
    """`Home.hand_over` of that store with the topics that the settings name; nothing is created, Kafka is not asked."""
    with client_for(url) as client:
        store = DelayStore(RedisBackend(client, Dialect(settings.namespace)))
        broker: Broker
        if settings.kafka is not None:
            broker = kafka_broker(settings)
        else:
            broker = RedisStreamsBroker(client, prefix=settings.prefix)
        try:
            return Home(store, broker).hand_over
        finally:
            broker.close()
