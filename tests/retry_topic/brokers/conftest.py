"""Two stand-ins for Kafka that need neither Java nor Maven; `tests/kafka` uses a real broker.

librdkafka's mock cluster has groups and no transactions. noida-db, a server in one binary, has transactions and does
not notice that a member has died. The last line of a test run counts the tests that used a stand-in (see
tests/conftest.py).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retry_topic.brokers.kafka import KafkaBroker
from tests.servers.child_supervisor import SupervisedChild
from tests.servers.kafka_clients import no_more_clients
from tests.servers.mock_cluster import MockCluster
from tests.servers.valkey import free_port
from wheel_sched.errors import BrokerError

PATIENCE_S = 60.0
STAND_IN = Path(sys.executable).with_name("noida-db")


@pytest.fixture(autouse=True)
def _closed_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that each test closes its Kafka clients."""
    with no_more_clients():
        yield
        request.node.funcargs.clear()  # pytest keeps the values of the other fixtures for longer


@pytest.fixture(scope="session")
def imitation() -> Iterator[MockCluster]:
    """librdkafka's mock cluster, shared by all tests. Each test uses its own topics and groups."""
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def with_transactions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a shared noida-db server, which has transactions. Each test uses its own topics, groups and
    namespaces."""
    if not STAND_IN.exists():
        pytest.skip("noida-db is not installed: no test of transactions runs")
    folder = tmp_path_factory.mktemp("noida")
    port = free_port()
    # the installed program is a script that starts the server; both must end
    process = SupervisedChild([STAND_IN, "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", folder])
    try:
        broker = KafkaBroker({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        until_s = time.monotonic() + PATIENCE_S
        while not _answers(broker):
            assert process.poll() is None, "noida-db has ended"
            assert time.monotonic() < until_s, "noida-db does not answer"
            time.sleep(0.05)  # polls until the other process answers
        broker.close()
        del broker  # this variable would keep the client open
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(broker: KafkaBroker) -> bool:
    try:
        broker.topics()
    except BrokerError:  # the server may not have opened its port yet
        return False
    return True
