"""Due times of a virtual year compared with Celery's own, in zones with and without daylight saving.

Celery's times come from Celery's `is_due`, asked at each time that it names itself, as `celery beat` does. All
differences are listed here, and the tests fail if there is another one.

Celery before 5.7 counts intervals of hours and days by the wall clock: where clocks change they differ from the
intervals of docs/celery-beat.md, which count real time. So with these releases only crontabs are compared. Around each
change of the clocks all zones are compared, and the whole year only in one zone, because `make test-celery` runs this
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import crontab, schedule
from wheel_sched_celery.beat.next_due import next_due_ms

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago")
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# when the clocks change in 2028: forward and back, by the local date before the change
CHANGES = {
    "Europe/Berlin": ("2028-03-25", "2028-10-28"),
    "America/New_York": ("2028-03-11", "2028-11-04"),
    "Australia/Lord_Howe": ("2028-09-30", "2028-04-01"),
    "America/Santiago": ("2028-09-02", "2028-04-01"),
}
SPARSE: dict[str, Any] = {
    "daily in the skipped hour": lambda: crontab(minute="30", hour="2"),
    "Sunday before the change": lambda: crontab(minute="59", hour="1", day_of_week="sun"),
    "month ends": lambda: crontab(minute="0", hour="0", day_of_month="28-31"),
    "leap day": lambda: crontab(minute="0", hour="12", day_of_month="29", month_of_year="2"),
    "several hours": lambda: crontab(minute="15,45", hour="1-3"),
    "office hours": lambda: crontab(minute="*/30", hour="8-18", day_of_week="mon-fri"),
    "every 6 hours and 7 s": lambda: schedule(6 * 3600 + 7),
    "every day on the grid": lambda: schedule(86_400, relative=True),
    "every 5 hours on the grid": lambda: schedule(5 * 3600, relative=True),
}
OLDER = celery.VERSION < (5, 7)
BY_THE_WALL_CLOCK = ("every 6 hours and 7 s", "every day on the grid", "every 5 hours on the grid") if OLDER else ()
DENSE: dict[str, Any] = {
    "hourly": lambda: crontab(minute="0"),
    "half past": lambda: crontab(minute="30"),
    "every 5 minutes": lambda: crontab(minute="*/5"),
    "every 10 minutes on the grid": lambda: schedule(600, relative=True),
}


class VirtualApp(Celery):
    """An app whose clock the test sets."""

    moment = EPOCH

    def now(self) -> datetime:
        """Overrides `Celery.now`."""
        return self.moment.astimezone(self.timezone)


def made(zone: str, make: Any) -> tuple[VirtualApp, Any]:
    app = VirtualApp("year", set_as_current=False)
    app.conf.timezone = zone
    value = make()
    value.app = app
    return app, value


def celerys(app: VirtualApp, value: Any, since: datetime, until: datetime) -> Iterator[datetime]:
    """When Celery's beat sends the task, if it started at `since`."""
    app.moment = since
    last = app.now()
    while app.moment < until:
        due, again_s = value.is_due(last)
        if due:
            yield app.moment
            last = app.now()
        app.moment += timedelta(seconds=max(again_s, 0.01))


def ours(value: Any, since: datetime, until: datetime) -> Iterator[datetime]:
    at_ms = (since - EPOCH) // timedelta(milliseconds=1)
    while True:
        at_ms = next_due_ms(value, at_ms)
        at = EPOCH + timedelta(milliseconds=at_ms)
        if at >= until:
            return
        yield at


def is_repeated(at: datetime, zone: str) -> bool:
    """Whether the local clock shows this time for the second time."""
    return bool(at.astimezone(ZoneInfo(zone)).fold)


def compare(zone: str, make: Any, since: datetime, until: datetime) -> int:
    """Fail unless both have the same times, except those of a crontab for every hour in the repeated hour. Returns how
    many of those there are."""
    app, value = made(zone, make)
    theirs, mine = list(celerys(app, value, since, until)), list(ours(value, since, until))
    assert len(set(theirs)) == len(theirs)
    assert mine == sorted(set(mine))
    assert sorted(set(theirs) - set(mine)) == []  # none is missed
    more = sorted(set(mine) - set(theirs))
    if not isinstance(value, crontab) or len(value.hour) < 24:
        assert more == []  # none is early, none is one too many
    assert all(is_repeated(at, zone) for at in more)
    return len(more)


