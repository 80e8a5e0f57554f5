"""Entries of celery-redbeat and django-celery-beat are read as they store them. Wrong ones are skipped with the reason.

The files in `recorded` were written by celery-redbeat 2.4.2 and django-celery-beat 2.9.0 themselves. `django.json` is
the output of `manage.py dumpdata`, `django.sql` the tables of the same database.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from wheel_sched_celery.beat.importing.django_tables import entry_of as django_entry
from wheel_sched_celery.beat.importing.django_tables import read_django, tables_of_dump
from wheel_sched_celery.beat.importing.redbeat import entry_of

from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from wheel_sched_celery.beat.importing.foreign_entry import ForeignEntry

RECORDED = Path(__file__).parent / "recorded"
REDBEAT: dict[str, Any] = json.loads((RECORDED / "redbeat.json").read_text("utf-8"))


def ms(*moment: int, zone: str = "UTC") -> int:
    return int(datetime(*moment, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


def redbeat(name: str) -> ForeignEntry:
    row = REDBEAT[f"redbeat:{name}"]
    return entry_of(name, row["definition"].encode(), row["meta"].encode())


def with_definition(**changes: Any) -> ForeignEntry:
    """Read the entry `report` with changes of its definition. A key with the value None is left out."""
    given = {**json.loads(REDBEAT["redbeat:report"]["definition"]), **changes}
    return entry_of("report", json.dumps({k: v for k, v in given.items() if v is not None}).encode(), None)


def test_a_crontab_of_redbeat_is_read_whole() -> None:
    """The entry has the crontab, and the last run in its own time zone, exact to the millisecond."""
    found = redbeat("report")
    assert (found.name, found.task, found.args, found.kwargs) == ("report", "proj.report", ("eu",), {"full": True})
    assert found.schedule == crontab(minute="*/15", hour="8-18", day_of_week="mon-fri")
    assert found.options == {"queue": "reports", "priority": 3, "expires": 600}
    assert found.last_run_ms == ms(2026, 11, 20, 9, 45, zone="Europe/Berlin") + 1
    assert (found.paused, found.problem) == (False, "")


def test_intervals_of_redbeat_are_read() -> None:
    """Plain and relative intervals are read. The time zone of the last run may be an offset."""
    assert redbeat("ping").schedule == schedule(timedelta(seconds=30))
    found = redbeat("relative")
    assert (found.schedule.relative, found.schedule.run_every) == (True, timedelta(hours=1))
    assert found.last_run_ms == ms(2026, 11, 20, 12)


def test_a_disabled_entry_of_redbeat_is_paused_and_lists_in_a_crontab_are_read() -> None:
    """An entry of redbeat with `enabled` false is read as paused."""
    found = redbeat("asleep")
    assert (found.paused, found.schedule) == (True, crontab(minute="0,30"))


def test_a_date_in_the_arguments_of_redbeat_stays_a_date() -> None:
    """redbeat gives such an argument to the task as a date, so the entry has a date too."""
    assert redbeat("dated").kwargs == {"since": datetime(2026, 1, 1, tzinfo=UTC)}


def test_an_rrule_of_redbeat_is_skipped_and_says_what_to_do() -> None:
    """Celery has no schedule like an rrule, so the entry is skipped, with advice."""
    assert "rrule" in redbeat("by-rule").problem
    assert "beat_schedule" in redbeat("by-rule").problem


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": None}, "expected its task to be a text"),
        ({"task": 7}, "expected its task to be a text"),
        ({"schedule": {"__type__": "interval", "every": -1, "relative": False}}, "above 0"),
        ({"schedule": {"__type__": "interval", "every": True}}, "above 0"),
        ({"schedule": {"__type__": "crontab", "minute": "61"}}, "its crontab is wrong"),
        ({"schedule": {"__type__": "crontab", "minute": {}}}, "expected minute of its crontab"),
        ({"schedule": "* * * * *"}, "an interval or a crontab"),
        ({"args": {"a": 1}}, "expected its args to be a list"),
        ({"kwargs": [1]}, "expected its kwargs to be a mapping"),
        ({"enabled": "no"}, "expected enabled"),
        ({"kwargs": {"at": {"__type__": "datetime", "year": 2026, "month": 13, "day": 1}}}, "month must be in"),
        ({"kwargs": {"at": {"__type__": "datetime", "year": 2026, "timezone": "../../etc"}}}, "unknown time zone"),
        ({"kwargs": {"at": {"__type__": "datetime", "year": 2026, "surprise": 1}}}, "cannot be read"),
    ],
)
def test_a_wrong_entry_of_redbeat_is_skipped_with_the_reason(changes: dict[str, Any], why: str) -> None:
    """Whatever redbeat has stored, reading it raises no error."""
    found = with_definition(**changes)
    assert (found.name, why in found.problem) == ("report", True), found.problem


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"7", b"x" * 1_000_001])
def test_text_that_is_no_definition_is_skipped(text: bytes) -> None:
    """Broken JSON, JSON of another shape, and JSON that is too deep or too long are skipped."""
    assert entry_of("broken", text, None).problem
    assert "definition is gone" in entry_of("gone", None, None).problem


@pytest.fixture(params=["django.json", "django.sql"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file of django-celery-beat: its dump, or the database itself."""
    path = RECORDED / request.param
    if path.suffix == ".json":
        return str(path)
    database = tmp_path / "my db?.sqlite3"
    connection = sqlite3.connect(database)
    connection.executescript(path.read_text("utf-8"))
    connection.close()
    return str(database)


@pytest.fixture
def django(source: str) -> dict[str, ForeignEntry]:
    return {entry.name: entry for entry in read_django(source)}


