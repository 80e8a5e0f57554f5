"""A process with a scheduler over a shared store; says "ready", and on SIGTERM how it is, as JSON.

argv[1] is JSON: `url`, `store` and `scheduler` (their settings) and `kind`: "stock", or a scheduler of ours by name.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import Any

from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN, EVENT_SCHEDULER_STARTED
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import (
    RedisWheelJobStore,
    WheelAsyncIOScheduler,
    WheelBackgroundScheduler,
    WheelBlockingScheduler,
)

KINDS = {
    "stock": BackgroundScheduler,
    "background": WheelBackgroundScheduler,
    "blocking": WheelBlockingScheduler,
    "asyncio": WheelAsyncIOScheduler,
}


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def alive(scheduler: Any) -> bool:
    """Stock's own `running` stays True when its thread is dead."""
    return bool(scheduler._thread.is_alive() if type(scheduler) is BackgroundScheduler else scheduler.running)


def in_the_background(scheduler: Any) -> bool:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    scheduler.start()
    say("ready")
    ended.wait()
    lived = alive(scheduler)
    scheduler.pause()
    with scheduler._jobstores_lock:  # between two passes: within one, stock's own `remove_job` fails
        pass
    scheduler.shutdown()
    return lived


def in_this_thread(scheduler: Any) -> bool:
    lived: list[bool] = []

    def end() -> None:
        lived.append(alive(scheduler))
        scheduler.shutdown()

    ender = threading.Thread(target=end)
    signal.signal(signal.SIGTERM, lambda *_: ender.start())
    scheduler.add_listener(lambda _: say("ready"), EVENT_SCHEDULER_STARTED)
    scheduler.start()
    ender.join()
    return lived[0]


async def on_the_loop(scheduler: Any) -> bool:
    ended, over = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    scheduler.start()
    scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
    say("ready")
    await ended.wait()
    lived = alive(scheduler)
    assert await scheduler.drain_async()
    scheduler.shutdown()
    await over.wait()
    return lived


def main() -> None:
    settings = json.loads(sys.argv[1])
    kind = settings["kind"]
    store = RedisWheelJobStore(settings["url"], allow=["firing"], **settings["store"])
    scheduler = KINDS[kind](timezone="UTC", **settings.get("scheduler", {}))
    scheduler.add_jobstore(store)
    if kind == "blocking":
        lived = in_this_thread(scheduler)
    elif kind == "asyncio":
        lived = asyncio.run(on_the_loop(scheduler))
    else:
        lived = in_the_background(scheduler)
    say(json.dumps({"alive": lived}))


main()
