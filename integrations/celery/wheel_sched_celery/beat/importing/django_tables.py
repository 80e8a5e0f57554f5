"""Reads the entries of django-celery-beat: from an SQLite file, or from the JSON of `manage.py dumpdata`.

Django itself is not needed, and nothing is written. `manage.py dumpdata django_celery_beat` works with every database
of Django. A project with USE_TZ = False stores times without a zone. They are read in the zone that the caller gives.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Final

from celery.schedules import solar

from wheel_sched.errors import Rejected
from wheel_sched_celery.beat.importing.foreign_entry import (
    MAX_ENTRIES,
    ForeignEntry,
    crontab_of,
    interval_of,
    list_of,
    mapping_of,
    ms_of,
    shown,
    text_of,
)
from wheel_sched_celery.beat.schedules import zone_of

APP: Final = "django_celery_beat"
_SQLITE: Final = b"SQLite format 3\0"
_SCHEDULES: Final = {
    "interval": "intervalschedule",
    "crontab": "crontabschedule",
    "solar": "solarschedule",
    "clocked": "clockedschedule",
}
_TASKS: Final = "periodictask"
_PERIODS: Final = ("days", "hours", "minutes", "seconds", "microseconds")
_OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")
_LONGEST_FILE: Final = 512 * 1024 * 1024

Row = Mapping[str, Any]
Tables = dict[str, dict[Any, Row]]
"""For each model, its rows by primary key."""


def read_django(source: str, zone: tzinfo = UTC) -> list[ForeignEntry]:
    """Read all entries of django-celery-beat, in order of their names.

    Args:
        source: an SQLite file, `sqlite:///FILE`, or a file with the JSON of `manage.py dumpdata django_celery_beat`;
            "-" = that JSON from standard input.
        zone: the zone of times that have none, `TIME_ZONE` of a project with USE_TZ = False. Defaults to UTC.

    Raises:
        Rejected: the source cannot be read, has no tables of django-celery-beat, or has more than `MAX_ENTRIES`.
    """
    tables = _tables(source)
    tasks = tables[_TASKS]
    if len(tasks) > MAX_ENTRIES:
        raise Rejected(f"there are more than {MAX_ENTRIES:,} entries of django-celery-beat; nothing was changed")
    return sorted((entry_of(row, tables, zone) for row in tasks.values()), key=lambda entry: entry.name)


def _tables(source: str) -> Tables:
    if source == "-":
        return tables_of_dump(sys.stdin.buffer.read(_LONGEST_FILE))
    if "://" in source and not source.startswith("sqlite:///"):
        raise Rejected(
            "other databases than SQLite are read from a dump: manage.py dumpdata django_celery_beat > beat.json; "
            "nothing was changed"
        )
    path = Path(source.removeprefix("sqlite:///"))
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
            return tables_of_file(path) if head == _SQLITE else tables_of_dump(head + file.read(_LONGEST_FILE))
    except OSError as error:
        raise Rejected(f"{source} cannot be read: {error.strerror}; nothing was changed") from error


def tables_of_file(path: Path) -> Tables:
    """The tables of an SQLite file. The file is opened for reading only.

    Raises:
        Rejected: the file cannot be read, or has no such tables.
    """
    found: Tables = {}
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for model in (*_SCHEDULES.values(), _TASKS):
                table = f"{APP}_{model}"
                if table not in there and model == _TASKS:
                    raise Rejected(f"{path} has no table {table}; nothing was changed")
                rows = connection.execute(f'SELECT * FROM "{table}"') if table in there else ()  # noqa: S608
                found[model] = {row["id"]: _without_suffix(dict(row)) for row in rows}
    except sqlite3.Error as error:
        raise Rejected(f"{path} cannot be read: {error}; nothing was changed") from error
    return found


def _without_suffix(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the field names of the model. Example: the column `crontab_id` is the field `crontab`."""
    return {name.removesuffix("_id") if name.removesuffix("_id") in _SCHEDULES else name: row[name] for name in row}


def tables_of_dump(text: bytes) -> Tables:
    """The tables in the JSON of `manage.py dumpdata`.

    Raises:
        Rejected: the text is not such JSON, or has no entries.
    """
    try:
        objects = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Rejected(
            f"expected an SQLite file, or the JSON of manage.py dumpdata {APP}, got text that cannot be read: {error}; "
            "nothing was changed"
        ) from error
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise Rejected(f"expected the JSON of manage.py dumpdata {APP}, a list of objects; nothing was changed")
    found: Tables = {model: {} for model in (*_SCHEDULES.values(), _TASKS)}
    for each in objects:
        app, _, model = str(each.get("model")).partition(".")
        fields, key = each.get("fields"), each.get("pk")
        if app != APP or model not in found:
            continue
        if not isinstance(fields, dict) or not isinstance(key, int | str):
            raise Rejected(
                f"expected pk and fields in each object of the dump, got: {shown(each)}; nothing was changed"
            )
        found[model][key] = fields
    if not found[_TASKS]:
        raise Rejected(f"the dump has no object of the model {APP}.{_TASKS}; nothing was changed")
    return found


