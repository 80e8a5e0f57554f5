"""A process with a stock scheduler over a shared store; says "ready", and on SIGTERM how it is, as JSON."""

from __future__ import annotations

import json
import signal
import sys
import threading

from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import RedisWheelJobStore


def main() -> None:
    settings = json.loads(sys.argv[1])
    store = RedisWheelJobStore(settings["url"], allow=["firing"], **settings["store"])
    scheduler = BackgroundScheduler(timezone="UTC", **settings.get("scheduler", {}))
    scheduler.add_jobstore(store)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    scheduler.start()
    print("ready", flush=True)
    ended.wait()
    alive = scheduler._thread.is_alive()
    scheduler.shutdown()
    print(json.dumps({"alive": alive}), flush=True)


main()
