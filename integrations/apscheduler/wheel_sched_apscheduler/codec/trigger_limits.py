"""What a built-in trigger may hold, so that asking it for its next run time neither raises nor goes on for ever.

APScheduler takes the fields of a trigger as they are and meets a wrong one only when it asks, in the middle of a
scheduler's loop. The same is asked here of what is added and of what is read.
"""

from __future__ import annotations

import math
from datetime import date, datetime, tzinfo
from typing import Any

from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger
from apscheduler.triggers.interval import IntervalTrigger

JITTER_AT_MOST_S = 366 * 86_400
MONTHS_AT_MOST = 12 * 1000  # beyond the end of the calendar CalendarIntervalTrigger looks for a date for ever


def flaw_of(trigger: Any) -> str | None:
    """What is wrong with a built-in trigger, None when nothing is; the parts of a combined one are asked alone."""
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
