"""A trigger in plain words, such as "at 02:30 on weekdays, Europe/Berlin". Only the six triggers of APScheduler.

The functions are pure. They read fields of the trigger, and ask it for no run time. The words of cron fields are in
`cron_words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched_apscheduler.management.cron_words import cron_sentence, joined

_LONGEST = 600  # characters of a sentence
_PARTS = 8  # at most this many parts of a combination are listed


def trigger_words(trigger: Any) -> str:
    """A trigger as a sentence without a full stop, cut if it is long; "" if it is not one of APScheduler's."""
    words = _words(trigger)
    return words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."


def _words(trigger: Any) -> str:
    if isinstance(trigger, DateTrigger):
        return f"once, at {_moment(trigger.run_date)}, {zone_words(trigger.run_date.tzinfo)}"
    if isinstance(trigger, IntervalTrigger):
        return length_words(trigger.interval) + _bounds(None, trigger.end_date) + _jitter(trigger.jitter)
    if isinstance(trigger, CronTrigger):
        fields = {field.name: str(field) for field in trigger.fields}
        bounds = _bounds(trigger.start_date, trigger.end_date) + _jitter(trigger.jitter)
        return f"{cron_sentence(fields)}, {zone_words(trigger.timezone)}{bounds}"
    if isinstance(trigger, CalendarIntervalTrigger):
        return _calendar(trigger)
    if isinstance(trigger, AndTrigger):
        return _combined(trigger, "at the times that all of these share: ", " and ")
    if isinstance(trigger, OrTrigger):
        return _combined(trigger, "at the times of each of these: ", " or ")
    return ""


def length_words(length: timedelta) -> str:
    """How often, such as "every 5 minutes", "every day" or "every 1 hour 30 minutes"."""
    minutes, seconds = divmod(length.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    weeks, days = (length.days // 7, 0) if length.days % 7 == 0 else (0, length.days)
    parts = [
        (count, unit)
        for count, unit in (
            (weeks, "week"),
            (days, "day"),
            (hours, "hour"),
            (minutes, "minute"),
            (seconds, "second"),
            (length.microseconds, "microsecond"),
        )
        if count
    ]
    return _every(parts)


def zone_words(zone: Any) -> str:
    """The name of a time zone."""
    return str(getattr(zone, "key", None) or getattr(zone, "zone", None) or zone)


def _every(parts: Sequence[tuple[int, str]]) -> str:
    if len(parts) == 1 and parts[0][0] == 1:
        return f"every {parts[0][1]}"
    return "every " + " ".join(f"{count:,} {unit}{'' if count == 1 else 's'}" for count, unit in parts)


def _calendar(trigger: CalendarIntervalTrigger) -> str:
    parts = [(trigger.years, "year"), (trigger.months, "month"), (trigger.weeks, "week"), (trigger.days, "day")]
    at = trigger._time.strftime("%H:%M:%S").removesuffix(":00")
    often = _every([part for part in parts if part[0]])
    end = f", until {trigger.end_date}" if trigger.end_date else ""
    zone = zone_words(trigger.timezone)
    return f"{often} from {trigger.start_date} at {at}, {zone}{end}{_jitter(trigger.jitter)}"


def _combined(trigger: Any, head: str, link: str) -> str:
    if not trigger.triggers:
        return "never"
    parts = [_words(part) or f"a trigger of the class {type(part).__name__}" for part in trigger.triggers[:_PARTS]]
    if len(trigger.triggers) == 1:
        return parts[0] + _jitter(trigger.jitter)
    if len(trigger.triggers) > _PARTS:
        parts.append(f"{len(trigger.triggers) - _PARTS:,} more")
    return head + joined([f"({part})" for part in parts], link) + _jitter(trigger.jitter)


def _bounds(start: datetime | None, end: datetime | None) -> str:
    since = f", from {_moment(start)}" if start is not None else ""
    return since + (f", until {_moment(end)}" if end is not None else "")


def _moment(moment: datetime) -> str:
    """The date and the time. Leaves the seconds out if they are 0."""
    text = moment.replace(tzinfo=None).isoformat(" ")
    return text.removesuffix(":00")


def _jitter(seconds: float | None) -> str:
    return f", up to {seconds:g} s later by chance" if seconds else ""
