"""APScheduler 3 on wheel-sched: jobstores that many processes can share, on a timing wheel and a durable store."""

from wheel_sched_apscheduler.occurrence import CurrentFire, Finish, Fire, current_fire
from wheel_sched_apscheduler.producer import Producer
from wheel_sched_apscheduler.schedulers import WheelAsyncIOScheduler, WheelBackgroundScheduler, WheelBlockingScheduler
from wheel_sched_apscheduler.stores.contract import Batch, BatchStore
from wheel_sched_apscheduler.stores.memory import WheelJobStore
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

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
