"""Celery integration of wheel-sched: tasks with an ETA, a countdown or a retry wait durably and run on time.

Names are imported when they are first used. This package contains a plugin that every `celery` command imports, and a
command that does not need a Redis client must not import one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wheel_sched_celery.errors import HoldRefused
    from wheel_sched_celery.hold.bulk import TaskCall, apply_many
    from wheel_sched_celery.installing import install
    from wheel_sched_celery.management import HeldTasks, TaskFilter
    from wheel_sched_celery.management.draining import Drained, drain
    from wheel_sched_celery.message.held_task import HeldTask
    from wheel_sched_celery.settings import WheelSettings
    from wheel_sched_celery.wheel import Wheel, wheel_of

__all__ = [
    "Drained",
    "HeldTask",
    "HeldTasks",
    "HoldRefused",
    "TaskCall",
    "TaskFilter",
    "Wheel",
    "WheelSettings",
    "apply_many",
    "drain",
    "install",
    "wheel_of",
]

_MODULES: Final = {
    "TaskCall": "hold.bulk",
    "Drained": "management.draining",
    "HeldTask": "message.held_task",
    "HeldTasks": "management",
    "HoldRefused": "errors",
    "TaskFilter": "management",
    "Wheel": "wheel",
    "WheelSettings": "settings",
    "apply_many": "hold.bulk",
    "drain": "management.draining",
    "install": "installing",
    "wheel_of": "wheel",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
