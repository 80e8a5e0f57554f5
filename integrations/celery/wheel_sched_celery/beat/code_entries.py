"""The entries that the code of an app and its file of entries define.

The functions read the app's configuration and the file. Threads: any thread may call them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from celery.beat import ScheduleEntry
from celery.schedules import crontab
from kombu.utils.json import dumps

from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.items import quoted
from wheel_sched_celery.beat.entry import BeatEntry
from wheel_sched_celery.beat.schedules import CODE, Form, form_of, schedule_from, schedule_from_text
from wheel_sched_celery.wheel import Wheel

logger = logger_of("wheel_sched.celery")

_FILE_KEYS: Final = frozenset(
    {"task", "schedule", "tz", "relative", "args", "kwargs", "options", "catch_up", "catch_up_limit"}
)
_OURS: Final = ("catch_up", "catch_up_limit")


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """An entry of the schedule, as the code of this process defines it.

    Args:
        entry: the entry, as it is stored.
        schedule: the schedule, an object of Celery or of the app.
        arguments: args, kwargs and options, objects of the app.
    """

    entry: BeatEntry
    schedule: Any
    arguments: tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]]


def code_entry(wheel: Wheel, name: str) -> CodeEntry | None:
    """The entry of this name in the code of this process; None when there is none.

    Raises:
        Rejected: the entry is wrong.
    """
    given = _definitions(wheel.app).get(name)
    return None if given is None else _of_code(wheel.app, name, given)


def defined(wheel: Wheel) -> tuple[dict[str, BeatEntry], list[str]]:
    """The entries of code and file by name, and one line for each that is wrong.

    If code and file have an entry of the same name, that of the file counts.
    """
    entries: dict[str, BeatEntry] = {}
    problems: list[str] = []
    for name, given in _definitions(wheel.app).items():
        try:
            entries[name] = _of_code(wheel.app, name, given).entry
        except Rejected as error:
            problems.append(str(error))
    for name, row in _rows(wheel.settings.beat_file, problems):
        try:
            entry = _of_file(wheel.app, name, row)
        except Rejected as error:
            problems.append(str(error))
            continue
        if name in entries:
            logger.warning("celery.beat_twice: entry '%.200s' is in the file and in the code; the file counts", name)
        entries[name] = entry
    return entries, problems


def defined_names(wheel: Wheel) -> set[str]:
    """The names of all entries of code and file, with those of wrong entries. A file that cannot be read has none."""
    return {*_definitions(wheel.app), *(name for name, _ in _rows(wheel.settings.beat_file, []))}


def _definitions(app: Any) -> dict[str, Any]:
    """The app's `beat_schedule`, with the entry that Celery's beat adds to clean up a result backend."""
    app.finalize(auto=True)  # handlers of `on_after_finalize` may add entries
    given = dict(app.conf.beat_schedule)
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        cleanup = {"task": "celery.backend_cleanup", "schedule": crontab("0", "4", "*"), "options": {"expires": 43_200}}
        given.setdefault("celery.backend_cleanup", cleanup)
    return given


def _of_code(app: Any, name: str, given: Any) -> CodeEntry:
    """An entry of `beat_schedule`, read as Celery reads it.

    Raises:
        Rejected: the entry is wrong. The error names the entry.
    """
    try:
        if isinstance(given, ScheduleEntry):
            made, ours = given, {}
        else:
            values = dict(given)
            ours = {key: values.pop(key) for key in _OURS if key in values}
            schedule_from(values.get("schedule"), app, relative=bool(values.get("relative")))
            made = ScheduleEntry(**{**values, "name": name, "app": app})
        arguments = made.args or (), made.kwargs, made.options
        form = form_of(made.schedule, app)
        zone = _zone_of(app, form)
        entry = BeatEntry(name, made.task, form, tuple(arguments[0]), {}, {}, source="code", zone=zone, **ours)
        entry = _with_arguments(entry, arguments, form["kind"] == CODE)
        entry.check()
    except Exception as error:  # Celery raises errors of many kinds, also about wrong names of arguments
        raise Rejected(f"entry {quoted(name)} of the code: {error}; it was left out") from error
    return CodeEntry(entry, made.schedule, arguments)


def _with_arguments(entry: BeatEntry, arguments: tuple[Any, Any, Any], in_code: bool) -> BeatEntry:
    """The entry with its arguments. If JSON cannot hold them, they stay in the code, and the entry has their types."""
    args, kwargs, options = tuple(arguments[0]), dict(arguments[1]), dict(arguments[2])
    try:
        text: str = dumps([args, kwargs, options])
        return replace(entry, args=args, kwargs=kwargs, options=options, in_code=in_code) if text else entry
    except (TypeError, ValueError, RecursionError):
        shown = {"in code": [_shown(args), _shown(kwargs), _shown(options)]}
        return replace(entry, args=(), kwargs=shown, options={}, in_code=True)


def _zone_of(app: Any, form: Form) -> str:
    """The app's time zone if the schedule depends on it, else "".

    The zone is part of the definition, so another zone makes another definition. Celery's beat, too, starts its
    schedule anew when the zone has changed.
    """
    own = form["kind"] == "crontab" and "tz" not in form
    if own or (form["kind"] == "interval" and form["relative"]):
        return str(app.conf.timezone or ("UTC" if app.conf.enable_utc else "local"))
    return ""


def _shown(value: Any) -> str:
    """A value as text that is the same in every process: its objects are shown by their types."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__qualname__


def _rows(path: str | None, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """The tables `[beat.NAME]` of a file of entries."""
    if path is None:
        return
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8")).get("beat", {})
    except (OSError, ValueError) as error:
        problems.append(f"the file of entries {path} cannot be read: {error}; none of its entries was changed")
        return
    if not isinstance(tables, dict):
        problems.append(f"the file of entries {path}: expected tables [beat.NAME]; none of its entries was changed")
        return
    yield from tables.items()


def _of_file(app: Any, name: str, row: Any) -> BeatEntry:
    """An entry of the file.

    Raises:
        Rejected: the entry is wrong. The error names the entry.
    """
    try:
        if not isinstance(row, dict) or not isinstance(row.get("task"), str) or "schedule" not in row:
            raise Rejected("expected a table with `task` and `schedule`")
        if unknown := sorted(set(row) - _FILE_KEYS):
            raise Rejected(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(_FILE_KEYS))}")
        given, relative = row["schedule"], row.get("relative", False)
        made = schedule_from_text(given, app, row.get("tz")) if isinstance(given, str) else schedule_from(given, app)
        form = form_of(made, app)
        form = {**form, "relative": bool(relative)} if form["kind"] == "interval" else form
        ours = {key: row[key] for key in _OURS if key in row}
        entry = BeatEntry(
            *(name, row["task"], form, tuple(row.get("args", ())), row.get("kwargs", {}), row.get("options", {})),
            source="file",
            zone=_zone_of(app, form),
            **ours,
        )
        entry.check()
        entry.item()
    except (Rejected, TypeError, ValueError) as error:
        raise Rejected(f"entry {quoted(name)} of the file: {error}; it was left out") from error
    return entry
