"""Due times compared with Celery's own `is_due`: it says due at each due time, and never before."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import pytest
from celery.schedules import crontab, schedule
from wheel_sched_celery.beat.next_due import COUNTED, ask, due_until, first_due_ms, next_due_ms, next_runs

from wheel_sched.errors import Rejected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
CRONS: tuple[dict[str, Any], ...] = (
    {"minute": "*/15"},
    {"minute": "0", "hour": "4"},
    {"minute": "30", "hour": "2"},
    {"minute": "30", "hour": "1,2,3"},
    {"minute": "0", "hour": "0", "day_of_month": "29", "month_of_year": "2"},
    {"minute": "5", "hour": "9", "day_of_week": "mon-fri"},
)


def ms_of(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _is_due(value: Any, last_ms: int, now_ms: int) -> bool:
    """What Celery's beat says at `now_ms`, after a run at `last_ms`."""
    value.nowfun = lambda: (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(value.tz)
    try:
        last = (_EPOCH + timedelta(milliseconds=last_ms)).astimezone(value.tz)
        return bool(value.is_due(last).is_due)
    finally:
        value.nowfun = None


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", CRONS, ids=lambda cron: " ".join(cron.values()))
def test_a_crontab_is_due_when_celery_says_so(make_beat: Callable[..., Any], zone: str, cron: dict[str, str]) -> None:
    value = crontab(**cron, app=make_beat(timezone=zone).app)
    draw = random.Random(f"{zone}{cron}")
    for start in ("2026-03-07T00:00:00", "2026-03-28T20:00:00", "2026-10-24T20:00:00", "2026-11-01T00:00:00"):
        at_ms = ms_of(start) + draw.randrange(86_400_000)
        for _ in range(12):
            due_ms = next_due_ms(value, at_ms)
            assert due_ms > at_ms
            assert _is_due(value, at_ms, due_ms)
            assert not _is_due(value, at_ms, due_ms - 1)
            at_ms = due_ms


@pytest.mark.parametrize("every_s", [0.5, 7, 3600, 86_400])
@pytest.mark.parametrize("relative", [False, True])
def test_an_interval_is_due_when_celery_says_so(make_beat: Callable[..., Any], every_s: float, relative: bool) -> None:
    value = schedule(timedelta(seconds=every_s), relative, app=make_beat(timezone="Europe/Berlin").app)
    if celery.VERSION < (5, 7) and not relative and every_s == 86_400:
        pytest.skip("before 5.7 a day in Celery was a day of the clock on the wall, not 24 hours")
    at_ms = ms_of("2026-03-28T22:13:07.250")
    for _ in range(30):
        due_ms = next_due_ms(value, at_ms)
        assert due_ms > at_ms
        assert _is_due(value, at_ms, due_ms)
        assert not _is_due(value, at_ms, due_ms - 1) or (relative and every_s < 1)  # which Celery calls due at once
        at_ms = due_ms


def test_daylight_saving_as_in_celery(make_beat: Callable[..., Any]) -> None:
    berlin = make_beat(timezone="Europe/Berlin").app
    daily = crontab(minute="30", hour="2", app=berlin)
    spring = next_runs(daily, next_due_ms(daily, ms_of("2026-03-27T12:00:00")), 3)
    assert spring == [ms_of("2026-03-28T01:30:00"), ms_of("2026-03-29T01:30:00"), ms_of("2026-03-30T00:30:00")]
    autumn = next_runs(daily, next_due_ms(daily, ms_of("2026-10-24T12:00:00")), 2)
    assert autumn == [ms_of("2026-10-25T00:30:00"), ms_of("2026-10-26T01:30:00")]


def test_a_crontab_with_a_time_zone_of_its_own(beat: Any) -> None:
    made = beat.entries.make("one", "note", "0 4 * * *", tz="Asia/Kolkata")
    beat.entries.add(made)
    assert beat.entries.next_runs("one") == [ms_of("2026-03-10T22:30:00")]


def test_a_schedule_without_a_later_time_is_refused(beat: Any) -> None:
    class Never(crontab):  # type: ignore[misc]  # celery has no types
        def remaining_estimate(self, last_run_at: Any, ffwd: Any = None) -> timedelta:
            return timedelta(days=-1)

    with pytest.raises(Rejected, match="no time after"):
        next_due_ms(Never(app=beat.app), 0)


def test_the_first_due_time_of_a_changed_schedule(beat: Any) -> None:
    now_ms = beat.now_ms
    hourly = schedule(3600, app=beat.app)
    assert first_due_ms(hourly, now_ms) == now_ms + 3_600_000
    assert first_due_ms(hourly, now_ms, now_ms - 600_000) == now_ms + 3_000_000
    assert first_due_ms(hourly, now_ms, now_ms - 86_400_000) == now_ms
    assert first_due_ms(crontab("0", "5", app=beat.app), now_ms, now_ms - 86_400_000) == ms_of("2026-03-11T05:00:00")


@pytest.mark.parametrize("value", [schedule(60), crontab()], ids=["interval", "crontab"])
def test_of_missed_occurrences_the_last_ones_are_kept(beat: Any, value: Any) -> None:
    value.app = beat.app
    first_ms = ms_of("2026-03-10T10:00:00")
    due = due_until(value, first_ms, first_ms + 5 * 60_000 + 1, 2)
    assert due.dues_ms == (first_ms + 240_000, first_ms + 300_000)
    assert (due.dropped, due.next_ms) == (4, first_ms + 360_000)
    assert due_until(value, first_ms, first_ms, 5).dues_ms == (first_ms,)


def test_a_long_time_away_costs_little(beat: Any) -> None:
    value = crontab(app=beat.app)
    first_ms = ms_of("2020-01-01T00:00:00")
    now_ms = ms_of("2026-03-10T12:00:30")
    due = due_until(value, first_ms, now_ms, 3)
    assert due.dues_ms == tuple(now_ms - 30_000 - 60_000 * back for back in (2, 1, 0))
    assert (due.dropped, due.next_ms) == (COUNTED, now_ms + 30_000)


def test_a_schedule_of_the_app_is_asked(beat: Any) -> None:
    class Odd(schedule):  # type: ignore[misc]  # as above
        def is_due(self, last_run_at: datetime) -> Any:
            return (self.now() - last_run_at).total_seconds() > 90, 45

    value = Odd(60, app=beat.app)
    assert ask(value, 0, lambda: _EPOCH + timedelta(seconds=91)) == (True, 45_000)
    assert ask(value, 0, lambda: _EPOCH + timedelta(seconds=30)) == (False, 45_000)
