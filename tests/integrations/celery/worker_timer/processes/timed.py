"""A Celery app whose tasks record when they ran. Environment variables set it up.

BROKER, TRANSPORT: the broker's address and its transport options as JSON. QUEUE: the app's queue. RECORDS: the Redis
server that gets the records. POOL: the worker's pool. WHEEL=1 gives the worker a timer on the wheel.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

if os.environ.get("POOL") == "gevent":  # `celery` patches by itself; a plain `-m celery` has imported this before
    from gevent import monkey

    monkey.patch_all()

import redis
from celery import Celery, signals

app = Celery("timed", broker=os.environ["BROKER"])
app.conf.update(task_default_queue=os.environ["QUEUE"], worker_prefetch_multiplier=0, task_ignore_result=True)
app.conf.broker_transport_options = json.loads(os.environ["TRANSPORT"])
if os.environ.get("WHEEL"):
    from wheel_sched_celery import install

    install(app, url=None)

_clients: dict[int, Any] = {}


def records() -> Any:
    """A client that this process opens itself, because a forked child must not share its parent's."""
    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis.Redis.from_url(os.environ["RECORDS"])
    return _clients[os.getpid()]


@app.task(name="note")
def note(number: int, due_s: float) -> None:
    records().rpush(f"ran:{os.environ['QUEUE']}", f"{number} {due_s!r} {time.time()!r}")


@signals.worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    timers = {type(sender.timer).__name__}
    if sender.hub is not None:
        timers.add(type(sender.hub.timer).__name__)
    records().rpush(f"ready:{os.environ['QUEUE']}", *sorted(timers))
