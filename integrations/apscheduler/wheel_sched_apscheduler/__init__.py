"""APScheduler 3 on wheel-sched: jobstores that many processes can share, on a timing wheel and a durable store."""

from wheel_sched_apscheduler.fire import CurrentFire, Finish, Fire, current_fire
from wheel_sched_apscheduler.memory import WheelJobStore
from wheel_sched_apscheduler.passes import Batch, BatchStore
from wheel_sched_apscheduler.producer import Producer
from wheel_sched_apscheduler.redis_store import RedisWheelJobStore
from wheel_sched_apscheduler.schedulers import WheelAsyncIOScheduler, WheelBackgroundScheduler, WheelBlockingScheduler

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
