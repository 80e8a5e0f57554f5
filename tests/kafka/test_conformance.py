"""The public conformance suite passes over a real broker, with both group protocols of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from retry_topic.brokers.conformance import BrokerConformance, GroupCases
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import Broker, BrokerConsumer

if TYPE_CHECKING:
    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


class OnKafka(GroupCases):
    """The attributes and fixtures that the conformance suite needs, for both group protocols of Kafka."""

    idle_ms = 2_000
    keeps_place = True
    examples = 8
    busy = 400, 350, 2.0
    protocol: Literal["classic", "consumer"] = "classic"

    @pytest.fixture
    def broker(self, kafka: TemporaryKafka, name: str) -> Iterator[Broker]:
        """A broker client of the test session's cluster. Each test uses its own groups."""
        self.groups = name
        self.members: list[BrokerConsumer] = []
        broker = KafkaBroker(kafka.bootstrap, group_protocol=self.protocol)
        yield broker
        broker.close()
        self.members.clear()  # lets Python free the clients

    def member(self, broker: Broker, *topics: str, group: str = "group", idle_ms: int | None = None) -> BrokerConsumer:
        """Create one more member of a group that only this test uses."""
        member = super().member(broker, *topics, group=f"{self.groups}-{group}", idle_ms=idle_ms)
        self.members.append(member)  # a broker closes only the consumers that somebody still refers to
        return member


class TestClassic(OnKafka, BrokerConformance):
    """The whole suite with the classic group protocol, which every cluster has."""


class TestKip848(OnKafka):
    """The suite's cases about groups, run with Kafka 4's group protocol (KIP-848)."""

    protocol = "consumer"

    # these cases do not depend on the group protocol
    test_a_topic_keeps_its_order = None  # type: ignore[assignment]
    test_a_delivery_says_where_it_was_read = None  # type: ignore[assignment]
    test_a_consumer_creates_its_topic = None  # type: ignore[assignment]
    test_beat_never_takes_a_delivery_back = None  # type: ignore[assignment]