def test_a_crontab_of_django_is_read_whole(django: dict[str, ForeignEntry]) -> None:
    """The entry has the crontab with its time zone, all options, and the last run, exact to the millisecond."""
    found = django["nightly"]
    assert (found.task, found.args, found.kwargs) == ("proj.nightly", ("eu",), {"full": True})
    assert (found.schedule, str(found.schedule.tz)) == (crontab(minute="30", hour="2"), "Europe/Berlin")
    assert found.options == {"queue": "night", "priority": 5, "expires": 3600, "headers": {"team": "ops"}}
    assert found.last_run_ms == ms(2026, 11, 20, 1, 30) + 4


def test_intervals_of_django_are_read(django: dict[str, ForeignEntry]) -> None:
    """An entry that never ran counts from its last change, as django-celery-beat counts it."""
    assert django["every 10 s"].schedule == schedule(timedelta(seconds=10))
    assert django["asleep"].paused
    assert django["until 2100"].last_run_ms == ms(2026, 11, 20, 8)
    assert django["until 2100"].options["expires"] == datetime(2100, 1, 1, tzinfo=UTC)


def test_entries_of_django_that_run_once_say_when(django: dict[str, ForeignEntry]) -> None:
    """A clocked entry has a time, and any other entry that runs once has its schedule. If it has run already, it is
    skipped.
    """
    clocked, soon = django["new year"], django["once soon"]
    assert (clocked.once, clocked.once_ms, clocked.schedule) == (True, ms(2100, 1, 1, 12), None)
    assert (soon.once, soon.once_ms, soon.schedule) == (True, None, schedule(timedelta(seconds=10)))
    assert "has run already" in django["was once"].problem


def test_a_start_time_of_django_is_read(django: dict[str, ForeignEntry]) -> None:
    """The entry has its start time. It has no last run: before its first run, the time of its last change does not
    count as one.
    """
    assert (django["from 2100"].starts_ms, django["from 2100"].last_run_ms) == (ms(2100, 1, 1), None)


def test_wrong_entries_of_django_are_skipped_with_the_reason(django: dict[str, ForeignEntry]) -> None:
    """An entry whose arguments are not a list is skipped, and the reason says so."""
    assert "expected its args to be a list" in django["quick"].problem


def dump(**changes: Any) -> list[ForeignEntry]:
    """Read the dump with changes of the entry `nightly` and its crontab (`crontab_...`)."""
    objects = json.loads((RECORDED / "django.json").read_text("utf-8"))
    for each in objects:
        if each["fields"].get("name") == "nightly":
            each["fields"].update({k: v for k, v in changes.items() if not k.startswith("crontab_")})
        if each["model"].endswith("crontabschedule"):
            each["fields"].update({k[8:]: v for k, v in changes.items() if k.startswith("crontab_")})
    tables = tables_of_dump(json.dumps(objects).encode())
    return [django_entry(row, tables) for row in tables["periodictask"].values() if row["name"] == "nightly"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"crontab": 77}, "its crontab schedule 77 is missing"),
        ({"crontab": None}, "expected one schedule, got: none"),
        ({"interval": 1}, "got: interval, crontab"),
        ({"crontab_minute": "x"}, "its crontab is wrong"),
        ({"crontab_timezone": "Mars/Olympus"}, "unknown time zone"),
        ({"args": "[1"}, "its args cannot be read"),
        ({"kwargs": 3}, "expected its kwargs to be JSON"),
        ({"headers": "[]"}, "expected its headers to be a mapping"),
        ({"priority": "high"}, "expected its priority"),
        ({"last_run_at": "soon"}, "expected its last_run_at to be a time"),
        ({"last_run_at": "1969-01-01T00:00:00Z"}, "since 1970"),
    ],
)
def test_a_wrong_row_of_django_is_skipped_with_the_reason(changes: dict[str, Any], why: str) -> None:
    """Whatever a row has, reading it raises no error."""
    (found,) = dump(**changes)
    assert why in found.problem


def test_times_without_a_zone_are_read_in_the_given_one(tmp_path: Path) -> None:
    """A project with USE_TZ = False stores times without a zone. They are read in the given time zone."""
    path = tmp_path / "naive.json"
    path.write_text((RECORDED / "django.json").read_text("utf-8").replace('Z"', '"'), "utf-8")
    found = {entry.name: entry for entry in read_django(str(path), ZoneInfo("Europe/Berlin"))}
    assert found["every 10 s"].last_run_ms == ms(2026, 11, 20, 9, zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        ("{}", "a list of objects"),
        ("[1]", "a list of objects"),
        ("[]", "no object of the model django_celery_beat.periodictask"),
        ('[{"model": "django_celery_beat.periodictask", "pk": [1], "fields": {}}]', "expected pk and fields"),
        ("SQLite format 3\0" + "x" * 200, "cannot be read"),
    ],
)
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """The error says what was expected, and that nothing was changed."""
    path = tmp_path / "export"
    path.write_text(text, "utf-8")
    with pytest.raises(Rejected, match=r"nothing was changed") as caught:
        read_django(str(path))
    assert why in str(caught.value)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    """A missing file, a database without the tables, and the URL of another kind of database are refused."""
    empty = tmp_path / "empty.sqlite3"
    connection = sqlite3.connect(empty)
    connection.execute("CREATE TABLE other (id)")
    connection.commit()
    connection.close()
    for source, why in (
        (str(tmp_path / "none"), "No such file"),
        (str(empty), "has no table django_celery_beat_periodictask"),
        ("postgresql://user:secret@host/db", "dumpdata"),
    ):
        with pytest.raises(Rejected, match=why) as caught:
            read_django(source)
        assert "secret" not in str(caught.value)
