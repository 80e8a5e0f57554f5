"""A stream from topic to topic breaks in the middle of an epoch. A reader of committed records sees each record
once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from retry_topic.brokers.kafka import KafkaBroker

if TYPE_CHECKING:
    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "processes" / "stream.py"
ROWS, EPOCH = 1_800, 600


def test_what_breaks_between_two_parts_of_an_epoch_is_neither_missing_nor_doubled(
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    name: str,
    committed: Callable[[str], Counter[str]],
    uncommitted: Callable[[str], Counter[str]],
    kill_session: Callable[[subprocess.Popen[bytes]], None],
    tmp_path: Path,
) -> None:
    """Driver, JVM and workers are killed in epoch 1. In the next run epoch 2 fails at each repetition. Then the
    stream runs to its end, and each record is in the target once."""
    source, target = f"{name}-in", f"{name}-out"
    broker.topology.create([source], partitions=2)
    broker.create_topic(target)
    producer: Any = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(ROWS):
        producer.produce(source, b"%d" % n, partition=n % 2)
    assert producer.flush(60) == 0

    def run(fault: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), kafka.bootstrap, source, target, str(tmp_path / "checkpoint"), fault],
            start_new_session=True,
            env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    reached = tmp_path / "reached"
    process = run(f"kill:1:{reached}")
    try:
        until_s = time.monotonic() + 240
        while not reached.exists():
            assert process.poll() is None
            assert time.monotonic() < until_s, "the kill point was not reached"
            time.sleep(0.05)  # polls until the deadline
    finally:
        kill_session(process)
    for fault, code in (("fail:2", 1), ("", 0)):
        process = run(fault)
        try:
            assert process.wait(300) == code
        finally:
            kill_session(process)
        seen = committed(target)
        assert set(seen.values()) == {1}
        # no transaction is open: those that failed were aborted, so a reader of committed records waits for none
        assert len(seen) == (ROWS if not fault else 2 * EPOCH + EPOCH // 2)
    assert set(uncommitted(target)) == set(seen)
