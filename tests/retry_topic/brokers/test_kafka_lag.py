"""The command `wheel-sched kafka lag`, on librdkafka's mock cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retry_topic import Message
from retry_topic.brokers.kafka import KafkaBroker

if TYPE_CHECKING:
    from tests.servers.mock_cluster import MockCluster


def test_retries_that_no_service_ever_took_in_are_reported(imitation: MockCluster, name: str) -> None:
    """If retries wait and no service has ever read them, `lag` says so on stderr. If none wait, stderr is empty."""
    from click.testing import CliRunner

    from wheel_sched.cli.program import cli

    def state() -> str:
        return CliRunner().invoke(cli, ["--kafka", imitation.bootstrap, "kafka", "lag", name]).stderr

    broker = KafkaBroker(imitation.bootstrap, transactions=False)
    try:
        for topic in (f"{name}.retry", f"{name}.redelivery"):
            broker.create_topic(topic)
        assert state() == ""
        assert broker.publish([Message(f"{name}.retry", b"%d" % number) for number in range(3)]) == [None] * 3
    finally:
        broker.close()
    assert f"3 retries wait in {name}.retry, and no service of {name} has ever read them" in state()
