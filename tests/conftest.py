"""Servers for all tests, and the profiles of Hypothesis.

A test that uses `real_server`, `cluster_nodes` or `primary`, directly or through another fixture, is marked `real`. A
test that starts its own server carries the mark itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

if TYPE_CHECKING:
    from tests.servers.kafka import TemporaryKafka
    from tests.servers.valkey import TemporaryServer

# No deadline, and no limit on how long examples take: the machine is shared, and a slow example is no wrong example.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", patient, max_examples=25)
settings.register_profile("ci", patient, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell lets programs in the background ignore Ctrl-C, and their children inherit this. Tests send Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# fixture -> the behaviour of Kafka that its tests check if there is no real broker
STAND_INS = {
    "imitation": "groups, takeover from the killed, intake and order per key on librdkafka's imitation",
    "with_transactions": "transactions on noida-db",
}


# a mark of a whole file that keeps its tests out of the unit layer
HEAVY_FILE = re.compile(r"^pytestmark = .*\bmark\.(real|slow|proof|built|rabbit)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load only the files that can have tests of the layer: to load all takes each worker ten seconds."""
    layer = config.option.markexpr
    if not collection_path.name.startswith("test_") or not layer.startswith(("proof ", "not real ")):
        return None
    text = collection_path.read_text("utf-8")
    if layer.startswith("proof "):
        return None if "mark.proof" in text else True
    return True if "dashboard" in collection_path.parts or HEAVY_FILE.search(text) else None


def pytest_collection(session: pytest.Session) -> None:
    """Load the files from another place on in each worker of xdist; pytest then finds them loaded.

    In a new checkout the files are compiled when they are loaded, which takes longer than anything else in the
    collection. Workers that load the same files in the same order all compile each of them.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    ignored = [config.rootpath / path for path in config.option.ignore or ()]
    files = [
        path
        for path in sorted((config.rootpath / "tests").rglob("test_*.py"))
        if not pytest_ignore_collect(path, config) and not any(path.is_relative_to(folder) for folder in ignored)
    ]
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in files[first:] + files[:first]:
        name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
        # a file that cannot be loaded: pytest tries it again, and reports it
        with warnings.catch_warnings(action="error"), contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if not {"real_server", "cluster_nodes", "primary"}.isdisjoint(fixtures):
            item.add_marker(pytest.mark.real)
        if "dashboard" in item.path.parts:  # each renders whole pages
            item.add_marker(pytest.mark.slow)
        item.user_properties += [("stand-in", name) for name in STAND_INS if name in fixtures]


def pytest_collection_finish() -> None:
    """Freeze the loaded objects, so that a garbage collection in a test does not visit the whole suite."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what a run without a real Kafka broker does not prove, on a machine that cannot start one."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing and "not kafka" in config.option.markexpr:
        ended = Counter(
            (name, outcome)
            for outcome in ("passed", "failed", "error", "skipped")
            for report in terminalreporter.stats.get(outcome, ())
            for kind, name in getattr(report, "user_properties", ())
            if kind == "stand-in"
        )
        terminalreporter.line(kafka_report(missing, ended))


def kafka_report(missing: Sequence[str], ended: Counter[tuple[str, str]]) -> str:
    """Describe what a run without a real Kafka broker shows, and what it does not.

    Tests use a stand-in in place of a real broker. The text counts the outcomes of the tests on each stand-in.

    Args:
        missing: programs that a real broker would need.
        ended: the number of tests by stand-in and outcome, such as "passed" or "skipped".
    """
    tried, untried = [], []
    for name, what in STAND_INS.items():
        counts = {outcome: ended[name, outcome] for outcome in ("passed", "failed", "error") if ended[name, outcome]}
        if counts:
            tried.append(f"{what} ({', '.join(f'{count} {outcome}' for outcome, count in counts.items())})")
        else:
            untried.append(f"{what}{' (it is not installed)' if ended[name, 'skipped'] else ''}")
    parts = [f"Kafka without a real broker, for want of {' and '.join(missing)}"]
    parts += [f"tried: {', '.join(tried)}"] if tried else []
    parts += [f"not tried in this run: {', '.join(untried)}"] if untried else []
    return "; ".join([*parts, "not proved: exactly once under kills, rebalances and failover (make kafka-test)"])


@pytest.fixture(scope="session")
def real_server() -> Iterator[TemporaryServer]:
    """One server for the session, or for each worker of xdist. Do not kill it: use `temporary_server` for that."""
    from tests.servers.valkey import temporary_server

    with temporary_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[TemporaryKafka]:
    """One real Kafka broker for the session. Tests use their own topics and groups, and do not kill it."""
    from tests.servers.kafka import temporary_kafka

    with temporary_kafka() as kafka:
        yield kafka


@pytest.fixture
def name() -> str:
    """A name that only this test uses, for topics, groups and namespaces on a server that other tests use too."""
    return f"t{uuid4().hex[:10]}"


@pytest.fixture
def redis_url(real_server: TemporaryServer) -> str:
    """The address of the session's server, after its data, functions and scripts have been removed."""
    left = [thread for thread in threading.enumerate() if thread.name == "operations"]
    assert left == [], "a test before has left a dashboard open: it would run the operations of this test"
    with redis.Redis.from_url(real_server.url) as client:
        client.flushall()
        client.function_flush()
        client.script_flush()
    return real_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the session's server, which `redis_url` has emptied. The client sends each command only once.

    By default, redis-py repeats a command whose reply was lost.
    """
    with redis.Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
def fake_redis() -> Iterator[redis.Redis]:
    """A new imitation of Redis with Lua in this process, for tests that need no server process."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client


@pytest.fixture(scope="session")
def cluster_nodes() -> Iterator[list[TemporaryServer]]:
    """A Cluster of two primaries with half of the slots each."""
    from tests.servers.topologies import temporary_cluster

    with temporary_cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(cluster_nodes: list[TemporaryServer]) -> Iterator[RedisCluster]:
    """A client of the Cluster, with the default settings of redis-py."""
    client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster_nodes])
    yield client
    client.close()


@pytest.fixture
def primary() -> Iterator[TemporaryServer]:
    """A server with a TCP port."""
    from tests.servers.valkey import temporary_server

    with temporary_server(tcp=True) as server:
        yield server


@pytest.fixture
def sentinel_port(tmp_path: Path, primary: TemporaryServer) -> Iterator[int]:
    """The port of a Sentinel that watches `primary` as "main"."""
    from tests.servers.topologies import temporary_sentinel

    with temporary_sentinel(primary, tmp_path) as port:
        yield port
