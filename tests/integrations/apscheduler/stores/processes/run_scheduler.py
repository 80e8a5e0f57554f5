"""A process with a scheduler over a shared store. It prints "ready", and on SIGTERM its state as JSON.

argv[1] is JSON: `url`, `store` and `scheduler` (their settings) and `kind`, one of KINDS: a stock scheduler, or one of
ours.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from importlib import import_module
from typing import Any

from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN, EVENT_SCHEDULER_STARTED
from wheel_sched_apscheduler import RedisWheelJobStore

KINDS = {
    "stock": ("apscheduler.schedulers.background", "BackgroundScheduler"),
    "stock-blocking": ("apscheduler.schedulers.blocking", "BlockingScheduler"),
    "stock-asyncio": ("apscheduler.schedulers.asyncio", "AsyncIOScheduler"),
    "gevent": ("apscheduler.schedulers.gevent", "GeventScheduler"),
    "tornado": ("apscheduler.schedulers.tornado", "TornadoScheduler"),
    "twisted": ("apscheduler.schedulers.twisted", "TwistedScheduler"),
    "background": ("wheel_sched_apscheduler", "WheelBackgroundScheduler"),
    "blocking": ("wheel_sched_apscheduler", "WheelBlockingScheduler"),
    "asyncio": ("wheel_sched_apscheduler", "WheelAsyncIOScheduler"),
}


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def alive(scheduler: Any) -> bool:
    """Whether the scheduler's thread lives. A stock scheduler's own `running` stays True when its thread has died."""
    thread = getattr(scheduler, "_thread", None)
    return bool(scheduler.running if thread is None else thread.is_alive())


def between_passes(scheduler: Any) -> None:
    """Pause the scheduler, and wait for the end of its pass. In a pass, a shutdown makes a stock scheduler's
    `remove_job` fail."""
    scheduler.pause()
    with scheduler._jobstores_lock:
        pass


def in_the_background(scheduler: Any) -> bool:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    scheduler.start()
    say("ready")
    ended.wait()
    lived = alive(scheduler)
    between_passes(scheduler)
    scheduler.shutdown()
    return lived


def in_this_thread(scheduler: Any) -> bool:
    lived: list[bool] = []

    def end() -> None:
        lived.append(alive(scheduler))
        between_passes(scheduler)
        scheduler.shutdown()

    ender = threading.Thread(target=end)
    signal.signal(signal.SIGTERM, lambda *_: ender.start())
    scheduler.add_listener(lambda _: say("ready"), EVENT_SCHEDULER_STARTED)
    scheduler.start()
    ender.join()
    return lived[0]


async def on_the_loop(scheduler: Any) -> bool:
    """Run a scheduler of asyncio or of Tornado; both use the same event loop."""
    ended, over = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    scheduler.start()
    scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
    say("ready")
    await ended.wait()
    lived = alive(scheduler)
    if hasattr(scheduler, "drain_async"):
        assert await scheduler.drain_async()
    scheduler.shutdown()
    await over.wait()
    return lived


def in_a_greenlet(scheduler: Any) -> bool:
    import gevent
    from gevent.event import Event

    ended = Event()
    gevent.signal_handler(signal.SIGTERM, ended.set)
    greenlet = scheduler.start()
    say("ready")
    ended.wait()
    lived = not greenlet.dead
    between_passes(scheduler)
    scheduler.shutdown()
    return lived


def in_the_reactor(scheduler: Any) -> bool:
    from twisted.internet import reactor

    live: Any = reactor
    signal.signal(signal.SIGTERM, lambda *_: live.callFromThread(scheduler.shutdown))
    scheduler.add_listener(lambda _: live.callLater(0, live.stop), EVENT_SCHEDULER_SHUTDOWN)
    scheduler.start()
    lived = scheduler.running
    live.callWhenRunning(say, "ready")
    live.run(installSignalHandlers=False)
    return bool(lived)


def main() -> None:
    settings = json.loads(sys.argv[1])
    kind = settings["kind"]
    module, name = KINDS[kind]
    store = RedisWheelJobStore(settings["url"], allow=["firing"], **settings["store"])

    def made() -> Any:
        scheduler = getattr(import_module(module), name)(timezone="UTC", **settings.get("scheduler", {}))
        scheduler.add_jobstore(store)
        return scheduler

    async def made_on_the_loop() -> bool:
        return await on_the_loop(made())

    if kind in ("blocking", "stock-blocking"):
        lived = in_this_thread(made())
    elif kind in ("asyncio", "stock-asyncio", "tornado"):
        lived = asyncio.run(made_on_the_loop())
    elif kind == "gevent":
        lived = in_a_greenlet(made())
    elif kind == "twisted":
        lived = in_the_reactor(made())
    else:
        lived = in_the_background(made())
    say(json.dumps({"alive": lived}))


main()