def around(zone: str, change: str, what: str) -> tuple[datetime, datetime]:
    """A day before and a day after a change of the clocks; for frequent entries a few hours."""
    local = datetime.fromisoformat(change).replace(tzinfo=ZoneInfo(zone))
    if what in DENSE:
        return (local + timedelta(hours=21)).astimezone(UTC), (local + timedelta(hours=30)).astimezone(UTC)
    return local.astimezone(UTC), (local + 3 * DAY).astimezone(UTC)


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("what", [what for what in (*SPARSE, *DENSE) if what not in BY_THE_WALL_CLOCK])
def test_a_change_of_the_clocks(zone: str, what: str) -> None:
    """When clocks go forward, the times are Celery's. When they go back, an hourly crontab has the repeated hour in
    addition.
    """
    make = {**SPARSE, **DENSE}[what]
    forward, back = CHANGES[zone]
    assert compare(zone, make, *around(zone, forward, what)) == 0
    half = zone == "Australia/Lord_Howe"  # its clock goes back by half an hour, from 2:00 to 1:30
    more = {"hourly": 0 if half else 1, "half past": 1, "every 5 minutes": 6 if half else 12}
    assert compare(zone, make, *around(zone, back, what)) == more.get(what, 0)


@pytest.mark.proof
@pytest.mark.parametrize("zone", ZONES[:1] if OLDER else ZONES)
def test_a_year(zone: str) -> None:
    """The times of a leap year are Celery's. In one zone this also holds for an entry every 5 minutes, over both
    changes of the clocks.
    """
    local = datetime(2028, 1, 1, tzinfo=ZoneInfo(zone))
    since, until = local.astimezone(UTC), local.replace(year=2029).astimezone(UTC)
    left_out = BY_THE_WALL_CLOCK if zone in CHANGES else ()
    found = {what: compare(zone, make, since, until) for what, make in SPARSE.items() if what not in left_out}
    assert set(found.values()) == {0}
    if OLDER:
        return
    assert compare(zone, DENSE["hourly"], since, until) == (1 if zone in CHANGES and "Lord" not in zone else 0)
    if zone == "America/Santiago":
        since, until = (local.replace(month=month).astimezone(UTC) for month in (3, 10))
        assert compare(zone, DENSE["every 5 minutes"], since, until) == 12


def local_times(zone: str, value: Any, day: str) -> list[str]:
    """Celery's times on this date and in the night after it, on the local clock."""
    app, value = made(zone, value)
    local = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    since, until = local.astimezone(UTC), (local + DAY + timedelta(hours=6)).astimezone(UTC)
    assert list(ours(value, since, until)) == list(celerys(app, value, since, until))
    return [at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for at in ours(value, since, until)]


def test_what_celery_does_with_the_skipped_and_the_repeated_hour() -> None:
    """As docs/celery-beat.md says: a skipped time is shifted by the length of the gap, and several skipped times of one
    hour run once. A time that comes twice runs the first time."""
    berlin = "Europe/Berlin"
    assert local_times(berlin, lambda: crontab(30, 2), "2028-03-25") == ["25 02:30 +0100", "26 03:30 +0200"]
    assert local_times(berlin, lambda: crontab("15,45", 2), "2028-03-26") == [
        "26 03:15 +0200",
        "27 02:15 +0200",
        "27 02:45 +0200",
    ]
    assert local_times(berlin, lambda: crontab(30, "2,3"), "2028-03-26")[:1] == ["26 03:30 +0200"]
    assert local_times(berlin, lambda: crontab(30, 2), "2028-10-28") == ["28 02:30 +0200", "29 02:30 +0200"]
    assert local_times("Australia/Lord_Howe", lambda: crontab(0, 2), "2028-10-01")[:1] == ["01 02:30 +1100"]


def sent_by_celery(app: VirtualApp, ticks: int) -> int:
    """How many tasks Celery's own `Scheduler` sends in this many ticks of 10 ms."""
    sent: list[str] = []

    class Recording(Scheduler):  # type: ignore[misc]  # celery has no types
        def apply_async(self, entry: Any, **_: Any) -> None:
            sent.append(entry.name)

    app.conf.beat_schedule = {"often": {"task": "t", "schedule": crontab(minute="*/5")}}
    scheduler = Recording(app, Producer=object)
    scheduler.__dict__["producer"] = None
    for _ in range(ticks):
        scheduler.tick()
        app.moment += timedelta(milliseconds=10)
    return len(sent)


def test_celery_sends_without_a_pause_when_its_beat_starts_in_the_repeated_hour() -> None:
    """This is why the repeated hour differs here from Celery. If this test fails, Celery has changed: then use Celery's
    times.
    """
    zone = ZoneInfo("Europe/Berlin")
    app, value = made("Europe/Berlin", DENSE["every 5 minutes"])
    start = datetime(2028, 10, 29, 2, 11, tzinfo=zone, fold=1).astimezone(UTC)
    app.moment = start
    assert sent_by_celery(app, 100) >= 50
    mine = [at.astimezone(zone).strftime("%H:%M %z") for at in ours(value, start, start + timedelta(minutes=60))]
    assert mine == [f"02:{minute} +0100" for minute in range(15, 60, 5)] + ["03:00 +0100", "03:05 +0100", "03:10 +0100"]
