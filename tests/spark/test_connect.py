"""Spark Connect: the source and the jobs over a session that knows no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retry_topic.history import Attempt
from retry_topic.message import Message
from retry_topic.wire import encode_body
from wheel_sched.store import DelayStore, Item

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "processes" / "connect_jobs.py"


def test_everything_works_over_spark_connect(store: DelayStore, redis_url: str, tmp_path: Path) -> None:
    """Reading, writing, a stream and each job, against a server of Spark Connect in a process of its own."""
    store.bury([(Item(f"d{n}", 5, encode_body(Message("t", b"x")), "t"), "broken: badly") for n in range(40)])
    history = []
    for n in range(40):
        history += [
            Attempt(f"m{n}", "t", 1, None, 1_000, "failed", "a.B"),
            Attempt(f"m{n}", "t", 2, 2_000, 2_000 + n % 4, "ok", None, 0),
        ]
    store.log([(row.id, row.encode()) for row in history], keep=10_000)
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.json").write_text("".join(f'{{"id": "s{n}", "value": "x"}}\n' for n in range(70)), "utf-8")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), redis_url, str(source), str(tmp_path / "checkpoint")],
        env={
            **os.environ,
            "SPARK_REMOTE": "local[2]",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        },
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "stored": 300,
        "stored_again": 0,
        "letters": 40,
        "replayed": 40,
        "sized": 340,
        "late": 20,
        "groups": 1,
        "flaws": 0,
        "streamed": 70,
    }
