"""The last line of a test run without a real Kafka broker: which stand-ins the tests used, and what
remains untested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

Report = Callable[[list[str], Counter[tuple[str, str]]], str]
HERE = Path(__file__).parent
GROUPS = "groups, takeover from the killed, intake and order per key on librdkafka's imitation"
TRANSACTIONS = "transactions on noida-db"
UNPROVED = "not proved: exactly once under kills, rebalances and failover (make kafka-test)"


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """The function that makes the last line of a test run. It is in the suite's conftest, which has no importable
    module name."""
    plugins = request.config.pluginmanager.get_plugins()
    found: Report = next(plugin.kafka_report for plugin in plugins if hasattr(plugin, "kafka_report"))
    return found


def test_both_stand_ins_are_reported_with_their_counts(report: Report) -> None:
    """For each stand-in, the last line of the test run has the number of tests that passed and the number that did
    not."""
    ended = Counter({("imitation", "passed"): 30, ("with_transactions", "passed"): 20, ("imitation", "failed"): 1})
    assert report(["java", "mvn"], ended) == (
        "Kafka without a real broker, for want of java and mvn; "
        f"tried: {GROUPS} (30 passed, 1 failed), {TRANSACTIONS} (20 passed); {UNPROVED}"
    )


def test_a_stand_in_that_is_not_installed_is_reported(report: Report) -> None:
    """If noida-db is not installed, the last line of the test run says so, and it lists transactions as not tried."""
    assert report(["mvn"], Counter({("imitation", "passed"): 30, ("with_transactions", "skipped"): 20})) == (
        f"Kafka without a real broker, for want of mvn; tried: {GROUPS} (30 passed); "
        f"not tried in this run: {TRANSACTIONS} (it is not installed); {UNPROVED}"
    )


def test_a_run_without_any_of_them_claims_nothing(report: Report) -> None:
    """If a run uses neither stand-in, its last line says that neither was tried."""
    assert report(["mvn"], Counter()) == (
        f"Kafka without a real broker, for want of mvn; not tried in this run: {GROUPS}, {TRANSACTIONS}; {UNPROVED}"
    )


@pytest.mark.real
@pytest.mark.timeout(180)
def test_a_run_closes_with_what_it_has_tried(tmp_path: Path) -> None:
    """A pytest run in another process, without Java and Maven, ends with the line about the stand-ins."""
    chosen = [HERE / "test_kafka_conformance.py", "-k", "TestKip848OnTheImitation and nothing_to_publish"]
    command = [sys.executable, "-m", "pytest", "-n", "1", "-m", "real and not kafka", "-p", "no:cacheprovider", *chosen]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        command, cwd=HERE.parents[2], env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout
    assert f"tried: {GROUPS} (1 passed); not tried in this run: {TRANSACTIONS}; {UNPROVED}" in ended.stdout
