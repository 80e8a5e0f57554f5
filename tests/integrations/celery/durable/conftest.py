"""Fixtures: real Celery workers in processes of their own, with servers of their own.

Each task writes its run to a Redis list, with its ETA and the time. So a test counts early, late, lost and doubled
tasks without asking the code under test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import kombu.pools
import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.utils.collections import eqhash
from wheel_sched_celery import HeldTasks, TaskFilter, install

from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.delay_store import DelayStore

FOLDER = Path(__file__).parent / "processes"
PATH = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
PATIENCE_S = 60.0


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until other processes have made the condition true."""
    until_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.02)  # another process makes it true, without a signal


class Run(NamedTuple):
    """One execution of a task."""

    name: Any
    eta_s: float | None
    at_s: float
    retries: int
    pid: int


class Worker:
    """A `celery worker` process, or a `celery beat` process."""

    def __init__(
        self, name: str, log: Path, env: dict[str, str], arguments: list[str], program: str = "worker"
    ) -> None:
        self.name = name
        self._log = log
        command = [sys.executable, "-m", "celery", "-A", "wheel_tasks", program, "-l", "INFO", *arguments]
        if program == "worker":
            command += ["-n", f"{name}@test", "--without-mingle"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **env, "PYTHONPATH": PATH, "PYTHONWARNINGS": "ignore"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a kill reaches the pool's processes too
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_ready(self) -> Worker:
        """Wait until the worker consumes. Fails if it has ended."""
        wait_until(lambda: " ready." in self.log or self.process.poll() is not None, f"{self.name} was ready")
        assert self.process.poll() is None, self.log
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the main process."""
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the main process and the processes of its pool."""
        os.killpg(self.process.pid, number)

    def wait_ended(self) -> int:
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the worker and its pool, as a crash does, and wait for its end. Idempotent."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


class Stage:
    """The servers, workers and producing apps of one test.

    Args:
        folder: for logs.
        server: has the results, and the list to which each task writes that it ran. Also broker and store, unless
            others are given.
        broker_url: the apps' broker. Defaults to `server`.
        store_url: the workers' delay store. Defaults to `server`.
        store: the delay store of the producing apps, a URL or a client. Defaults to `store_url`.
    """

    def __init__(
        self,
        folder: Path,
        server: TemporaryServer,
        broker_url: str | None = None,
        store_url: str | None = None,
        store: Any = None,
    ) -> None:
        self.server = server
        self.folder = folder
        self.broker_url = broker_url or server.tcp_url
        self.store_url = store_url or server.tcp_url
        self._place = store or self.store_url
        self.list = f"runs-{uuid.uuid4().hex}"
        self._workers: list[Worker] = []
        self._apps: list[Celery] = []
        self.app = self.producer()
        self.stock = self.producer(installed=False)
        self.client: Any = redis.Redis.from_url(server.tcp_url)
        self._store: DelayStore | None = None

    @property
    def store(self) -> DelayStore:
        if self._store is None:
            self._store = open_store(self._place, namespace="celery")
        return self._store

    def producer(self, *, installed: bool = True, **settings: Any) -> Celery:
        """Make an app that sends tasks."""
        app = Celery("producer", broker=self.broker_url, backend=self.server.tcp_url, set_as_current=False)
        app.conf.update(
            broker_connection_retry_on_startup=True,
            task_queues=[
                Queue("celery", Exchange("celery"), routing_key="celery"),
                Queue("left", Exchange("wide", type="topic"), routing_key="a.*"),
                Queue("right", Exchange("wide", type="topic"), routing_key="#"),
            ],
        )
        if installed:
            install(app, self._place, **settings)
        self._apps.append(app)
        return app

    def worker(self, *arguments: str, installed: bool = True, pool: str = "threads", **env: str) -> Worker:
        """Start a worker without waiting for it; `wait_ready` waits."""
        options = [*arguments, "-P", pool] + ([] if "-c" in arguments else ["-c", "2"])
        return self._process("worker", options, {"INSTALLED": "yes" if installed else "no", **env})

    def beat(self, *arguments: str, **env: str) -> Worker:
        """Start a beat process without waiting for it."""
        return self._process("beat", list(arguments), env)

    def _process(self, program: str, arguments: list[str], env: dict[str, str]) -> Worker:
        name = f"{program[0]}{len(self._workers)}-{uuid.uuid4().hex[:6]}"
        places = {"BROKER": self.broker_url, "BACKEND": self.server.tcp_url, "STORE": self.store_url}
        log = self.folder / f"{name}.log"
        worker = Worker(name, log, {**places, "RUNS": self.list, **env}, arguments, program)
        self._workers.append(worker)
        return worker

    wait_until = staticmethod(wait_until)

    def runs(self) -> list[Run]:
        """The runs of all tasks so far, in order."""
        rows = [json.loads(row) for row in self.client.lrange(self.list, 0, -1)]
        return [
            Run(
                row["name"],
                datetime.fromisoformat(row["eta"]).timestamp() if row["eta"] else None,
                row["at"],
                row["retries"],
                row["pid"],
            )
            for row in rows
        ]

    def wait_runs(self, count: int) -> list[Run]:
        """Wait until tasks have run this many times in all."""
        wait_until(lambda: self.client.llen(self.list) >= count, f"{count} tasks ran")
        return self.runs()

    @staticmethod
    def ms_of(text: str) -> int:
        """An instant of a header, in ms since 1970."""
        return round(datetime.fromisoformat(text).timestamp() * 1000)

    def assert_once(self, names: list[Any]) -> list[Run]:
        """Wait until each of the named tasks has run. Fails if one ran twice or early, or if another task ran."""
        runs = self.wait_runs(len(names))
        assert Counter(run.name for run in runs) == Counter(names)
        assert [run for run in runs if run.eta_s is not None and run.at_s < run.eta_s] == []
        return runs

    def held(self) -> int:
        """The number of tasks that wait in the store."""
        return self.store.counts().total("due")

    def wait_held(self, count: int) -> None:
        """Wait until this many tasks wait in the store."""
        wait_until(lambda: self.held() == count, f"{count} tasks were held")

    def bring_forward(self, seconds: float, queue: str | None = None) -> None:
        """Make all held tasks (of a queue) due in this number of seconds.

        A test first holds tasks until a far time. So no task is due before the test is ready, even on a slow machine.
        """
        tasks = HeldTasks(self.app)
        changed = tasks.reschedule(list(tasks.select(TaskFilter(queue=queue))), tasks.now_ms() + int(seconds * 1000))
        assert changed.left == []

    def past(self, seconds: float) -> bool:
        """Whether this many seconds have passed since the first call of `past`, by the clock of the results' server."""
        now_s, micros = self.client.time()
        start = self.client.set(f"{self.list}-start", now_s + micros / 1e6, nx=True, get=True)
        return start is not None and now_s + micros / 1e6 - float(start) >= seconds

    def restore_all(self) -> None:
        """Put all unacknowledged messages back into their queues, as a worker does after the visibility timeout."""
        options = {"visibility_timeout": 0}
        with self.stock.connection_for_read(transport_options=options) as connection, connection.channel() as channel:
            channel.qos.restore_visible(num=None)

    def queued(self, queue: str = "celery") -> int:
        return int(self.client.llen(queue))

    def fresh(self) -> None:
        """Forget all runs, so that the next test starts with an empty list."""
        self.client.delete(self.list)

    def logs(self) -> str:
        return "\n".join(f"--- {worker.name}\n{worker.log[-6000:]}" for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        if self._store is not None:
            self._store.close()
        for app in self._apps:
            # results that somebody still holds (pytest does, of a failed test) ask a server that is about to go
            app.backend.remove_pending_result = lambda result: result
            wheel = getattr(app, "wheel", None)
            if wheel is not None:
                wheel.close()
            app.close()  # which leaves the connections of the result backend to the garbage collector
            app.backend.result_consumer.stop()
            app.backend.client.connection_pool.disconnect()
            _forget_connections(app)
        self.client.close()


def _forget_connections(app: Celery) -> None:
    """Empty kombu's connection pools: a later server may have the same port and so the same URL."""
    key = eqhash(app.connection_for_write())
    for pools in (kombu.pools.producers, kombu.pools.connections):
        pool = pools.pop(key, None)
        if pool is not None:
            pool.force_close_all()


class Stages:
    """Makes servers and `Stage` objects for a test or a module. At the end it closes the servers last."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._stages: list[Stage] = []
        stack.callback(self._close)

    def server(self, **options: Any) -> TemporaryServer:
        """Start another server that listens on a port."""
        with ExitStack() as fresh:
            server = fresh.enter_context(temporary_server(tcp=True, **options))
            rest = fresh.pop_all()
        self._stack.callback(rest.close)
        self._stack.callback(self._close)  # runs first
        return server

    def stage(self, **options: Any) -> Stage:
        """Make a `Stage` with these options. By default one new server is broker, delay store and result backend."""
        stage = Stage(self._folder, options.pop("server", None) or self.server(), **options)
        self._stages.append(stage)
        return stage

    def _close(self) -> None:
        while self._stages:
            self._stages.pop().close()


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Stages]:
    """Makes servers, and `Stage` objects with workers and apps, for one test. Closes them at the end of the test."""
    with ExitStack() as stack:
        yield Stages(tmp_path, stack)


@pytest.fixture
def stage(stages: Stages) -> Stage:
    """The workers and apps of one test. One server is their broker, delay store and result backend."""
    return stages.stage()
