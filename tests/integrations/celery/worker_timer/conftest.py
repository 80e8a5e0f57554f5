"""Fixtures: Celery workers in processes of their own, on the session's server."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

DEADLINE_S = 120.0
_numbers = itertools.count()


class TimedWorker:
    """A worker of the app in `processes/timed.py`, with its own queue and records."""

    def __init__(self, url: str, log: Path, pool: str, *arguments: str, folder: Path | None = None) -> None:
        self.queue = f"timed-{os.getpid()}-{next(_numbers)}"
        self.client = redis.Redis.from_url(url)
        if folder is None:
            broker, transport = url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host="), {}
        else:
            broker = "filesystem://"
            transport = {f"data_folder_{way}": str(folder) for way in ("in", "out")} | {"control_folder": str(folder)}
        self.app = Celery("timed", broker=broker, set_as_current=False)
        self.app.conf.update(task_default_queue=self.queue, task_ignore_result=True)
        self.app.conf.broker_transport_options = transport
        self._log = log
        environment = {**os.environ, "BROKER": broker, "RECORDS": url, "QUEUE": self.queue, "WHEEL": "1", "POOL": pool}
        environment["TRANSPORT"] = json.dumps(transport)
        command = [sys.executable, "-m", "celery", "-A", "timed", "worker", "-P", pool, "-c", "2", "-l", "warning"]
        command += ["--without-gossip", "--without-mingle", "-n", f"{self.queue}@here", *arguments]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=Path(__file__).parent / "processes", env=environment, stdout=out, stderr=out
            )

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait until the condition returns something true, and return it. Fails with the worker's log."""
        until = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            if self._process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"{what}: not seen; the worker's log:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.02)  # the pause between two looks
        return found

    def timers(self) -> set[str]:
        """The class names of the worker's timers, once the worker is ready."""
        found = self.wait_for("ready", lambda: self.client.lrange(f"ready:{self.queue}", 0, -1))
        return {name.decode() for name in found}

    def send(self, number: int, due_s: float) -> None:
        """Send one ETA task, due at an instant of the wall clock."""
        self.send_all([(number, due_s)])

    def send_all(self, tasks: list[tuple[int, float]]) -> None:
        with self.app.producer_or_acquire() as producer:
            for number, due_s in tasks:
                eta = datetime.fromtimestamp(due_s, UTC)
                self.app.send_task("note", (number, eta.timestamp()), eta=eta, producer=producer)

    def ran(self) -> list[tuple[int, float]]:
        """The number and the lateness in seconds of each run so far."""
        found = [line.decode().split() for line in self.client.lrange(f"ran:{self.queue}", 0, -1)]
        return [(int(number), float(at) - float(due)) for number, due, at in found]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self.app.close()
            self.client.close()


@pytest.fixture
def timed_worker(real_server: Any, tmp_path: Path) -> Iterator[Callable[..., TimedWorker]]:
    """Starts workers with the app in `processes/timed.py`, and stops them at the end."""
    with contextlib.ExitStack() as stack:

        def start(pool: str, *arguments: str, **options: Any) -> TimedWorker:
            worker = TimedWorker(real_server.url, tmp_path / f"{pool}.log", pool, *arguments, **options)
            stack.callback(worker.stop)
            return worker

        yield start
