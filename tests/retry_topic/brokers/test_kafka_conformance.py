"""The public conformance suite on the Kafka broker with two stand-ins for Kafka (see conftest.py). `tests/kafka` runs
it on a real Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from retry_topic.brokers.conformance import (
    BrokerConformance,
    GroupCases,
    absent_topic,
    fresh_topic,
    publish,
    receive,
    values,
)
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import Broker, BrokerConsumer
from retry_topic.message import Message
from tests.servers.mock_cluster import MockCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


class OnKafka(GroupCases):
    """The settings and fixtures that the tests on both stand-ins share."""

    idle_ms = 2_000
    examples = 8
    busy = 400, 350, 2.0

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let tests wait up to a minute, because a rebalance of a group takes seconds."""
        monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)

    @pytest.fixture(autouse=True)
    def named(self, name: str) -> Iterator[None]:
        """Let the names of the test's groups begin with a text that no other test uses."""
        self.groups = name
        self.members: list[BrokerConsumer] = []
        yield
        self.members.clear()  # lets Python free their clients

    def member(self, broker: Broker, *topics: str, group: str = "group", idle_ms: int | None = None) -> BrokerConsumer:
        """Return one more member of a group that only this test uses."""
        member = super().member(broker, *topics, group=f"{self.groups}-{group}", idle_ms=idle_ms)
        self.members.append(member)  # a broker closes only the consumers that somebody still refers to
        return member


class OneLine(KafkaBroker):
    """A Kafka broker on the mock cluster that creates topics with one partition. The mock cluster would create four."""

    def __init__(self, imitation: MockCluster, protocol: Literal["classic", "consumer"]) -> None:
        super().__init__(imitation.bootstrap, transactions=False, group_protocol=protocol)
        self._imitation = imitation

    def create_topic(self, topic: str) -> None:
        """Create the topic with one partition."""
        if not self.topology.partitions(topic):
            self._imitation.create_topic(topic)
            self.topology.forget(topic)
        super().create_topic(topic)


class OnTheImitation(OnKafka):
    """Tests of groups and members on librdkafka's mock cluster."""

    exact_forward = False  # without transactions, publishing and settling are two steps
    protocol: Literal["classic", "consumer"] = "classic"

    @pytest.fixture
    def broker(self, imitation: MockCluster) -> Iterator[Broker]:
        """A broker on the mock cluster."""
        broker = OneLine(imitation, self.protocol)
        yield broker
        broker.close()


class TestKip848OnTheImitation(OnTheImitation, BrokerConformance):
    """The whole conformance suite with Kafka 4's group protocol (KIP-848)."""

    protocol = "consumer"


class TestClassicOnTheImitation(OnTheImitation):
    """Tests with the classic group protocol, which every Kafka cluster has. The cases about single messages do not
    depend on the protocol, so only `TestKip848OnTheImitation` has them.

    When a member joins others, the mock cluster waits almost as long as a session may last (its rebalance timer). So
    the cases with several members run in `TestTransactions`: it uses noida-db, which has this protocol too. Tests of a
    killed member are in test_kafka_nearby.py.
    """

    test_members_of_a_group_share_the_work = None  # type: ignore[assignment]
    test_the_unsettled_comes_back_to_another_member = None  # type: ignore[assignment]
    test_a_closed_member_leaves_what_it_held = None  # type: ignore[assignment]
    test_beat_keeps_a_delivery = None  # type: ignore[assignment]
    test_beat_never_takes_a_delivery_back = None  # type: ignore[assignment]
    test_the_settled_does_not_come_back = None  # type: ignore[assignment]
    test_forward_publishes_and_settles = None  # type: ignore[assignment]
    test_a_repeated_forward_publishes_nothing = None  # type: ignore[assignment]
    test_a_failed_forward_leaves_its_delivery_unsettled = None  # type: ignore[assignment]


class TestTransactions(OnKafka, BrokerConformance):
    """The conformance suite on noida-db, with the classic group protocol.

    A message is forwarded and settled in one transaction.
    """

    @pytest.fixture
    def broker(self, with_transactions: str) -> Iterator[Broker]:
        """A broker on noida-db."""
        broker = KafkaBroker(with_transactions)
        yield broker
        broker.close()

    def test_a_failed_forward_fails_alone(self, broker: Broker) -> None:
        """One of two forwards fails, and its transaction is not committed. The other transaction is committed."""
        source, target = fresh_topic(broker), fresh_topic(broker)
        publish(broker, Message(source, b"to nowhere"), Message(source, b"fine"))
        consumer = self.member(broker, source)
        nowhere, fine = receive(consumer, 2)
        pairs = [(nowhere, nowhere.message.to(absent_topic())), (fine, fine.message.to(target))]
        failure, done = consumer.forward(pairs)
        assert failure is not None
        assert not failure.transient
        assert done is None
        assert values(receive(self.member(broker, target, group="reader"), 1)) == [b"fine"]

    # On a busy machine, noida-db sometimes keeps a partition for a member that has left. So only the mock cluster and
    # the real broker run the tests in which records come back to another member.
    test_the_unsettled_comes_back_to_another_member = None  # type: ignore[assignment]
    test_a_closed_member_leaves_what_it_held = None  # type: ignore[assignment]
    test_a_failed_forward_leaves_its_delivery_unsettled = None  # type: ignore[assignment]
    test_contents_survive_byte_for_byte = None  # type: ignore[assignment]
    # these cases do not depend on the server
    test_beat_keeps_a_delivery = None  # type: ignore[assignment]
    test_beat_never_takes_a_delivery_back = None  # type: ignore[assignment]
    test_poll_keeps_its_timeout = None  # type: ignore[assignment]
    test_nothing_to_publish_is_fine = None  # type: ignore[assignment]
    test_everything_can_be_closed_twice = None  # type: ignore[assignment]
