"""The public conformance suite of brokers, run on each broker of this project that needs no Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retry_topic.brokers.conformance import BrokerConformance
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker


class TestMemory(BrokerConformance):
    """The conformance suite on the memory broker."""

    idle_ms = 300

    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        """A broker without topics."""
        broker = MemoryBroker()
        yield broker
        broker.close()


class TestRedisStreams(BrokerConformance):
    """The conformance suite on the Redis Streams broker, with a real embedded server."""

    @pytest.fixture
    def broker(self, redis_url: str) -> Iterator[Broker]:
        """A broker on an empty server."""
        broker = RedisStreamsBroker(redis_url, prefix="test:")
        yield broker
        broker.close()
