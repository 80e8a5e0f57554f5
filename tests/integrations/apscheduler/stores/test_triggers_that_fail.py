"""A trigger that raises affects only its own job. No scheduler's loop ends, and no other job is delayed."""

from __future__ import annotations

import json
import logging
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import WheelJobStore
from wheel_sched_apscheduler.codec import JobCodec, NotSerializable, Unreadable
from wheel_sched_apscheduler.run_times import missed_runs
from wheel_sched_apscheduler.schedulers.claiming_source import ClaimingJobSource

NOW = datetime.now(UTC).replace(microsecond=0)


class Failing(BaseTrigger):
    """A user's trigger that raises."""

    def get_next_fire_time(self, *_: Any) -> datetime:
        raise ZeroDivisionError("of the trigger")

    def __getstate__(self) -> dict[str, int]:
        return {}

    def __setstate__(self, _: dict[str, int]) -> None:
        """Does nothing, because the trigger has no state."""


class Fickle(Failing):
    """A trigger that answers its first call and raises at every later call."""

    asked = 0

    def get_next_fire_time(self, *_: Any) -> datetime:
        self.asked += 1
        if self.asked > 1:
            raise ZeroDivisionError("the second time")
        return NOW + timedelta(hours=1)


def stock_pass(store: Any, now: datetime = NOW) -> dict[str, list[datetime]]:
    """Make the calls of a stock scheduler's pass. Returns the submitted jobs."""
    submitted = {}
    for job in store.get_due_jobs(now):
        run_times = job._get_run_times(now)
        run_times = run_times[-1:] if run_times and job.coalesce else run_times
        if run_times:
            submitted[job.id] = run_times
            following = job.trigger.get_next_fire_time(run_times[-1], now)
            if following:
                job.next_run_time = following
                store.update_job(job)
            else:
                store.remove_job(job.id)
    store.get_next_run_time()
    return submitted


def too_long() -> IntervalTrigger:
    """A valid interval whose next run time is beyond the calendar."""
    return IntervalTrigger(days=999_999_999, start_date=NOW, timezone="UTC")


def with_jitter(make_job: Any, kind: type, jitter: Any) -> bytes:
    """The record of a job with this jitter, as an attacker with access to the store could write it."""
    triggers: dict[type, Any] = {
        IntervalTrigger: IntervalTrigger(seconds=1, jitter=12345, timezone="UTC"),
        CalendarIntervalTrigger: CalendarIntervalTrigger(days=1, jitter=12345, timezone="UTC"),
        AndTrigger: AndTrigger([IntervalTrigger(seconds=1, timezone="UTC")], jitter=12345),
    }
    raw = JobCodec().encode(make_job(NOW, id="j", trigger=triggers[kind]))
    assert raw.count(b"12345") == 1
    return raw.replace(b"12345", json.dumps(jitter).encode())


@pytest.mark.parametrize("kind", [IntervalTrigger, CalendarIntervalTrigger, AndTrigger])
@pytest.mark.parametrize("jitter", ["x", 1e300, -1, True, [1], 10**9])
def test_a_stored_jitter_is_a_number_of_seconds_within_bounds(make_job: Any, kind: type, jitter: Any) -> None:
    """A stored jitter is refused if `random.uniform` or the calendar would raise on it in a scheduler's loop."""
    with pytest.raises(Unreadable, match="jitter"):
        JobCodec().decode("j", with_jitter(make_job, kind, jitter))


def test_a_jitter_in_floating_seconds_stays(make_job: Any) -> None:
    """The codec keeps a jitter of a quarter of a second, of zero, and of None."""
    for jitter in (0, 0.25, None):
        trigger = IntervalTrigger(seconds=1, jitter=jitter, timezone="UTC")
        codec = JobCodec()
        assert codec.decode("j", codec.encode(make_job(NOW, id="j", trigger=trigger))).job.trigger.jitter == jitter


@pytest.mark.parametrize(
    "trigger",
    [
        IntervalTrigger(seconds=1, jitter=-1, timezone="UTC"),
        IntervalTrigger(seconds=1, jitter=10**9, timezone="UTC"),
        CalendarIntervalTrigger(days=1, jitter="5", timezone="UTC"),  # type: ignore[arg-type]
        CalendarIntervalTrigger(years=5_000, timezone="UTC"),
        CalendarIntervalTrigger(months=-1, timezone="UTC"),
        AndTrigger([]),
    ],
    ids=["negative", "huge", "text", "years", "backwards", "no parts"],
)
def test_what_would_be_unreadable_is_refused_when_it_is_added(make_job: Any, trigger: Any) -> None:
    """The codec refuses the job when it is added, because it could never be read again."""
    with pytest.raises(NotSerializable, match="nothing was stored"):
        JobCodec().encode(make_job(NOW, trigger=trigger))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("interval", [9000, 0, 0, 0]), ("interval", [0, -1, 0, 0]), ("interval", ["1", 0, 0, 0]), ("start_date", None)],
)
def test_a_stored_calendar_interval_that_never_comes_is_unreadable(make_job: Any, field: str, wrong: Any) -> None:
    """The codec refuses such a trigger: APScheduler would search for its next date for ever, or raise."""
    trigger = CalendarIntervalTrigger(days=1, start_date=date(2026, 1, 1), timezone="UTC")
    codec = JobCodec()
    front, _, doc = codec.encode(make_job(NOW, id="j", trigger=trigger)).rpartition(b";")
    found = json.loads(doc)
    found["t"][1][field] = wrong
    with pytest.raises(Unreadable, match="calendarinterval"):
        codec.decode("j", front + b";" + json.dumps(found).encode())


