"""Triggers as data: the six of APScheduler have short names, other triggers have the name of their class.

Each trigger is written as [name, state]. A built-in trigger is read by assigning its known fields. A trigger of a
user's class is written with its `__getstate__` and read with its `__setstate__`. A state may have only those values
that `codec.values` can write.

APScheduler does not check the fields of a trigger. A trigger with a wrong field raises, or loops for ever, when a
scheduler's loop asks it for the next run time. So `flaw_of` checks each built-in trigger that is added or read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from apscheduler.util import ref_to_obj

from wheel_sched.errors import ConfigError
from wheel_sched_apscheduler.codec.allow_list import Forbidden
from wheel_sched_apscheduler.codec.values import (
    MAX_DEPTH,
    NotSerializable,
    Unreadable,
    Values,
    moment_of,
    zone_name,
    zone_of,
)
from wheel_sched_apscheduler.run_times import to_us

_BUILT_IN = {
    DateTrigger: "date",
    IntervalTrigger: "interval",
    CronTrigger: "cron",
    CalendarIntervalTrigger: "calendarinterval",
    AndTrigger: "and",
    OrTrigger: "or",
}

JITTER_AT_MOST_S = 366 * 86_400
MONTHS_AT_MOST = 12 * 1000  # CalendarIntervalTrigger searches for ever when it passes the end of the calendar


def is_built_in(trigger: Any) -> bool:
    """Whether the trigger's class is one of APScheduler's. Such a trigger does not change when it gives a run time."""
    return type(trigger) in _BUILT_IN


class Triggers:
    """Writes triggers as data for JSON, and reads them back.

    Args:
        values: writes and reads the states of triggers.
        extra: further trigger classes that stored jobs may name, or their names "module:name".

    Raises:
        ConfigError: an entry of `extra` cannot be imported, or is no class with `get_next_fire_time`.
    """

    def __init__(self, values: Values, extra: Iterable[type | str] = ()) -> None:
        self._values = values
        self._extra: dict[str, type] = {}
        for given in [each.strip() for each in extra.split(",")] if isinstance(extra, str) else extra:
            kind = _class_of(given) if isinstance(given, str) else given
            if not isinstance(kind, type) or not hasattr(kind, "get_next_fire_time"):
                raise ConfigError(f"expected triggers to be trigger classes, got: {kind!r}; nothing was opened")
            self._extra[f"{kind.__module__}:{kind.__qualname__}"] = kind
        self._loaders: dict[str, Callable[[Any, int], Any]] = {
            "date": self._date,
            "interval": self._interval,
            "cron": self._cron,
            "calendarinterval": self._calendar,
            "and": lambda state, depth: self._combined(AndTrigger, state, depth),
            "or": lambda state, depth: self._combined(OrTrigger, state, depth),
        }

    def dump(self, trigger: Any) -> list[Any]:
        """Write a trigger as [name, state].

        Raises:
            NotSerializable: the trigger's class is not allowed, its state is not plain, or one of its fields is wrong.
        """
        kind = type(trigger)
        name = _BUILT_IN.get(kind)
        flaw = None if name is None else flaw_of(trigger)
        if flaw:
            raise NotSerializable(f"the {name} trigger cannot be stored: {flaw}; nothing was stored; correct it")
        if name == "date":
            return [name, _moment(trigger.run_date)]
        if name == "interval":
            span = trigger.interval
            parts = [span.days, span.seconds, span.microseconds]
            ends = [_moment(trigger.start_date), _moment(trigger.end_date)]
            return [name, [parts, *ends, zone_name(trigger.timezone), trigger.jitter]]
        if name == "cron":
            fields = [[field.name, str(field), field.is_default] for field in trigger.fields]
            ends = [_moment(trigger.start_date), _moment(trigger.end_date)]
            return [name, [fields, *ends, zone_name(trigger.timezone), trigger.jitter]]
        if name == "calendarinterval":
            state = trigger.__getstate__()
            return [name, self._values.dump(state, "the trigger")]
        if name is not None:
            return [name, [[self.dump(part) for part in trigger.triggers], trigger.jitter]]
        name = f"{kind.__module__}:{kind.__qualname__}"
        if name not in self._extra:
            raise NotSerializable(
                f"expected a trigger of APScheduler, got: {name}; nothing was stored; open the store with "
                "triggers=[...] naming its class, here and wherever the job is to run"
            )
        return [name, self._values.dump(trigger.__getstate__(), f"the state of {name}")]

    def load(self, data: Any, depth: int = 0) -> Any:
        """The trigger that `dump` has written.

        Raises:
            Forbidden: the data names a class that is not allowed; nothing was imported.
            Unreadable: the data is not what `dump` makes.
        """
        if depth > MAX_DEPTH:
            raise Unreadable("its triggers are nested too deeply")
        try:
            name, state = data
        except (TypeError, ValueError) as error:
            raise Unreadable("its trigger is not [name, state]") from error
        loader = self._loaders.get(name) if isinstance(name, str) else None
        kind: Any = self._extra.get(name) if isinstance(name, str) else None
        if loader is None and kind is None:
            raise Forbidden(f"the trigger {str(name)[:200]!r} is not in the allow-list; nothing was imported")
        try:
            if loader is not None:
                built_in = loader(state, depth)
                flaw = flaw_of(built_in)
                if flaw:
                    raise Unreadable(f"its {name!r} trigger cannot be read: {flaw}")
                return built_in
            trigger = kind.__new__(kind)
            trigger.__setstate__(self._values.load(state))
            return trigger
        except (Unreadable, Forbidden):
            raise
        except Exception as error:  # hostile data may be of any shape
            raise Unreadable(f"its {str(name)[:80]!r} trigger cannot be read: {error!r}") from error

    def _date(self, state: Any, _: int) -> DateTrigger:
        trigger = DateTrigger.__new__(DateTrigger)
        trigger.run_date = moment_of(*state)
        return trigger

    def _interval(self, state: Any, _: int) -> IntervalTrigger:
        parts, start, end, zone, jitter = state
        trigger = IntervalTrigger.__new__(IntervalTrigger)
        trigger.timezone = zone_of(zone)
        trigger.start_date = _load_moment(start)
        trigger.end_date = _load_moment(end)
        trigger.interval = timedelta(*parts)
        trigger.interval_length = trigger.interval.total_seconds()
        trigger.jitter = jitter
        return trigger

    def _cron(self, state: Any, _: int) -> CronTrigger:
        fields, start, end, zone, jitter = state
        trigger = CronTrigger.__new__(CronTrigger)
        trigger.timezone = zone_of(zone)
        trigger.start_date = _load_moment(start)
        trigger.end_date = _load_moment(end)
        trigger.fields = _cron_fields(tuple((name, text, bool(default)) for name, text, default in fields))
        trigger.jitter = jitter
        return trigger

    def _calendar(self, state: Any, _: int) -> CalendarIntervalTrigger:
        found = self._values.load(state)
        trigger = CalendarIntervalTrigger.__new__(CalendarIntervalTrigger)
        trigger.__setstate__(found)
        return trigger

    def _combined(self, kind: Any, state: Any, depth: int) -> Any:
        parts, jitter = state
        trigger: Any = kind.__new__(kind)
        trigger.triggers = [self.load(part, depth + 1) for part in parts]
        trigger.jitter = jitter
        return trigger


def _class_of(reference: str) -> Any:
    try:
        return ref_to_obj(reference)
    except Exception as error:  # a module may fail in any way while it is imported
        raise ConfigError(f"the trigger class {reference!r} cannot be imported: {error}; nothing was opened") from error


def _moment(moment: Any) -> list[Any] | None:
    return None if moment is None else [to_us(moment), zone_name(moment.tzinfo)]


def _load_moment(data: Any) -> Any:
    return None if data is None else moment_of(*data)


@lru_cache(maxsize=1024)
def _cron_fields(fields: tuple[tuple[str, str, bool], ...]) -> list[Any]:
    """Parse cron fields. Parsed fields have no state, so triggers with the same expressions share them."""
    if [name for name, _, _ in fields] != list(CronTrigger.FIELD_NAMES):
        raise Unreadable("its cron fields are not those of APScheduler 3")
    return [CronTrigger.FIELDS_MAP[name](name, text, default) for name, text, default in fields]


def flaw_of(trigger: Any) -> str | None:
    """What is wrong with a built-in trigger; None = nothing. Call it for the parts of a combined trigger too."""
    jitter = getattr(trigger, "jitter", None)
    if jitter is not None and not (
        type(jitter) in (int, float) and math.isfinite(jitter) and 0 <= jitter <= JITTER_AT_MOST_S
    ):
        return f"expected its jitter to be a number of seconds from 0 to {JITTER_AT_MOST_S}, got: {str(jitter)[:40]!r}"
    if isinstance(trigger, IntervalTrigger):
        if trigger.start_date is None:
            return "it has no start"
        if trigger.interval_length <= 0:
            return f"its interval is {trigger.interval_length} s"
    elif isinstance(trigger, CalendarIntervalTrigger):
        return _flaw_of_calendar(trigger)
    elif isinstance(trigger, AndTrigger) and not trigger.triggers:
        return "it combines no triggers"
    return None


def _flaw_of_calendar(trigger: Any) -> str | None:
    parts = [trigger.years, trigger.months, trigger.weeks, trigger.days]
    if any(type(part) is not int or part < 0 for part in parts) or not any(parts):
        return f"expected its interval to be whole years, months, weeks and days, got: {str(parts)[:80]}"
    if trigger.years * 12 + trigger.months > MONTHS_AT_MOST:
        return f"expected its interval to be at most {MONTHS_AT_MOST // 12} years, got: {str(parts)[:80]}"
    if type(trigger.start_date) not in (date, datetime) or type(trigger.end_date) not in (date, datetime, type(None)):
        return "its start or end is no date"
    if not isinstance(trigger.timezone, tzinfo):
        return "it has no time zone"
    return None
