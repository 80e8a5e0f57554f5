"""A broker with Celery workers in processes of their own: stock, or ours with its store in the same server.

A site sends thousands of tasks at once, ours with `apply_many`. For stock it puts ready messages into the queue, since
`apply_async` would take longer than the measurement. These messages have the bytes that a stock producer sends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.celery.app import READY, RUNS, make_app
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.store.core.items import Item
from wheel_sched.store.push.push_form import decode_push
from wheel_sched.store.redis.backend import client_for

Kind = Literal["stock", "ours"]
KINDS: tuple[Kind, ...] = ("stock", "ours")
_WAIT_S = 900.0  # long enough for a stock worker to receive 50,000 tasks
_POLL_S = 0.02
_QUEUE = "celery"


class Run(NamedTuple):
    """One execution of a task: its number and how late it was."""

    number: int
    late_s: float


class Site:
    """A server, a producer and workers. The function `site` makes it."""

    def __init__(self, server: TemporaryServer, kind: Kind, transport: dict[str, Any]) -> None:
        self.server = server
        self.kind: Kind = kind
        self.client: Any = client_for(server.url)
        self._broker = server.url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
        self._transport = transport
        self._log = Path(tempfile.mkdtemp(prefix="wheel-sched-bench-")) / "workers.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.app = make_app(self._broker, server.url if kind == "ours" else None, transport)
        self._maker = self.app if kind == "ours" else make_app(self._broker, server.url, transport, horizon="10ms")

    @property
    def note(self) -> Any:
        """The task `bench.note` of this site's app, with methods such as `apply_async`."""
        return self.app.tasks["bench.note"]

    def start(self, pool: str, concurrency: int) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        environment = {
            **os.environ,
            "BENCH_BROKER": self._broker,
            "BENCH_RECORDS": self.server.url,
            "BENCH_TRANSPORT": json.dumps(self._transport),
        }
        environment.pop("BENCH_STORE", None)
        if self.kind == "ours":
            environment["BENCH_STORE"] = self.server.url
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery.app", "worker", "-P", pool]
        command += ["-c", str(concurrency), "-l", "error", "-n", f"w{len(self.workers)}@bench"]
        known = self.client.llen(READY)
        with self._log.open("ab") as out:
            worker = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        self.workers.append(worker)
        self.wait(lambda: self.client.llen(READY) > known, "a worker to start")
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its child processes with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def wait(self, condition: Any, what: str, limit_s: float = _WAIT_S) -> bool:
        """Wait until a condition is true.

        Raises:
            RuntimeError: it is still false after `limit_s` seconds; the error quotes the workers' log.
        """
        if not self.seen(condition, limit_s):
            raise RuntimeError(f"waited {limit_s:g} s for {what}; the workers said: {self._log.read_text()[-2000:]}")
        return True

    def seen(self, condition: Any, limit_s: float) -> bool:
        """Wait until a condition is true. Returns False if it is still false after `limit_s` seconds."""
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True

    def send(self, dues_s: list[float]) -> None:
        """Send one task for each due time. The number of a task is its position in `dues_s`."""
        from wheel_sched_celery import TaskCall, apply_many
        from wheel_sched_celery.management import HeldTasks

        calls = [
            TaskCall((number, due_s), eta=datetime.fromtimestamp(due_s, UTC)) for number, due_s in enumerate(dues_s)
        ]
        note = self._maker.tasks["bench.note"]
        if self.kind == "ours":
            apply_many(note, calls)
            return
        held: list[bytes] = []
        wheel = self._maker.wheel

        def keep(items: Sequence[Item]) -> Callable[[], None]:
            held.extend(decode_push(item.body).pieces[0] for item in items)
            return lambda: None

        begin = wheel.begin_schedule
        wheel.begin_schedule = keep
        try:
            apply_many(note, calls)
        finally:
            wheel.begin_schedule = begin
        assert len(held) == len(dues_s), "apply_many made too few messages ready"
        assert not HeldTasks(self._maker).counts().total("due"), "some of the messages are held"
        for at in range(0, len(held), 500):
            self.client.lpush(_QUEUE, *held[at : at + 500])

    def queued(self) -> int:
        """The number of messages in the queue that no worker has taken."""
        count: int = self.client.llen(_QUEUE)
        return count

    def runs(self) -> list[Run]:
        """The executions so far, each with its lateness."""
        lines = [line.decode().split() for line in self.client.lrange(RUNS, 0, -1)]
        return [Run(int(number), float(at) - float(due)) for number, due, at in lines]

    def ran(self) -> int:
        """The number of executions so far."""
        count: int = self.client.llen(RUNS)
        return count

    def forget(self) -> None:
        """Empty the record of runs."""
        self.client.delete(RUNS)

    def rss_mb(self, worker: subprocess.Popen[bytes]) -> float:
        """The resident memory of a worker's main process, in MB."""
        status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def prefetch(self) -> int:
        """The sum of the workers' prefetch counts."""
        stats = self.app.control.inspect(timeout=5).stats() or {}
        return sum(worker["prefetch_count"] for worker in stats.values())

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                self.kill(worker)
        for app in {id(app): app for app in (self.app, self._maker)}.values():
            if "wheel" in app.__dict__:
                app.wheel.close()
            app.close()
        self.client.close()
        self._log.unlink(missing_ok=True)
        self._log.parent.rmdir()


@contextlib.contextmanager
def site(
    kind: Kind,
    transport: dict[str, Any] | None = None,
    *,
    workers: int = 0,
    pool: str = "threads",
    concurrency: int = 4,
) -> Iterator[Site]:
    """Yield a broker with `workers` started Celery workers. The processes end when the `with` block ends."""
    with temporary_server(extra={"auto-aof-rewrite-percentage": "0"}) as server:
        place = Site(server, kind, transport or {})
        try:
            for _ in range(workers):
                place.start(pool, concurrency)
            yield place
        finally:
            place.close()
