"""Tasks of the test workers, after the examples of Celery's user guide. The setting `include` names this module."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from wheel_tasks import app, runs


def _wrote(what: str, retries: int = 0) -> None:
    row = {"name": what, "eta": None, "at": time.time(), "retries": retries, "pid": os.getpid()}
    runs.rpush(os.environ.get("RUNS", "runs"), json.dumps(row))


@app.task(name="fail")
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(name="report")
def report(request: Any, error: Any, traceback: Any) -> None:
    """An error callback that records the error."""
    _wrote(f"report {error}")


@app.task(bind=True, name="facts")
def facts(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns the task's own request, without ids and times."""
    request = self.request
    return {
        "args": args,
        "kwargs": kwargs,
        "headers": {name: value for name, value in (request.headers or {}).items() if name.startswith("x-")},
        "shadow": request.shadow,
        "timelimit": request.timelimit,
        "expires": request.expires is not None,
        "eta": request.eta is not None,
        "priority": request.delivery_info["priority"],
        "routing_key": request.delivery_info["routing_key"],
        "retries": request.retries,
        "is_eager": request.is_eager,
        "ignore_result": request.ignore_result,
        "stamps": getattr(request, "stamps", None),
    }


@app.task(bind=True, name="progress")
def progress(self: Any, name: str) -> str:
    self.update_state(state="PROGRESS", meta={"done": 1})
    _wrote(f"{name} {app.backend.get_state(self.request.id)}")
    return "done"


@app.task(bind=True, name="flaky", autoretry_for=(ConnectionError,), retry_backoff=1, retry_jitter=False, max_retries=2)
def flaky(self: Any, times: int) -> int:
    _wrote("flaky", self.request.retries)
    if self.request.retries < times:
        raise ConnectionError(times)
    return int(self.request.retries)


@app.task(name="nap")
def nap(name: str) -> str:
    _wrote(name)
    try:
        time.sleep(600)  # until a revoke or a time limit ends it
    except SoftTimeLimitExceeded:
        return "soft"
    return "slept"
