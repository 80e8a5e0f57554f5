"""Runs a worker's dispatcher, with the broker at BROKER and the store at STORE, until it has sent a task. Prints JSON:
the modules that the dispatcher's threads have imported, and the dispatcher's state.

If a process forks while a thread imports a module, the import lock stays taken in the child. So the child can never
import the module.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

imported: list[str] = []


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import" and threading.current_thread() is not threading.main_thread():
        imported.append(str(arguments[0]))


sys.addaudithook(hook)

from celery import Celery  # noqa: E402  # after the hook
from celery.schedules import crontab  # noqa: E402
from wheel_sched_celery import install  # noqa: E402
from wheel_sched_celery.announcing import AnnounceStep  # noqa: E402
from wheel_sched_celery.release.dispatcher_step import DispatcherStep  # noqa: E402

app = Celery("imports", broker=os.environ["BROKER"], set_as_current=False)
app.conf.beat_schedule = {"tick": {"task": "note", "schedule": 0.3}, "cron": {"task": "note", "schedule": crontab()}}
app.conf.timezone = "Europe/Berlin"
install(app, os.environ["STORE"], horizon=0.2, lead=0.1, beat=True)
worker: Any = SimpleNamespace(app=app, wheel_dispatcher=None, hostname="w@here")
step, announcing = DispatcherStep(worker), AnnounceStep(worker)
for each in (step, announcing):
    each.create(worker)
    each.start(worker)
app.send_task("note", countdown=0.4)
until_s = time.monotonic() + 20
while time.monotonic() < until_s:
    info = step.info(worker)["wheel_dispatcher"]
    if info.get("published", 0) > 1 and info["beat"]["sent"]:
        break
    time.sleep(0.02)  # other threads make it true, without a signal
from wheel_sched.store import Members  # noqa: E402  # here and not above: the threads must not need it

while time.monotonic() < until_s and not Members(app.wheel.store).live():
    time.sleep(0.02)
info["members"] = len(Members(app.wheel.store).live())
for each in (announcing, step):
    each.stop(worker)
sys.stdout.write(json.dumps({"imported": imported, "info": info}))
sys.stdout.flush()
os._exit(0)