def entry_of(row: Row, tables: Tables, zone: tzinfo = UTC) -> ForeignEntry:
    """Read one entry.

    Args:
        row: its row in the table of periodic tasks.
        tables: all tables.
        zone: the zone of times that have none. Defaults to UTC.
    """
    name = str(row.get("name"))
    try:
        return _entry(row, tables, zone)
    except Rejected as error:
        return ForeignEntry(name, problem=str(error))


def _entry(row: Row, tables: Tables, zone: tzinfo) -> ForeignEntry:
    kinds = [kind for kind in _SCHEDULES if row.get(kind) is not None]
    if len(kinds) != 1:
        raise Rejected(f"expected one schedule, got: {', '.join(kinds) or 'none'}")
    (kind,) = kinds
    found = tables[_SCHEDULES[kind]].get(row[kind])
    if found is None:
        raise Rejected(f"its {kind} schedule {shown(row[kind])} is missing in the tables")
    last_ms = _moment_ms("last_run_at", row, zone)
    starts_ms = _moment_ms("start_time", row, zone)
    if last_ms is None and starts_ms is None:
        last_ms = _moment_ms("date_changed", row, zone)  # an entry that never ran counts from its last change
    once = bool(row.get("one_off")) or kind == "clocked"
    if once and row.get("total_run_count"):
        raise Rejected("it runs once, and has run already")
    return ForeignEntry(
        text_of("name", row.get("name")),
        text_of("task", row.get("task")),
        _schedule(kind, found),
        list_of("args", _json("args", row.get("args") or "[]")),
        mapping_of("kwargs", _json("kwargs", row.get("kwargs") or "{}")),
        _options(row, zone),
        paused=not row.get("enabled", True),
        last_run_ms=last_ms,
        once=once,
        once_ms=_moment_ms("clocked_time", found, zone) if kind == "clocked" else None,
        starts_ms=starts_ms,
    )


def _schedule(kind: str, row: Row) -> Any:
    if kind == "crontab":
        return crontab_of(row, zone_of(row.get("timezone") or "UTC"))
    if kind == "interval":
        every, period = row.get("every"), row.get("period")
        if type(every) is not int or period not in _PERIODS or not 0 < every < 10**15:
            raise Rejected(f"expected its interval to be a number of {', '.join(_PERIODS)}, got: {every!r} {period!r}")
        try:
            return interval_of(timedelta(**{period: every}))
        except OverflowError as error:
            raise Rejected(f"its interval of {every} {period} is too long") from error
    if kind == "solar":
        try:
            return solar(row.get("event"), float(row["latitude"]), float(row["longitude"]))
        except Exception as error:  # ephem is missing, or a value is wrong
            raise Rejected(f"its solar schedule cannot be made: {str(error).strip()}") from error
    return None


def _options(row: Row, zone: tzinfo) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in _OPTIONS:
        value = row.get(name)
        if value in (None, ""):
            continue
        if name == "priority":
            if type(value) is not int or not 0 <= value <= 255:
                raise Rejected(f"expected its priority to be a number from 0 to 255, got: {shown(value)}")
        else:
            value = text_of(name, value)
        options[name] = value
    seconds = row.get("expire_seconds")
    if seconds is not None:
        if type(seconds) is not int or seconds < 0:
            raise Rejected(f"expected its expire_seconds to be a number, got: {shown(seconds)}")
        options["expires"] = seconds
    elif row.get("expires"):
        options["expires"] = _moment("expires", row, zone)
    headers = mapping_of("headers", _json("headers", row.get("headers") or "{}"))
    if headers:
        options["headers"] = headers
    return options


def _json(what: str, text: Any) -> Any:
    if not isinstance(text, str):
        raise Rejected(f"expected its {what} to be JSON, got: {shown(text)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"its {what} cannot be read: {error}") from error


def _moment(name: str, row: Row, zone: tzinfo) -> datetime | None:
    value = row.get(name)
    if value in (None, ""):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise Rejected(f"expected its {name} to be a time, got: {shown(value)}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def _moment_ms(name: str, row: Row, zone: tzinfo) -> int | None:
    moment = _moment(name, row, zone)
    return None if moment is None else ms_of(moment)
