"""A time zone is stored so that every process can read it, or the job is refused when it is added."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo

import dateutil.parser
import dateutil.tz
import pytest
import pytz
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from wheel_sched_apscheduler.codec import JobCodec, NotSerializable, Unreadable, values
from wheel_sched_apscheduler.codec.values import zone_name, zone_of
from wheel_sched_apscheduler.run_times import from_ms

WINTER, SUMMER = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 7, 5, tzinfo=UTC)


def database_file(name: str) -> Path:
    return next(path for folder in TZPATH if (path := Path(folder) / name).is_file())


def made_from(file: Path) -> ZoneInfo:
    """Makes a zone as tzlocal does when it finds no name for the machine's zone."""
    with file.open("rb") as data:
        return ZoneInfo.from_file(data, key="local")


class Odd(tzinfo):
    """A user's zone whose offset changes during the year."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1 if moment is None or moment.month < 7 else 2)

    def tzname(self, moment: datetime | None) -> str:
        return "odd"

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (dateutil.tz.tzoffset(None, 5400), "utc+5400"),
        (dateutil.tz.tzutc(), "utc+0"),
        (dateutil.tz.gettz("Europe/Berlin"), "zoneinfo:Europe/Berlin"),
        (timezone(timedelta(hours=-3)), "utc-10800"),
        (pytz.FixedOffset(90), "utc+5400"),
        (pytz.timezone("Europe/Berlin"), "pytz:Europe/Berlin"),
        (ZoneInfo.no_cache("Europe/Berlin"), "zoneinfo:Europe/Berlin"),
        (dateutil.parser.parse("2026-01-01T00:00:00+02:00").tzinfo, "utc+7200"),
    ],
    ids=repr,
)
def test_offsets_and_named_zones_of_every_library_are_stored(zone: tzinfo, name: str) -> None:
    """The zone that is read has the same offsets as the stored one."""
    assert zone_name(zone) == name
    for moment in (WINTER, SUMMER):
        assert moment.astimezone(zone_of(name)).utcoffset() == moment.astimezone(zone).utcoffset()


def test_a_local_zone_without_a_name_is_found_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_job: Any
) -> None:
    """In containers /etc/localtime is a copy of a file of the zone database. The job is read back in that zone."""
    monkeypatch.delenv("TZ", raising=False)
    copied = tmp_path / "localtime"
    shutil.copy(database_file("Asia/Kathmandu"), copied)
    monkeypatch.setattr(values, "LOCAL_FILES", (copied,))
    local = made_from(copied)
    codec = JobCodec()
    job = make_job(WINTER.astimezone(local), trigger=CronTrigger(hour=3, timezone=local))
    back = codec.decode(job.id, codec.encode(job)).job
    assert back.next_run_time == WINTER
    assert back.trigger.get_next_fire_time(None, SUMMER) == job.trigger.get_next_fire_time(None, SUMMER)
    assert str(back.next_run_time.tzinfo) in ("Asia/Kathmandu", "Asia/Katmandu")


def test_a_local_zone_is_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable TZ has the local zone's name or the path of its file. The zone is stored under its
    name."""
    monkeypatch.setattr(values, "LOCAL_FILES", (tmp_path / "nothing",))
    local = made_from(database_file("Europe/Berlin"))
    for value in (":Europe/Berlin", str(database_file("Europe/Berlin"))):
        monkeypatch.setenv("TZ", value)
        assert zone_name(local) == "zoneinfo:Europe/Berlin"


@pytest.mark.parametrize("which", ["another file", "changes", "another key"])
def test_a_zone_that_nobody_could_read_is_refused_when_the_job_is_added(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_job: Any
) -> None:
    """If no name leads another process to a zone with the same offsets, encoding the job raises `NotSerializable`.

    A name that leads to a zone with other offsets does not count.
    """
    monkeypatch.setenv("TZ", "America/New_York")  # has other offsets than the zone of the test
    monkeypatch.setattr(values, "LOCAL_FILES", (tmp_path / "nothing",))
    with database_file("Europe/Berlin").open("rb") as data:
        named = ZoneInfo.from_file(data, key="Asia/Tokyo")
    zone = {"another file": made_from(database_file("Europe/Berlin")), "changes": Odd(), "another key": named}[which]
    for job in (
        make_job(WINTER, trigger=CronTrigger(hour=3, timezone=zone)),
        make_job(WINTER.astimezone(zone), trigger=DateTrigger(WINTER)),
        make_job(WINTER, args=(SUMMER.astimezone(zone),)),
    ):
        with pytest.raises(NotSerializable, match="nothing was stored; give the scheduler"):
            JobCodec().encode(job)


@pytest.mark.parametrize("when", [10**30, -(10**30)])
def test_a_time_that_no_calendar_has_is_an_unreadable_job(make_job: Any, when: int) -> None:
    """If a record's time is beyond the calendar, each method of the codec that reads the time raises `Unreadable`."""
    job = make_job(WINTER)
    codec = JobCodec()
    version, _, rest = codec.encode(job).split(b";", 2)
    raw = b"%s;%d;%s" % (version, when, rest)
    for ask in (codec.decode, codec.head, codec.trigger):
        with pytest.raises(Unreadable, match="its time"):
            ask(job.id, raw)
    with pytest.raises(Unreadable, match="its time"):
        codec.next_run_time(raw)
    with pytest.raises(Unreadable, match="its time"):
        codec.rewritten(job.id, raw, metadata={})


def test_an_item_of_such_a_time_is_listed_beside_the_others(open_fake: Any, make_job: Any) -> None:
    """A job whose stored time is beyond the calendar is quarantined when it is due. Lists of the quarantine and of all
    jobs contain it and raise no error."""
    store = open_fake()
    for job_id in ("bad", "good"):
        store.add_job(make_job(WINTER, id=job_id))
    (found,) = store.store.get(["bad"])
    version, _, rest = found.body.split(b";", 2)
    store.store.replace(replace(found.item(), body=b"%s;%d;%s" % (version, 10**30, rest)), keep_due=True)
    assert [job.id for job in store.get_due_jobs(SUMMER)] == ["good"]
    store.get_next_run_time()
    store.tracker.flush()
    assert [(entry.id, "no calendar has" in entry.reason) for entry in store.quarantined()] == [("bad", True)]
    assert {entry.id for entry in store.entries()} == {"bad", "good"}
    assert from_ms(10**30).year == 9999