def test_an_interval_without_a_start_is_unreadable(make_job: Any) -> None:
    """A stored interval without a start is unreadable, because APScheduler would compare the missing start with now."""
    codec = JobCodec()
    raw = codec.encode(make_job(NOW, id="j", trigger=IntervalTrigger(seconds=1, timezone="UTC")))
    front, _, doc = raw.rpartition(b";")
    found = json.loads(doc)
    found["t"][1][1] = None
    with pytest.raises(Unreadable, match="start"):
        codec.decode("j", front + b";" + json.dumps(found).encode())


def test_a_pass_survives_a_trigger_that_no_calendar_satisfies(open_fake: Any, make_job: Any) -> None:
    """A job's next run time is beyond the calendar. The job is quarantined, and the other job of the pass runs."""
    store = open_fake()
    store.add_job(make_job(NOW, id="bad", trigger=too_long()))
    store.add_job(make_job(NOW, id="good"))
    assert stock_pass(store) == {"good": [NOW]}
    store.tracker.flush()
    (entry,) = store.quarantined()
    assert (entry.id, "its trigger failed" in entry.reason) == ("bad", True)


def test_a_trigger_of_ones_own_that_fails_is_given_back(open_fake: Any, make_job: Any) -> None:
    """A job whose trigger class raises is given back, because another process may have a corrected class. Only after
    many rounds of refusals is the job quarantined."""
    store = open_fake(triggers=[Failing])
    store.add_job(make_job(NOW, id="bad", trigger=Failing()))
    store.add_job(make_job(NOW, id="good"))
    assert stock_pass(store) == {"good": [NOW]}
    store.tracker.flush()
    entry = store.get_entry("bad")
    assert entry.state == "scheduled"
    assert "ZeroDivisionError" in entry.reason
    assert [run.job_id for run in store.in_flight()] == ["good"]


def test_a_pass_asks_a_trigger_once_for_what_comes_next(open_fake: Any, make_job: Any) -> None:
    """A pass calls the trigger once for the next run time. A second call could give another time, because jitter is
    random."""
    store = open_fake(triggers=[Fickle])
    store.add_job(make_job(NOW, id="j", trigger=Fickle()))
    assert stock_pass(store) == {"j": [NOW]}
    store.tracker.flush()
    assert store.lookup_job("j").next_run_time == NOW + timedelta(hours=1)


def test_in_memory_it_is_said_and_tried_again(make_job: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A memory store has no quarantine, so it keeps the job, logs the error and asks the trigger again later."""
    store = WheelJobStore()
    store.start(None, "default")
    store.add_job(make_job(NOW, id="bad", trigger=Failing()))
    store.add_job(make_job(NOW, id="good"))
    with caplog.at_level(logging.ERROR):
        assert stock_pass(store) == {"good": [NOW]}
    assert "'bad'" in caplog.text
    assert store.lookup_job("bad") is not None
    assert stock_pass(store, NOW + timedelta(seconds=1)) == {}


@pytest.mark.parametrize(
    "trigger",
    [
        AndTrigger([CronTrigger(hour="1,2", timezone="UTC"), CronTrigger(hour="2,3", timezone="UTC")]),
        OrTrigger([AndTrigger([IntervalTrigger(hours=n, start_date=NOW, timezone="UTC") for n in (1, 2)])]),
    ],
    ids=["cron", "intervals"],
)
def test_parts_that_never_agree_hold_nobody_up(open_fake: Any, make_job: Any, trigger: Any) -> None:
    """The parts of an AndTrigger have no common time. The job is quarantined, because APScheduler would search for
    ever, under the scheduler's lock."""
    due = NOW.replace(hour=2, minute=0, second=0) - timedelta(days=1)
    store = open_fake()
    store.add_job(make_job(due, id="bad", trigger=trigger))
    store.add_job(make_job(NOW, id="good"))
    assert stock_pass(store) == {"good": [NOW]}
    store.tracker.flush()
    (entry,) = store.quarantined()
    assert "never agree" in entry.reason


def test_parts_that_agree_run_when_they_do(open_fake: Any, make_job: Any) -> None:
    """A job with a combined trigger runs at the time that APScheduler computes, with or without jitter."""
    hourly = IntervalTrigger(hours=1, start_date=NOW, timezone="UTC")
    ended = DateTrigger(NOW, "UTC")
    for trigger in (AndTrigger([hourly, hourly]), OrTrigger([hourly, ended]), AndTrigger([hourly, ended])):
        expected = trigger.get_next_fire_time(NOW, NOW)
        assert missed_runs(make_job(NOW, trigger=trigger), NOW) == ([NOW], expected)
    trigger = AndTrigger([hourly, hourly], jitter=5)
    _, following = missed_runs(make_job(NOW, trigger=trigger), NOW)
    assert following is not None
    assert NOW + timedelta(hours=1) <= following <= NOW + timedelta(hours=1, seconds=5)


def test_a_wheel_scheduler_does_the_same(open_fake: Any, make_job: Any) -> None:
    """Our scheduler too quarantines a job whose trigger fails, and runs the other one."""
    store = open_fake()
    store.driven = True
    store.add_job(make_job(NOW, id="bad", trigger=too_long()))
    store.add_job(make_job(NOW, id="good"))
    source = ClaimingJobSource(store, "default", {"default"}, lambda: None, 10.0, 100, logging.getLogger("test"))
    assert [submission.job.id for submission in source.take(NOW, 10).submissions] == ["good"]
    store.tracker.flush()
    assert [entry.id for entry in store.quarantined()] == ["bad"]
