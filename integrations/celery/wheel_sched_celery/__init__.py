"""Celery integration of wheel-sched: ETA, countdown and retry wait durably, fire on time, and can be seen."""

from wheel_sched_celery.bulk import Call, apply_many
from wheel_sched_celery.draining import Drained, drain
from wheel_sched_celery.errors import HoldRefused
from wheel_sched_celery.held_task import HeldTask
from wheel_sched_celery.installing import install
from wheel_sched_celery.settings import WheelSettings
from wheel_sched_celery.wheel import Wheel, wheel_of

__all__ = [
    "Call",
    "Drained",
    "HeldTask",
    "HoldRefused",
    "Wheel",
    "WheelSettings",
    "apply_many",
    "drain",
    "install",
    "wheel_of",
]
