"""A wall clock shows an hour twice in autumn and skips one in spring. This makes no run late and loses no run."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import given
from hypothesis import strategies as st
from wheel_sched_apscheduler import WheelJobStore
from wheel_sched_apscheduler.run_times import grace_after_claim, missed_runs
from wheel_sched_apscheduler.schedulers.claiming_source import ClaimingJobSource

SCHEDULER = BackgroundScheduler(timezone=UTC)  # never started; a job asks it for its zone
BERLIN = ZoneInfo("Europe/Berlin")
AUTUMN = datetime(2025, 10, 26, 1, 0, tzinfo=UTC)  # 03:00 summer time becomes 02:00
ZONES = {  # the moments at which the offset of a zone changes
    "Europe/Berlin": [AUTUMN, datetime(2025, 3, 30, 1, 0, tzinfo=UTC)],
    "America/New_York": [datetime(2025, 11, 2, 6, 0, tzinfo=UTC), datetime(2025, 3, 9, 7, 0, tzinfo=UTC)],
    "Australia/Lord_Howe": [datetime(2025, 4, 5, 15, 0, tzinfo=UTC), datetime(2025, 10, 4, 15, 30, tzinfo=UTC)],
}


def do_nothing() -> None:
    """A job function that does nothing."""


def a_job(number: int, trigger: Any, next_run_time: datetime, **options: Any) -> Any:
    return Job(
        SCHEDULER,
        id=f"j{number}",
        func=do_nothing,
        args=(),
        kwargs={},
        name="j",
        trigger=trigger,
        executor="default",
        next_run_time=next_run_time,
        **{"misfire_grace_time": None, "coalesce": True, "max_instances": 1, **options},
    )


def head_after(jobs: list[Any], now: datetime) -> float | None:
    """When our scheduler makes its next pass after it has run these jobs, in seconds since 1970. None: no job is
    left."""
    store = WheelJobStore()
    store.driven = True
    for job in jobs:
        store.add_job(job)
    source = ClaimingJobSource(store, "default", ["default"], lambda: None, 1.0, 2_000, logging.getLogger(__name__))
    return source.take(now, 500).head_s


def head_of_stock(jobs: list[Any], now: datetime) -> float:
    """The earliest next run time, in seconds since 1970, computed from the triggers as a stock scheduler does."""
    heads = []
    for job in jobs:
        times = job._get_run_times(now)
        heads.append(job.trigger.get_next_fire_time(times[-1], now) if times else job.next_run_time)
    return min(head.timestamp() for head in heads if head is not None)


def test_the_doubled_hour_of_autumn_is_not_slept_through() -> None:
    """Two jobs run in one pass. The next pass is at the earlier of their next runs: 02:35 summer time, not 02:30 winter
    time."""
    now = datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN).astimezone(UTC)
    often = CronTrigger(minute="*/5", timezone=BERLIN)
    twice = CronTrigger(hour=2, minute=30, timezone=BERLIN)
    due = now.astimezone(BERLIN)
    assert head_after([a_job(1, often, due), a_job(2, twice, due)], now) == now.timestamp() + 300


@given(data=st.data())
def test_around_any_transition_the_next_pass_comes_when_stock_says(data: Any) -> None:
    """The next pass is at the earliest next run time, for all kinds of triggers in several zones."""
    name = data.draw(st.sampled_from(sorted(ZONES)))
    zone = ZoneInfo(name)
    change = data.draw(st.sampled_from(ZONES[name]))
    now = change + timedelta(minutes=5 * data.draw(st.integers(-18, 12)))
    triggers = st.one_of(
        st.builds(CronTrigger, minute=st.sampled_from(["*/5", "*/20", "30"]), timezone=st.just(zone)),
        st.builds(CronTrigger, hour=st.integers(0, 4), minute=st.sampled_from([0, 30]), timezone=st.just(zone)),
        st.builds(IntervalTrigger, minutes=st.integers(1, 90), start_date=st.just(change), timezone=st.just(zone)),
    )
    drawn = data.draw(st.lists(st.tuples(triggers, st.sampled_from([0, 0, 5, 30, -10])), min_size=1, max_size=5))
    jobs = [
        a_job(number, trigger, (now - timedelta(minutes=ago)).astimezone(zone))
        for number, (trigger, ago) in enumerate(drawn)
    ]
    store = WheelJobStore()
    for job in jobs:
        store.add_job(job)
    listed = [job.next_run_time.timestamp() for job in store.get_all_jobs()]
    assert listed == sorted(listed)
    expected = head_of_stock(jobs, now)
    assert head_after(jobs, now) == expected


def test_a_stock_scheduler_over_our_store_is_told_the_earliest_instant() -> None:
    """At the end of a pass the store returns the time of the next pass. To find it, the store compares instants, not
    wall clocks."""
    now = datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN)
    store = WheelJobStore()
    store.start(None, "default")
    for number, trigger in enumerate(
        [CronTrigger(minute="*/5", timezone=BERLIN), CronTrigger(hour=2, minute=30, timezone=BERLIN)]
    ):
        store.add_job(a_job(number, trigger, now))
    for job in store.get_due_jobs(now):
        run_times = job._get_run_times(now)
        job._modify(next_run_time=job.trigger.get_next_fire_time(run_times[-1], now))
        store.update_job(job)
    head = store.get_next_run_time()
    assert head is not None
    assert head.timestamp() == now.timestamp() + 300


@pytest.mark.parametrize("misfire", ["claim", "lenient"])
def test_a_grace_is_counted_in_time_that_has_passed(misfire: Any) -> None:
    """The grace time counts real time. A stock scheduler gives the store local time, which jumps from 02:59 back to
    02:00 in autumn."""
    run_time = datetime(2025, 10, 26, 2, 59, tzinfo=BERLIN)
    late = (run_time.astimezone(UTC) + timedelta(minutes=50)).astimezone(BERLIN)  # 02:49
    soon = (run_time.astimezone(UTC) + timedelta(minutes=2)).astimezone(BERLIN)
    job = a_job(1, DateTrigger(run_time), run_time, misfire_grace_time=600)
    assert grace_after_claim(job, late, misfire) == 600
    assert grace_after_claim(job, soon, misfire) is None


def test_a_backlog_that_coalesces_starts_at_an_instant_after_the_first() -> None:
    """A job was first due at 02:50 summer time. At 02:10 winter time, 20 minutes later, it runs once, for its last run
    time."""
    first = datetime(2025, 10, 26, 2, 50, tzinfo=BERLIN)
    now = datetime(2025, 10, 26, 2, 10, 30, tzinfo=BERLIN, fold=1)
    job = a_job(1, CronTrigger(minute="*", timezone=BERLIN), first)
    runs, following = missed_runs(job, now)
    assert [run.timestamp() for run in runs] == [now.timestamp() - 30]
    assert following is not None
    assert following.timestamp() == now.timestamp() + 30


def test_two_runs_of_one_wall_clock_are_told_apart() -> None:
    """One run of a job is at 02:30 summer time, and one at 02:30 winter time. The store finds the right occurrence for
    each."""
    summer = datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN)
    winter = summer.replace(fold=1)
    store = WheelJobStore()
    store.start(None, "default")
    occurrences = []
    for number, moment in enumerate([summer, winter]):
        job = a_job(number, DateTrigger(moment), moment)
        job.id = "j"
        store.add_job(job)
        (handed,) = store.get_due_jobs(moment)
        handed._get_run_times(moment)
        store.remove_job("j")
        store.get_next_run_time()
        occurrences.append(handed.occurrence)
    assert store._occurrence_of("j", winter) is occurrences[1]
    assert store._occurrence_of("j", summer) is occurrences[0]
    assert occurrences[0].id != occurrences[1].id
