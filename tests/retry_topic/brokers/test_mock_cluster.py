"""librdkafka's mock cluster, which the tests create through its C interface."""

from __future__ import annotations

import pytest

from retry_topic.brokers.kafka import KafkaBroker
from tests.servers.mock_cluster import MockCluster
from wheel_sched.errors import ConfigError

pytestmark = pytest.mark.real


def test_topics_have_the_partitions_they_were_created_with() -> None:
    """A topic that is used without being created gets four partitions. An existing topic cannot be created again. Two
    clusters share nothing."""
    with MockCluster(brokers=2) as cluster, MockCluster() as other:
        assert cluster.bootstrap.count(",") == 1
        assert repr(cluster) == f"<MockCluster {cluster.bootstrap} up>"
        cluster.create_topic("one")
        cluster.create_topic("three", partitions=3)
        with pytest.raises(ConfigError, match=r"'one' could not be created: .*already exists; nothing was changed"):
            cluster.create_topic("one")
        broker = KafkaBroker(cluster.bootstrap, transactions=False)
        broker.create_topic("named")
        assert [broker.topology.partitions(topic) for topic in ("one", "three", "named")] == [1, 3, 4]
        broker.close()
        elsewhere = KafkaBroker(other.bootstrap, transactions=False)
        assert elsewhere.topics() == {}
        elsewhere.close()
        cluster.close()
        assert repr(cluster).endswith("closed>")
