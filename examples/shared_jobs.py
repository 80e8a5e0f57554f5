"""Two processes with a stock APScheduler share one store: no job is lost if a process is killed.

    python examples/shared_jobs.py

The parent opens the folder, so it owns the server of the folder. It adds jobs without a scheduler. Each child runs an
ordinary BackgroundScheduler. One child is killed half-way. The other child gets the jobs that the killed child was
running, when their lease has ended. All processes share a secret and sign the jobs with it, so nobody else can add a
job to the store.
"""

# ruff: noqa: T201 - an example shows what it does

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import Producer, RedisWheelJobStore, current_occurrence

from wheel_sched.store.embedded import EmbeddedServer

COUNT = 60


def send_report(number: int) -> None:
    """The job. It prints its number and its occurrence, so that the parent can count the runs."""
    time.sleep(0.01)  # some work
    occurrence = current_occurrence()
    assert occurrence is not None  # noqa: S101 - a job of ours has one
    os.write(1, f"{number} {occurrence.id}\n".encode())


def run_scheduler(url: str) -> None:
    """The child process runs an ordinary scheduler over the shared store. It ends when its stdin is closed."""
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore("wheel-redis", url=url, lease_s=2)
    scheduler.start()
    os.write(1, b"ready\n")
    sys.stdin.read()
    scheduler.shutdown()


def start_child(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "run", url]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    child.stdout.readline()
    return child


def numbers(output: bytes) -> list[int]:
    return [int(line.split()[0]) for line in output.splitlines()]


def main(folder: str) -> None:
    with EmbeddedServer.open(folder) as server:
        first, second = start_child(server.url), start_child(server.url)
        store = RedisWheelJobStore(server.url)
        with Producer(store, timezone="UTC") as producer:
            start = datetime.now(UTC) + timedelta(seconds=0.5)
            producer.add_jobs(
                producer.make(send_report, "date", args=[n], run_date=start + timedelta(milliseconds=20 * n))
                for n in range(COUNT)
            )
            while store.count() > COUNT // 2:
                time.sleep(0.01)  # the children work
            os.kill(first.pid, signal.SIGKILL)
            ran = numbers(first.communicate()[0])
            print(f"killed the first process after {len(ran)} jobs")
            while store.count():
                time.sleep(0.01)  # the other one runs the rest
        ran += numbers(second.communicate()[0])
        print(f"{len(set(ran))} of {COUNT} jobs ran, {len(ran) - len(set(ran))} of them twice")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run_scheduler(sys.argv[2])
    else:
        os.environ.setdefault("WHEEL_SCHED_APS_SECRET", secrets.token_hex())  # the children have it from here
        with tempfile.TemporaryDirectory() as own_folder:
            main(*(sys.argv[1:] or [own_folder]))
