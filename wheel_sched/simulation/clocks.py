"""A `datetime` class whose `now` reads the clock of the simulated process.

The class makes real `datetime` objects, and `isinstance` accepts every `datetime` as an instance of the class. Only
code that compares `type(moment)` with the class sees a difference. So no simulated job has a `datetime` as an argument.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from wheel_sched.simulation.scheduler import running

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _AnyDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, datetime)


class SimulatedDatetime(datetime, metaclass=_AnyDatetime):
    """A `datetime.datetime` whose `now` reads the clock of the simulated process that runs."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime(*args, **kwargs)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        """The time of the simulated process that runs. Without `tz` it is in UTC, as if UTC were the local zone."""
        moment = _EPOCH + timedelta(microseconds=running.scheduler.wall_ns() // 1_000)
        return moment.replace(tzinfo=None) if tz is None else moment.astimezone(tz)

    @classmethod
    def utcnow(cls) -> Any:
        """The time of the simulated process that runs, in UTC and without a zone."""
        return cls.now()
