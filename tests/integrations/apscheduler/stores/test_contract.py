"""The contract of an APScheduler jobstore, method by method, as APScheduler's own jobstores keep it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytz
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Finish, RedisWheelJobStore, WheelJobStore

BERLIN = [ZoneInfo("Europe/Berlin"), pytz.timezone("Europe/Berlin")]
OLD = datetime(2016, 5, 3, tzinfo=UTC)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]  # year, month ...


def ids(jobs: list[Any]) -> list[str]:
    return [job.id for job in jobs]


def test_an_unknown_job_is_none(store: Any) -> None:
    """`lookup_job` of an unknown id returns None."""
    assert store.lookup_job("nobody") is None


def test_a_job_is_found_as_it_was_added(store: Any, make_job: Any) -> None:
    """A look-up returns all fields of the job."""
    job = make_job(OLD, id="a", args=(1, "x"), kwargs={"k": [2]}, name="mine", misfire_grace_time=7, max_instances=3)
    store.add_job(job)
    found = store.lookup_job("a")
    assert found == job
    for name in ("args", "kwargs", "name", "func", "func_ref", "misfire_grace_time", "coalesce", "max_instances"):
        assert getattr(found, name) == getattr(job, name), name
    assert found.next_run_time == OLD
    assert repr(found.trigger) == repr(job.trigger)


def test_all_jobs_are_sorted_with_paused_ones_last(store: Any, make_job: Any) -> None:
    """Jobs are in order of next run time, then id. A paused job has no next run time."""
    for job_id, moment in [("p", None), ("late", at(2030, 1, 1)), ("b", OLD), ("a", OLD), ("early", at(1999, 1, 1))]:
        store.add_job(make_job(moment, id=job_id))
    assert ids(store.get_all_jobs()) == ["early", "a", "b", "late", "p"]


def test_due_jobs_are_sorted_and_end_at_now(store: Any, make_job: Any) -> None:
    """`get_due_jobs` returns only jobs that are due at the given time. Jobs of one time are in order of id."""
    for job_id, moment in [("c", at(2010, 1, 1)), ("b", OLD), ("a", OLD), ("later", OLD + timedelta(milliseconds=1))]:
        store.add_job(make_job(moment, id=job_id))
    assert ids(store.get_due_jobs(OLD - timedelta(days=1))) == ["c"]
    store.get_next_run_time()  # as a scheduler does after each `get_due_jobs`
    assert ids(store.get_due_jobs(OLD)) == ["c", "a", "b"]


def test_nothing_is_due_before_its_time(store: Any, make_job: Any) -> None:
    """A job that is due 400 µs after OLD is not due 399 µs after OLD: the store rounds the current time down to a
    millisecond, and a due time up."""
    store.add_job(make_job(OLD + timedelta(microseconds=400), id="a"))
    assert store.get_due_jobs(OLD + timedelta(microseconds=399)) == []
    store.get_next_run_time()
    assert ids(store.get_due_jobs(OLD + timedelta(milliseconds=1))) == ["a"]


def test_a_paused_job_is_never_due(store: Any, make_job: Any) -> None:
    """The store keeps a paused job without a due time."""
    store.add_job(make_job(None, id="p"))
    assert store.get_due_jobs(datetime.now(UTC)) == []
    store.get_next_run_time()
    assert store.lookup_job("p").next_run_time is None


def test_the_next_run_time_is_the_earliest(store: Any, make_job: Any) -> None:
    """The next run time is the earliest of all jobs that are not paused, or None if there is none."""
    assert store.get_next_run_time() is None
    store.add_job(make_job(None, id="p"))
    assert store.get_next_run_time() is None
    for job_id, moment in [("a", at(2030, 1, 1)), ("b", at(2016, 1, 1)), ("c", at(2020, 1, 1))]:
        store.add_job(make_job(moment, id=job_id))
    assert store.get_next_run_time() == at(2016, 1, 1)
    store.remove_job("b")
    assert store.get_next_run_time() == at(2020, 1, 1)


def test_an_id_can_be_added_once(store: Any, make_job: Any) -> None:
    """The second add raises, and the first job does not change."""
    store.add_job(make_job(OLD, id="a", name="first"))
    with pytest.raises(ConflictingIdError):
        store.add_job(make_job(at(2030, 1, 1), id="a", name="second"))
    assert store.lookup_job("a").name == "first"


def test_an_update_replaces_all_of_a_job(store: Any, make_job: Any) -> None:
    """`update_job` replaces arguments, trigger and run time too."""
    store.add_job(make_job(OLD, id="a"))
    trigger = IntervalTrigger(seconds=5, start_date=OLD, timezone="UTC")
    store.update_job(make_job(at(2031, 1, 1), id="a", args=(5,), trigger=trigger, name="new"))
    found = store.lookup_job("a")
    assert (found.args, found.name, found.next_run_time) == ((5,), "new", at(2031, 1, 1))
    assert repr(found.trigger) == repr(trigger)
    assert store.get_next_run_time() == at(2031, 1, 1)


@pytest.mark.parametrize("moved", ["a", "b", "c"])
def test_an_update_that_clears_the_run_time_pauses(store: Any, make_job: Any, moved: str) -> None:
    """`update_job` with a job that has no run time pauses it: the job is last in lists and is not due."""
    for job_id in "abc":
        store.add_job(make_job(OLD, id=job_id))
    store.update_job(make_job(None, id=moved))
    assert ids(store.get_all_jobs()) == [*(i for i in "abc" if i != moved), moved]
    assert ids(store.get_due_jobs(OLD)) == [i for i in "abc" if i != moved]


def test_a_paused_job_can_wait_again(store: Any, make_job: Any) -> None:
    """A paused job is due again after `update_job` gives it a run time."""
    store.add_job(make_job(None, id="p"))
    store.update_job(make_job(OLD, id="p"))
    assert ids(store.get_due_jobs(OLD)) == ["p"]


def test_what_is_not_there_cannot_be_updated_or_removed(store: Any, make_job: Any) -> None:
    """`update_job` and `remove_job` raise for an unknown id, and add nothing."""
    with pytest.raises(JobLookupError):
        store.update_job(make_job(OLD, id="a"))
    with pytest.raises(JobLookupError):
        store.remove_job("a")
    assert store.get_all_jobs() == []


def test_a_removed_job_is_gone(store: Any, make_job: Any) -> None:
    """A look-up or a list does not return the job, and a second removal raises. Its id can be added again."""
    store.add_job(make_job(OLD, id="a"))
    store.add_job(make_job(OLD, id="b"))
    store.remove_job("a")
    assert store.lookup_job("a") is None
    assert ids(store.get_all_jobs()) == ["b"]
    with pytest.raises(JobLookupError):
        store.remove_job("a")
    store.add_job(make_job(OLD, id="a"))
    assert ids(store.get_due_jobs(OLD)) == ["a", "b"]


def test_all_jobs_can_be_removed(store: Any, make_job: Any) -> None:
    """`remove_all_jobs` removes waiting jobs and paused jobs."""
    for number in range(20):
        store.add_job(make_job(OLD if number % 2 else None, id=f"j{number}"))
    store.remove_all_jobs()
    assert store.get_all_jobs() == []
    assert store.get_next_run_time() is None


def test_a_pass_advances_and_removes(store: Any, make_job: Any) -> None:
    """A scheduler updates or removes the due jobs. The store keeps the changes after `get_next_run_time`."""
    store.add_job(make_job(OLD, id="once"))
    store.add_job(make_job(OLD, id="again", trigger=IntervalTrigger(seconds=60, start_date=OLD, timezone="UTC")))
    again, once = store.get_due_jobs(OLD)
    assert (again.id, once.id) == ("again", "once")
    for job in (again, once):
        job._get_run_times(OLD)
    again.next_run_time = OLD + timedelta(seconds=60)
    store.update_job(again)
    store.remove_job("once")
    assert store.get_next_run_time() <= OLD + timedelta(seconds=60)
    assert store.lookup_job("again").next_run_time == OLD + timedelta(seconds=60)
    assert store.lookup_job("once") is None
    assert ids(store.get_all_jobs()) == ["again"]


def test_a_pass_that_leaves_a_job_alone_gives_it_back(store: Any, make_job: Any) -> None:
    """A due job that is neither updated nor removed before `get_next_run_time` is due again."""
    store.add_job(make_job(OLD, id="a"))
    for _ in range(3):
        assert ids(store.get_due_jobs(OLD)) == ["a"]
        store.get_next_run_time()


def test_a_pass_is_bounded(request: pytest.FixtureRequest, make_job: Any) -> None:
    """If more than one batch is due, `get_due_jobs` returns one batch, and the next run time is not after now."""
    for store in (WheelJobStore(batch=3), request.getfixturevalue("open_fake")(batch=3)):
        for number in range(7):
            store.add_job(make_job(OLD, id=f"j{number}"))
        sizes = []
        while due := store.get_due_jobs(OLD):
            sizes.append(len(due))
            for job in due:
                job._get_run_times(OLD)
                store.remove_job(job.id)
            wake_at = store.get_next_run_time()
            if len(due) == 3:
                assert wake_at <= OLD
        assert sizes == [3, 3, 1]


@pytest.mark.parametrize("zone", BERLIN, ids=["zoneinfo", "pytz"])
def test_both_hours_of_a_fold_are_kept_apart(store: Any, make_job: Any, zone: tzinfo) -> None:
    """02:30 exists twice when summer time ends. Each job keeps its instant, and its zone stays one of zoneinfo or of
    pytz."""
    first = at(2026, 10, 25, 0, 30).astimezone(zone)
    second = at(2026, 10, 25, 1, 30).astimezone(zone)
    assert first.replace(tzinfo=None) == second.replace(tzinfo=None)
    store.add_job(make_job(second, id="second"))
    store.add_job(make_job(first, id="first"))
    jobs = store.get_all_jobs()
    assert ids(jobs) == ["first", "second"]
    assert [job.next_run_time.utcoffset() for job in jobs] == [timedelta(hours=2), timedelta(hours=1)]
    assert {type(job.next_run_time.tzinfo).__module__.split(".")[0] for job in jobs} == {
        type(first.tzinfo).__module__.split(".")[0]
    }


@pytest.mark.parametrize("zone", BERLIN, ids=["zoneinfo", "pytz"])
def test_a_cron_job_goes_over_a_gap_and_a_fold(store: Any, make_job: Any, zone: tzinfo) -> None:
    """An hourly job runs once in each hour of real time, whatever the wall clock shows."""
    for day in (at(2026, 3, 29), at(2026, 10, 25)):
        start = (day - timedelta(hours=1)).astimezone(zone)
        trigger = CronTrigger(minute=0, timezone=zone)
        store.add_job(make_job(start, id="hourly", trigger=trigger))
        fired = []
        for hour in range(6):
            now = start.astimezone(UTC) + timedelta(hours=hour)
            (job,) = store.get_due_jobs(now)
            fired += job._get_run_times(now)
            job.next_run_time = job.trigger.get_next_fire_time(fired[-1], now)
            store.update_job(job)
            store.get_next_run_time()
            store.finish(job.occurrence, Finish.EXECUTED)
            if isinstance(store, RedisWheelJobStore):
                store.tracker.flush()
        moments = [moment.astimezone(UTC) for moment in fired]
        assert moments == [(start.astimezone(UTC) + timedelta(hours=hour)) for hour in range(6)]
        store.remove_job("hourly")


def test_a_job_from_before_1970_is_due_at_once(store: Any, make_job: Any) -> None:
    """Jobs with a run time before 1970 are due at once, the earliest first. When all are removed, no job is due."""
    old = datetime(1931, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
    store.add_job(make_job(at(1969, 12, 31, 23, 59), id="b"))
    store.add_job(make_job(old, id="a"))
    store.add_job(make_job(at(1970, 1, 2), id="c"))
    now = datetime.now(UTC)
    due = store.get_due_jobs(now)
    assert ids(due) == ["a", "b", "c"]
    assert due[0].next_run_time == old
    for job in due:
        job._get_run_times(now)
        store.remove_job(job.id)
    wake_at = store.get_next_run_time()
    assert wake_at is None or wake_at > now
    assert store.get_due_jobs(now) == []


@pytest.mark.real
def test_a_start_without_a_scheduler_is_allowed(open_real: Any, make_job: Any) -> None:
    """`start` accepts None instead of a scheduler, as the test suites of other stores call it. A second `shutdown` is
    no error."""
    for store in (WheelJobStore(), open_real()):
        store.start(None, "alias")
        store.add_job(make_job(OLD, id="a"))
        assert ids(store.get_due_jobs(OLD)) == ["a"]
        store.shutdown()
        store.shutdown()


def test_a_store_shows_its_state(store: Any) -> None:
    """The repr of a store names its class."""
    assert type(store).__name__ in repr(store)
