"""The Celery app of the benchmark's workers. Environment variables configure it.

Each task records its number, its due time and the time at which it runs. So its lateness includes all time that Celery
takes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery, signals

RUNS, READY = "bench-runs", "bench-ready"


def make_app(broker: str, store: str | None, transport: dict[str, Any] | None = None, **settings: Any) -> Celery:
    """Make the app: stock without a `store`, ours with one.

    `transport` has Celery's `broker_transport_options`, `settings` those of `wheel_sched_celery.install`.
    """
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_transport_options=transport or {}, worker_hijack_root_logger=False)
    if store is not None:
        from wheel_sched_celery import install

        install(app, store, **settings)

    @app.task(name="bench.note", shared=False)
    def note(number: int, due_s: float) -> None:
        _records().rpush(RUNS, f"{number} {due_s!r} {time.time()!r}")

    return app


_clients: dict[int, Any] = {}


def _records() -> Any:
    """The redis-py client of this process. A forked child gets a client of its own."""
    client = _clients.get(os.getpid())
    if client is None:
        client = _clients[os.getpid()] = redis.Redis.from_url(os.environ["BENCH_RECORDS"])
    return client


if "BENCH_BROKER" in os.environ:
    app = make_app(
        os.environ["BENCH_BROKER"], os.environ.get("BENCH_STORE"), json.loads(os.environ.get("BENCH_TRANSPORT", "{}"))
    )

    @signals.worker_ready.connect
    def _ready(sender: Any, **_: Any) -> None:
        _records().rpush(READY, os.getpid())
