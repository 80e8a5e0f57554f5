"""Triggers are described in plain words."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler.management.cron_words import values_of
from wheel_sched_apscheduler.management.trigger_words import trigger_words

BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("crontab", "words"),
    [
        ("30 2 * * mon-fri", "at 02:30 on weekdays"),
        ("30 2 * * *", "at 02:30 every day"),
        ("0 9,12,18 * * sat,sun", "at 09:00, 12:00 and 18:00 on weekends"),
        ("0 */5 * * *", "at 00:00, 05:00, 10:00, 15:00 and 20:00 every day"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("1-59/2 * * * *", "at minutes 1-59/2 of every hour"),
        ("5-20 * * * *", "every minute from 5 to 20 of every hour"),
        ("10-20 3 * * *", "every minute from 03:10 to 03:20"),
        ("*/5 3 * * *", "every 5 minutes from 03:00 to 03:59"),
        ("*/15 9-17 * * mon-fri", "every 15 minutes from 09:00 to 17:59 on weekdays"),
        ("*/15 1,3,5 * * *", "every 15 minutes in hours 1, 3 and 5"),
        ("0 * * * *", "every hour"),
        ("15 * * * *", "every hour at minute 15"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 */2 * * *", "every 2 hours at minute 30"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00"),
        ("0 1,3,5,7,9,11,13 * * *", "at minute 0 of hours 1, 3, 5, 7, 9, 11 and 13"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 1,15 * *", "at 00:00 on days 1 and 15 of the month"),
        ("0 0 1-7 * *", "at 00:00 on days 1 to 7 of the month"),
        ("0 0 */2 * *", "at 00:00 on days */2 of the month"),
        ("0 0 1 1,7 *", "at 00:00 on day 1 of January and July"),
        ("5 4 * 6-8 *", "at 04:05 in June to August"),
        ("0 0 13 * fri", "at 00:00 on day 13 of the month if that is a Friday"),
        ("0 0 1 * mon,fri", "at 00:00 on day 1 of the month if that is a Monday or Friday"),
        ("0 0 * * mon,wed,fri", "at 00:00 on Mondays, Wednesdays and Fridays"),
        ("0 0 * * mon-thu", "at 00:00 on Monday to Thursday"),
        ("0 0 * * sun", "at 00:00 on Sundays"),
        ("0 0 * * mon-sun", "at 00:00 every day"),
    ],
)
def test_a_crontab_is_told_as_a_sentence(crontab: str, words: str) -> None:
    """The words of a crontab are the times of day, the days, and the time zone."""
    assert trigger_words(CronTrigger.from_crontab(crontab, BERLIN)) == f"{words}, {BERLIN}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"day": "last", "hour": 3}, "at 03:00 on the last day of the month"),
        ({"day": "2nd fri", "hour": 3}, "at 03:00 on the second Friday of the month"),
        ({"day": "1st mon,last sun", "hour": 3}, "at 03:00 on the first Monday and the last Sunday of the month"),
        ({"day": "15,last", "hour": 3}, "at 03:00 on day 15 and the last day of the month"),
        ({"second": "*"}, "every second"),
        ({"second": "*/10"}, "every 10 seconds"),
        ({"second": "*/5", "minute": "*", "hour": "9-12"}, "every 5 seconds from 09:00 to 12:59"),
        ({"second": "*/5", "minute": "0", "hour": "*"}, "every 5 seconds of minute 0"),
        ({"hour": 4, "minute": 5, "second": 6}, "at 04:05:06 every day"),
        ({"minute": "*", "second": 30}, "every minute at second 30"),
        ({"week": 10, "day_of_week": "mon"}, "at 00:00 on Mondays in week 10 of the year"),
        ({"year": 2027, "month": 3, "day": 4, "hour": 5}, "at 05:00 on day 4 of March in 2027"),
        ({"year": "2026-2028", "month": 3}, "at 00:00 on day 1 of March in 2026, 2027 and 2028"),
        ({"month": 6}, "at 00:00 on day 1 of June"),
    ],
)
def test_the_fields_of_a_cron_trigger_are_told(fields: dict[str, Any], words: str) -> None:
    """Seconds, weeks, years and positions of days have words too."""
    assert trigger_words(CronTrigger(timezone="UTC", **fields)) == f"{words}, UTC"


def test_the_limits_and_the_jitter_of_a_trigger_are_told() -> None:
    """The words of a trigger say when it begins and ends, and by how much its jitter may delay it."""
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, 12, 30, 5, tzinfo=UTC)
    trigger = CronTrigger(hour=2, timezone="UTC", start_date=start, end_date=end, jitter=90)
    assert trigger_words(trigger) == (
        "at 02:00 every day, UTC, from 2026-01-01 00:00, until 2026-06-01 12:30:05, up to 90 s later by chance"
    )


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ({"minutes": 5}, "every 5 minutes"),
        ({"days": 1}, "every day"),
        ({"weeks": 1}, "every week"),
        ({"weeks": 2}, "every 2 weeks"),
        ({"days": 10}, "every 10 days"),
        ({"minutes": 90}, "every 1 hour 30 minutes"),
        ({"seconds": 1}, "every second"),
        ({"hours": 1}, "every hour"),
        ({"seconds": 0.5}, "every second"),
    ],
)
def test_an_interval_is_told(length: dict[str, float], words: str) -> None:
    """The words of an interval have one unit or several."""
    trigger = IntervalTrigger(timezone="UTC", **{unit: int(count) or 1 for unit, count in length.items()})
    assert trigger_words(trigger) == words


def test_an_interval_of_less_than_a_second_is_told() -> None:
    """A trigger that another program has stored may have any length."""
    trigger = IntervalTrigger(seconds=1, timezone="UTC")
    trigger.interval = timedelta(microseconds=1500)
    assert trigger_words(trigger) == "every 1,500 microseconds"


def test_a_date_is_told() -> None:
    """The trigger of a job that runs once is described by its date."""
    assert trigger_words(DateTrigger("2026-12-01 09:00:00", BERLIN)) == f"once, at 2026-12-01 09:00, {BERLIN}"


def test_a_calendar_interval_is_told() -> None:
    """Calendar intervals name their first day and their time of day."""
    trigger = CalendarIntervalTrigger(months=2, hour=9, start_date=date(2026, 1, 31), timezone=BERLIN)
    assert trigger_words(trigger) == f"every 2 months from 2026-01-31 at 09:00, {BERLIN}"
    trigger = CalendarIntervalTrigger(
        weeks=1, hour=9, start_date=date(2026, 1, 1), end_date=date(2026, 2, 1), timezone="UTC"
    )
    assert trigger_words(trigger) == "every week from 2026-01-01 at 09:00, UTC, until 2026-02-01"


def test_combinations_are_told() -> None:
    """The words name each part of a combination, and how the parts are combined."""
    parts = [CronTrigger(hour=2, timezone="UTC"), IntervalTrigger(hours=1, timezone="UTC")]
    assert trigger_words(OrTrigger(parts)) == (
        "at the times of each of these: (at 02:00 every day, UTC) or (every hour)"
    )
    assert trigger_words(AndTrigger(parts)) == (
        "at the times that all of these share: (at 02:00 every day, UTC) and (every hour)"
    )
    assert trigger_words(OrTrigger(parts[1:])) == "every hour"
    assert trigger_words(OrTrigger([])) == "never"


def test_a_large_combination_is_cut() -> None:
    """The words of a trigger have at most 600 characters."""
    words = trigger_words(OrTrigger([CronTrigger(hour=hour, timezone="UTC") for hour in range(24)] * 10))
    assert "232 more" in words
    assert len(words) <= 600


def test_an_unknown_trigger_has_no_words() -> None:
    """A trigger of a user's class is not asked anything."""
    assert trigger_words(object()) == ""
    assert trigger_words(None) == ""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("*", list(range(24))),
        ("*/6", [0, 6, 12, 18]),
        ("1-5", [1, 2, 3, 4, 5]),
        ("1-5/2,23", [1, 3, 5, 23]),
        ("20/2", [20, 22]),
        ("7", [7]),
        ("last", None),
        ("3-1", None),
        ("99999999999", None),
        ("1-99999999999", [*range(1, 24)]),
        ("", None),
    ],
)
def test_the_values_of_a_field(text: str, values: list[int] | None) -> None:
    """A field that is no list of numbers has no values; absurd numbers are cut to the field's range."""
    assert values_of(text, 0, 23) == values
