"""The app of the test workers. Environment variables set it up.

BROKER, BACKEND, STORE: addresses. INSTALLED: "no" = stock Celery. RUNS: the Redis list that each run is written to.
SETTINGS, TRANSPORT: JSON objects of further `app.conf` settings and of broker transport options.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast
from redis.sentinel import Sentinel
from wheel_sched_celery import install

app = Celery("wheel_tasks", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("TRANSPORT", "{}")),
    worker_hijack_root_logger=False,
    task_queues=[
        Queue("celery", Exchange("celery"), routing_key="celery"),
        Queue("left", Exchange("wide", type="topic"), routing_key="a.*"),
        Queue("right", Exchange("wide", type="topic"), routing_key="#"),
        Broadcast("everybody"),
    ],
    **json.loads(os.environ.get("SETTINGS", "{}")),
)


def store_of(address: str) -> Any:
    """The store's URL, or a client that asks a Sentinel for the store's primary."""
    if not address.startswith("sentinel:"):
        return address
    _, port, name = address.split(":")
    return Sentinel([("127.0.0.1", int(port))]).master_for(name, socket_timeout=5, socket_connect_timeout=5)


if os.environ.get("INSTALLED", "yes") == "yes":
    install(app, store_of(os.environ.get("STORE", os.environ["BACKEND"])))

runs = redis.Redis.from_url(os.environ["BACKEND"])


def _wrote(task: Any, name: Any) -> None:
    row = {
        "name": name,
        "eta": task.request.eta,
        "at": time.time(),
        "retries": task.request.retries,
        "pid": os.getpid(),
    }
    runs.rpush(os.environ.get("RUNS", "runs"), json.dumps(row))


@app.task(bind=True, name="note")
def note(self: Any, name: Any = None) -> Any:
    _wrote(self, name)
    return name


@app.task(bind=True, name="tick")
def tick(self: Any) -> None:
    """A periodic task: writes its due time and its id."""
    _wrote(self, [self.request.headers["wheel-sched-due"], self.request.id])


@app.task(bind=True, name="add")
def add(self: Any, x: int, y: int) -> int:
    _wrote(self, f"add {x} {y}")
    return x + y


@app.task(bind=True, name="total")
def total(self: Any, numbers: list[int]) -> int:
    _wrote(self, "total")
    return sum(numbers)


@app.task(bind=True, name="again", max_retries=3)
def again(self: Any, name: str, countdown: float = 3, times: int = 2) -> str:
    _wrote(self, name)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return name


@app.task(bind=True, name="auto", autoretry_for=(ValueError,), max_retries=1, default_retry_delay=3, acks_late=True)
def auto(self: Any, name: str) -> str:
    _wrote(self, name)
    raise ValueError(name)


@app.task(bind=True, name="swap")
def swap(self: Any, x: int) -> Any:
    raise self.replace(add.si(x, 1).set(countdown=3))


@app.task(bind=True, name="slow")
def slow(self: Any, name: str, seconds: float) -> str:
    time.sleep(seconds)  # work that a shutdown has to wait for
    _wrote(self, name)
    return name
