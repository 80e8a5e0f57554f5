"""An entry of another scheduler, and the checks that both readers share.

Nothing that is read is trusted. An entry with a value of the wrong type has a `problem`, and is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from celery.schedules import crontab, schedule

from wheel_sched.errors import Rejected

LONGEST_NAME: Final = 200
MAX_ENTRIES: Final = 100_000
"""An import with more entries is refused."""
_SHOWN: Final = 60  # characters of a wrong value in a reason


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """One entry of another scheduler.

    Args:
        name: the entry's name.
        task: the name of its task.
        schedule: a schedule of Celery; None when it runs at `once_ms`, or when it cannot be imported.
        args, kwargs: the task's arguments.
        options: further arguments of `apply_async`.
        paused: whether the other scheduler has it disabled.
        last_run_ms: when it last sent the task, in ms since 1970; None = never, or not known. For
            django-celery-beat: if the entry never ran and has no `starts_ms`, this is the time of its last change.
        once: whether the entry sends one task and then ends.
        once_ms: when an entry with `once` sends its task, in ms since 1970; None = when its schedule is due next.
        starts_ms: the entry sends nothing before this time, in ms since 1970; None = no such time.
        problem: why it cannot be imported; "" when it can.
        notes: what will be different after the import, in words.
    """

    name: str
    task: str = ""
    schedule: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    paused: bool = False
    last_run_ms: int | None = None
    once: bool = False
    once_ms: int | None = None
    starts_ms: int | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()


def shown(value: object) -> str:
    """A wrong value as text for a reason, cut when it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def text_of(name: str, value: Any, longest: int = LONGEST_NAME) -> str:
    """A text that is not empty.

    Raises:
        Rejected: the value is no such text.
    """
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise Rejected(f"expected its {name} to be a text of 1 to {longest} characters, got: {shown(value)}")
    return value


def list_of(name: str, value: Any) -> tuple[Any, ...]:
    """A list, as a tuple. None counts as empty.

    Raises:
        Rejected: the value is no list.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise Rejected(f"expected its {name} to be a list, got: {shown(value)}")
    return tuple(value)


def mapping_of(name: str, value: Any) -> dict[str, Any]:
    """A mapping whose keys are texts. None counts as empty.

    Raises:
        Rejected: the value is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise Rejected(f"expected its {name} to be a mapping, got: {shown(value)}")
    return dict(value)


def crontab_of(fields: Mapping[str, Any], zone: tzinfo | None = None) -> crontab:
    """A crontab from its five fields: each a pattern, a number, or a list of numbers.

    Args:
        fields: the fields by name; one that is absent is "*".
        zone: its time zone. Defaults to None: that of the app.

    Raises:
        Rejected: a field is wrong.
    """
    names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
    given: dict[str, Any] = {}
    for name in names:
        value = fields.get(name, "*")
        if isinstance(value, list) and value and all(type(number) is int for number in value):
            value = ",".join(map(str, value))
        if not isinstance(value, str | int) or isinstance(value, bool) or len(str(value)) > LONGEST_NAME * 2:
            raise Rejected(f"expected {name} of its crontab to be a pattern such as '*/5', got: {shown(value)}")
        given[name] = value if isinstance(value, int) else value.replace(" ", "")
    try:
        made = crontab(**given)
    except Exception as error:  # Celery's parser raises several kinds
        raise Rejected(f"its crontab is wrong: {error}") from error
    if zone is not None:
        made.tz = zone
    return made


def interval_of(seconds: float | timedelta, relative: bool = False) -> schedule:
    """A schedule of Celery with this interval.

    Raises:
        Rejected: the interval is not above zero, or is longer than a thousand years.
    """
    length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < 32e9:
        raise Rejected(f"expected its interval to be a number of seconds above 0, got: {shown(seconds)}")
    return schedule(timedelta(seconds=length), relative=relative)


def ms_of(moment: datetime) -> int:
    """A time with a zone, in ms since 1970, rounded down.

    Raises:
        Rejected: the time is before 1970.
    """
    since = (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if since < 0:
        raise Rejected(f"expected a time since 1970, got: {moment.isoformat()}")
    return since
