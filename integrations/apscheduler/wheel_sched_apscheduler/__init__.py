"""APScheduler 3 on wheel-sched: a jobstore that many processes share, one on a timing wheel, and schedulers.

Names are imported when they are first used. The command line `wheel-sched` imports this package at every start. It must
also start where APScheduler is not installed, and must not wait for the import of APScheduler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wheel_sched_apscheduler.occurrence import CurrentOccurrence, Finish, Occurrence, current_occurrence
    from wheel_sched_apscheduler.producer import Producer
    from wheel_sched_apscheduler.schedulers import (
        WheelAsyncIOScheduler,
        WheelBackgroundScheduler,
        WheelBlockingScheduler,
    )
    from wheel_sched_apscheduler.stores.memory import WheelJobStore
    from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore
    from wheel_sched_apscheduler.stores.scheduler_pass import ClaimingStore, OccurrenceBatch

__all__ = [
    "ClaimingStore",
    "CurrentOccurrence",
    "Finish",
    "Occurrence",
    "OccurrenceBatch",
    "Producer",
    "RedisWheelJobStore",
    "WheelAsyncIOScheduler",
    "WheelBackgroundScheduler",
    "WheelBlockingScheduler",
    "WheelJobStore",
    "current_occurrence",
]

_MODULES: Final = {
    "ClaimingStore": "stores.scheduler_pass",
    "CurrentOccurrence": "occurrence",
    "Finish": "occurrence",
    "Occurrence": "occurrence",
    "OccurrenceBatch": "stores.scheduler_pass",
    "Producer": "producer",
    "RedisWheelJobStore": "stores.redis",
    "WheelAsyncIOScheduler": "schedulers",
    "WheelBackgroundScheduler": "schedulers",
    "WheelBlockingScheduler": "schedulers",
    "WheelJobStore": "stores.memory",
    "current_occurrence": "occurrence",
}


if not TYPE_CHECKING:  # a type checker knows the names above and reports any other

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
