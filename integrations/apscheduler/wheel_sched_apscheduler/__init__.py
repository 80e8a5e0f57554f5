"""APScheduler 3 on wheel-sched: jobstores that many processes can share, on a timing wheel and a durable store.

Names are imported when they are first used. The command line `wheel-sched` looks into this package at every start, and
must neither need APScheduler nor wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wheel_sched_apscheduler.fire import CurrentFire, Finish, Fire, current_fire
    from wheel_sched_apscheduler.memory import WheelJobStore
    from wheel_sched_apscheduler.passes import Batch, BatchStore
    from wheel_sched_apscheduler.producer import Producer
    from wheel_sched_apscheduler.redis_store import RedisWheelJobStore
    from wheel_sched_apscheduler.schedulers import (
        WheelAsyncIOScheduler,
        WheelBackgroundScheduler,
        WheelBlockingScheduler,
    )

__all__ = [
    "Batch",
    "BatchStore",
    "CurrentFire",
    "Finish",
    "Fire",
    "Producer",
    "RedisWheelJobStore",
    "WheelAsyncIOScheduler",
    "WheelBackgroundScheduler",
    "WheelBlockingScheduler",
    "WheelJobStore",
    "current_fire",
]

_MODULES: Final = {
    "Batch": "passes",
    "BatchStore": "passes",
    "CurrentFire": "fire",
    "Finish": "fire",
    "Fire": "fire",
    "Producer": "producer",
    "RedisWheelJobStore": "redis_store",
    "WheelAsyncIOScheduler": "schedulers",
    "WheelBackgroundScheduler": "schedulers",
    "WheelBlockingScheduler": "schedulers",
    "WheelJobStore": "memory",
    "current_fire": "fire",
}


if not TYPE_CHECKING:  # a type checker knows the names above and reports any other

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
