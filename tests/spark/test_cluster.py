"""The programs in deploy/ work on a standalone Spark cluster: a master and two workers on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from tests.servers.valkey import free_port
from wheel_sched.store import DelayStore, Item

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
QUICK = (
    "--conf spark.sql.shuffle.partitions=4 --conf spark.sql.codegen.wholeStage=false "
    "--conf spark.sql.codegen.factoryMode=NO_CODEGEN"
)
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "spark"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a master and two workers. The value is the master's address, after both workers have joined."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    with contextlib.ExitStack() as stack:
        port = free_port()
        log = tmp_path / "master.log"
        _start(stack, ["master.Master", "--host", "127.0.0.1", "--port", str(port)], log, environment)
        url = f"spark://127.0.0.1:{port}"
        _wait_for(log, "I have been elected leader", 1)
        for number in range(2):
            work = ["--work-dir", str(tmp_path / f"work{number}"), "--cores", "1", "--memory", "1g"]
            arguments = ["worker.Worker", "--host", "127.0.0.1", *work, url]
            _start(stack, arguments, tmp_path / f"worker{number}.log", environment)
        _wait_for(log, "Registering worker", 2)
        yield url


def _start(stack: contextlib.ExitStack, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{arguments[0]}", "--webui-port", "0", *arguments[1:]]
    out = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _wait_for(log: Path, words: str, times: int) -> None:
    deadline = time.monotonic() + 120
    while log.read_text("utf-8", "replace").count(words) < times:
        assert time.monotonic() < deadline, log.read_text("utf-8", "replace")[-2_000:]
        time.sleep(0.1)  # polls until the deadline


def submit(cluster: str, url: str, folder: Path) -> dict[str, int]:
    """Run the example program of deploy/ on the cluster by the script of deploy/. Return the figures that the
    program prints."""
    memory = "--conf spark.executor.memory=512m --conf spark.executor.cores=1 --conf spark.ui.enabled=false"
    # both executors must have come before the first task is given out
    waiting = (
        "--conf spark.scheduler.minRegisteredResourcesRatio=1.0 --conf spark.cores.max=2 "
        "--conf spark.scheduler.maxRegisteredResourcesWaitingTime=120s"
    )
    loopback = "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1"
    done = subprocess.run(
        [str(DEPLOY / "submit.sh"), str(DEPLOY / "reminders.py"), url],
        env={
            **os.environ,
            "MASTER": cluster,
            "PYTHON": sys.executable,
            "SUBMIT_OPTIONS": f"{memory} {waiting} {loopback} {QUICK}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=780,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_backfill_and_dlq_on_a_cluster_do_what_they_do_on_one_machine(
    cluster: str, store: DelayStore, redis_url: str, tmp_path: Path
) -> None:
    """On a cluster of two workers, both run tasks. Every row is stored once, and every dead letter is replayed once."""
    graves = [(Item(f"d{n}", 5, encode_body(Message("orders", b"x")), "orders"), "broken: badly") for n in range(200)]
    store.bury(graves)
    counts = submit(cluster, redis_url, tmp_path / "driver")
    assert counts == {"stored": 3_000, "letters": 200, "replayed": 200}
    assert (tmp_path / "master.log").read_text("utf-8", "replace").count("Launching executor") == 2
    assert store.counts().now == {("due", "reminders"): 3_000, ("due", "orders"): 200}
    found = store.get([f"reminder-{n}" for n in range(3_000)])
    assert [item and item.score_ms for item in found] == [4_000_000_000_000 + n for n in range(3_000)]
    assert {item and decode_body(item.body).value for item in found} == {b'{"customer":%d}' % n for n in range(3_000)}
