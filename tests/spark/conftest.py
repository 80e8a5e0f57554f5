"""Fixtures: one Spark session for the whole folder, because a session takes seconds to start, and stores for the
tests.

These tests cannot be imported without Spark. `make spark-test` installs Spark, and fails if it finds no tests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.errors import StoreError
from wheel_sched.store import DelayStore, Done, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py", "kafka"]
else:
    import pyspark

SHARDS = 3


@pytest.fixture(scope="session", autouse=True)
def _quick_starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make each Spark of these tests start in half of the processor time.

    A JVM that runs for a minute gains nothing from its second compiler. Spark's Python processes find `pyspark` in a
    zip file, in `python/lib` of Spark's home, and compile it from there at each start. So these tests get a
    home without the zip file. There these processes find the installed package with its cached bytecode.
    """
    home, installed = tmp_path_factory.mktemp("spark-home"), Path(pyspark.__file__).parent
    for name in ("bin", "sbin", "jars"):
        (home / name).symlink_to(installed / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        patch.setenv("SPARK_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def spark_jars() -> list[str]:
    """Further jars for the Spark session: none. tests/spark/kafka overrides this fixture."""
    return []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_jars: list[str]) -> Iterator[SparkSession]:
    """A local Spark session with two cores. It tries a task four times, as a cluster does."""
    from retry_topic.spark import spark_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        # These queries are too small to gain from compiled code or a revised plan. The cluster tests use both.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.jars": ",".join(spark_jars),
    }
    session = spark_session("local[2,4]", app="tests", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def store(redis_url: str) -> Iterator[DelayStore]:
    """An empty store of three shards, on the server that the whole test session shares."""
    with open_store(redis_url, shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def options(redis_url: str, store: DelayStore) -> dict[str, str]:
    """The options by which the data source finds `store`."""
    return {"store": redis_url}


class Consumer:
    """Takes due items out of a store continuously, as a dispatcher does, and counts how often it gets each id."""

    def __init__(self, store: DelayStore) -> None:
        self.seen: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._store = store
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                taken = 0
                for shard in range(self._store.shards):
                    claim = self._store.claim(500, shard=shard)
                    if claim.items:
                        self._store.settle(claim, [Done(item.id) for item in claim.items])
                        self.seen.update(item.id for item in claim.items)
                        taken += len(claim.items)
                if not taken:
                    self._ending.wait(0.005)  # nothing was due: pause, so that others can use the server
        except StoreError as error:
            self.failure = error

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}; {len(self.seen):,} ids so far"
            time.sleep(0.02)  # polls until the deadline

    def drain(self) -> None:
        """Wait until no item is due or in flight."""
        self.wait_until(lambda: not any(self._store.counts().now.values()), "the store to be empty")

    def end(self) -> None:
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def consumer(store: DelayStore, redis_url: str) -> Iterator[Consumer]:
    """A consumer that takes each item out as soon as it is due."""
    with open_store(redis_url, shards=SHARDS) as own:
        running = Consumer(own)
        yield running
        running.end()


@pytest.fixture
def write(options: dict[str, str]) -> Callable[..., None]:
    """Return a function (DataFrame, options) that writes a batch to `store`."""

    def written(frame: Any, **more: str) -> None:
        frame.write.format("wheelsched").mode("append").options(**options, **more).save()

    return written


@pytest.fixture
def kill_session() -> Callable[[subprocess.Popen[bytes]], None]:
    """Return a function that kills the driver, its JVM and its workers: all processes of the driver's session, also
    Spark's daemon."""

    def kill(process: subprocess.Popen[bytes]) -> None:
        processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
        for pid in [int(entry.name) for entry in processes if _session(entry) == process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)

    return kill


def _session(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return -1
