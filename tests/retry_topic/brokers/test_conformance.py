"""The public suite on every broker of this project."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retry_topic.brokers.conformance import BrokerConformance
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker


class TestMemory(BrokerConformance):
    """The broker of one process."""

    idle_ms = 300

    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        """A broker without topics."""
        broker = MemoryBroker()
        yield broker
        broker.close()


class TestRedisStreams(BrokerConformance):
    """Streams on the real embedded server."""

    @pytest.fixture
    def broker(self, redis_url: str) -> Iterator[Broker]:
        """A broker on the emptied server."""
        broker = RedisStreamsBroker(redis_url, prefix="test:")
        yield broker
        broker.close()
