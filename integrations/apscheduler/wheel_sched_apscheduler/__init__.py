"""APScheduler 3 on wheel-sched: jobstores that many processes can share, on a timing wheel and a durable store."""

from wheel_sched_apscheduler.occurrence import CurrentOccurrence, Finish, Occurrence, current_occurrence
from wheel_sched_apscheduler.producer import Producer
from wheel_sched_apscheduler.schedulers import WheelAsyncIOScheduler, WheelBackgroundScheduler, WheelBlockingScheduler
from wheel_sched_apscheduler.stores.contract import ClaimingStore, OccurrenceBatch
from wheel_sched_apscheduler.stores.memory import WheelJobStore
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

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
