"""The public suite over a real broker, in both protocols of groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from retry_topic.brokers.conformance import BrokerConformance
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import Broker, BrokerConsumer

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


class OnKafka(BrokerConformance):
    """What both have in common."""

    idle_ms = 2_000
    examples = 8
    busy = 400, 350
    protocol: Literal["classic", "consumer"] = "classic"

    @pytest.fixture
    def broker(self, kafka: TemporaryKafka, name: str) -> Iterator[Broker]:
        """A broker of the cluster; its groups are this test's own."""
        self.groups = name
        broker = KafkaBroker(kafka.bootstrap, group_protocol=self.protocol)
        yield broker
        broker.close()

    def member(self, broker: Broker, *topics: str, group: str = "group", idle_ms: int | None = None) -> BrokerConsumer:
        """One more member of a group of this test's own."""
        return super().member(broker, *topics, group=f"{self.groups}-{group}", idle_ms=idle_ms)


class TestClassic(OnKafka):
    """The protocol of groups that every cluster has."""


class TestKip848(OnKafka):
    """Kafka 4's protocol of groups."""

    protocol = "consumer"
