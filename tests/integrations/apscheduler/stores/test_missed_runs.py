"""A pass gives a bounded number of run times to an executor, after any outage and for any interval."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import run_times
from wheel_sched_apscheduler.run_times import RUN_TIMES_AT_MOST, missed_runs

NOW = datetime(2026, 5, 3, 12, tzinfo=UTC)
US = timedelta(microseconds=1)


def job_of(trigger: Any, since: datetime, *, coalesce: bool = False) -> Any:
    """An object with the fields of a job that `missed_runs` reads."""
    return SimpleNamespace(id="j", trigger=trigger, next_run_time=since, coalesce=coalesce)


def every(length: timedelta, since: datetime, **options: Any) -> IntervalTrigger:
    """An interval trigger."""
    seconds = length.total_seconds()
    return IntervalTrigger(seconds=seconds, start_date=since, timezone="UTC", **options)


class Still(BaseTrigger):
    """A trigger that returns the same moment at each call."""

    def get_next_fire_time(self, previous: Any, _: datetime) -> datetime:
        return previous or NOW - timedelta(days=1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets a small limit for run times, and returns it."""
    monkeypatch.setattr(run_times, "RUN_TIMES_AT_MOST", 100)
    return 100


def test_a_second_of_a_day_without_coalescing_is_bounded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """A job that runs every second has missed a day. The 9,999 oldest run times and the last one are returned. The
    others are dropped, and the log says so."""
    since = NOW - timedelta(days=1)
    with caplog.at_level(logging.WARNING):
        times, following = missed_runs(job_of(every(timedelta(seconds=1), since), since), NOW)
    assert RUN_TIMES_AT_MOST == len(times) == 10_000
    assert times[:3] == [since + timedelta(seconds=n) for n in range(3)]
    assert times[-2:] == [since + timedelta(seconds=9_998), NOW]
    assert following == NOW + timedelta(seconds=1)
    assert "'j'" in caplog.text
    assert "10000" in caplog.text


def test_within_the_bound_every_run_time_is_handed_over(few: int, caplog: pytest.LogCaptureFixture) -> None:
    """As many run times as the limit allows are all returned."""
    for count in (few - 1, few):
        since = NOW - timedelta(seconds=count - 1)
        times, following = missed_runs(job_of(every(timedelta(seconds=1), since), since), NOW)
        assert times == [since + timedelta(seconds=n) for n in range(count)]
        assert following == NOW + timedelta(seconds=1)
    assert caplog.text == ""


@pytest.mark.parametrize("coalesce", [True, False])
@pytest.mark.parametrize("since", [NOW - timedelta(days=10), datetime(1, 1, 1, tzinfo=UTC)], ids=["days", "ever"])
@pytest.mark.parametrize("kind", ["interval", "no jitter", "or", "cron", "jitter"])
@pytest.mark.usefixtures("few")
def test_the_shortest_interval_after_any_time_ends(kind: str, since: datetime, coalesce: bool) -> None:
    """A trigger with an interval of a microsecond has missed 10^12 run times or more. The search for them ends. It ends
    also for a trigger with jitter, even zero, for which there is no quick search."""
    triggers: dict[str, Any] = {
        "interval": every(US, since),
        "no jitter": every(US, since, jitter=0),
        "or": OrTrigger([every(US, since), every(US * 2, since)]),
        "cron": CronTrigger(second="*", timezone="UTC"),
        "jitter": every(US, since, jitter=1e-5),
    }
    times, following = missed_runs(job_of(triggers[kind], since, coalesce=coalesce), NOW)
    assert len(times) == (1 if coalesce else 100)
    assert NOW - timedelta(seconds=1) <= times[-1] <= NOW
    assert following is not None
    assert NOW < following <= NOW + timedelta(seconds=1)


@pytest.mark.usefixtures("few")
def test_a_trigger_that_never_comes_past_now_is_a_failing_one() -> None:
    """`missed_runs` raises an error, because the trigger would never give a time after now."""
    job = job_of(Still(), NOW - timedelta(days=1))
    with pytest.raises(ValueError, match="no run time after now"):
        missed_runs(job, NOW)


def test_a_look_at_a_job_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """With `quiet`, `missed_runs` does not log that it leaves out run times."""
    since = NOW - timedelta(days=1)
    missed_runs(job_of(every(timedelta(seconds=1), since), since), NOW, quiet=True)
    assert caplog.text == ""


@pytest.mark.usefixtures("few")
def test_the_search_ends_at_the_first_day_of_the_calendar() -> None:
    """A cron schedule has no date before the year 9998, but the job has been due since the year 1. The search for the
    last missed run goes back from now, and stops at the year 1 without an error."""
    since = datetime(1, 1, 1, tzinfo=UTC)
    never = CronTrigger(year=9998, timezone="UTC")
    assert missed_runs(job_of(never, since, coalesce=True), NOW) == ([since], datetime(9998, 1, 1, tzinfo=UTC))
