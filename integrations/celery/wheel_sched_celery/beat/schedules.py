"""Celery's schedules and their stored form: a JSON object that has values and no code.

    {"kind": "interval", "every_s": 30.0, "relative": false}
    {"kind": "crontab", "minute": "0", "hour": "4", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*",
     "tz": "Europe/Berlin"}                       without "tz": in the time zone of the app
    {"kind": "solar", "event": "sunrise", "lat": 52.5, "lon": 13.4}
    {"kind": "code", "shown": "<Moon: full>", "class": "Moon"}    the schedule is an object in the code of the app

A schedule of an app's own class, or one with a `nowfun`, has no stored form. A process that needs it looks in its own
code for the entry's name. An app can give its class a stored form with `register_kind`. Reading a form calls nothing
but the constructors in the table of kinds, and imports nothing but `ephem` for a solar schedule.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import quoted
from wheel_sched_celery.settings import duration_ms

Form = Mapping[str, Any]

CODE: Final = "code"
FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")  # in the order of a line of cron
SHORTEST_S: Final = 0.001
LONGEST_S: Final = 100 * 366 * 86_400.0
_LONGEST_TEXT: Final = 500  # characters of a field of cron
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """A class of schedules that has a stored form.

    Args:
        type: the class. Its subclasses do not have this form.
        dump: makes the form of a schedule, without "kind". Returns None for a schedule that has no form.
        load: makes the schedule from its form. The form has only values of JSON. Others may have written it.
    """

    type: type[Any]
    dump: Callable[[Any], Form | None]
    load: Callable[[Form], Any]


def register_kind(kind: str, type_: type[Any], dump: Callable[[Any], Form | None], load: Callable[[Form], Any]) -> None:
    """Give a schedule class of an app a stored form, so that entries added at run time can have such schedules.

    Call it in the code of the app, in each process.

    Args:
        kind: the name of the form, unique in the app.
        type_: the class.
        dump: see `ScheduleKind`.
        load: see `ScheduleKind`.

    Raises:
        Rejected: the kind belongs to this module or to another class; nothing was changed.
    """
    known = _KINDS.get(kind)
    if kind == CODE or (known is not None and known.type is not type_):
        raise Rejected(f"the kind of schedule {kind!r} belongs to another class; nothing was changed")
    _KINDS[kind] = ScheduleKind(type_, dump, load)


def schedule_from(value: Any, app: Any, *, relative: bool = False) -> BaseSchedule:
    """The schedule that Celery makes of the `schedule` of a `beat_schedule` entry.

    Args:
        value: seconds, a timedelta or a schedule.
        app: the app, whose time zone counts.
        relative: as in `beat_schedule`. Defaults to False.

    Raises:
        Rejected: the value is no schedule, or an interval is not from 1 ms to 100 years; nothing was changed.
    """
    if isinstance(value, bool) or (not hasattr(value, "is_due") and not isinstance(value, int | float | timedelta)):
        raise Rejected(f"expected a schedule, a timedelta or seconds, got: {quoted(value)}; nothing was changed")
    made: Any = maybe_schedule(value, relative, app=app)
    if type(made) is schedule:
        check_interval(made.run_every.total_seconds() if made.run_every is not None else None)
    return cast("BaseSchedule", made)


def schedule_from_text(text: str, app: Any, tz: str | None = None) -> BaseSchedule:
    """The schedule of a text: a line of cron ("0 4 * * *"), a duration ("30s") or "solar EVENT LATITUDE LONGITUDE".

    Args:
        text: the text.
        app: the app, whose time zone counts.
        tz: the time zone of a line of cron. Defaults to None: that of the app.

    Raises:
        Rejected: the text is no schedule; nothing was changed.
    """
    words = text.split()
    if len(words) == 4 and words[0] == "solar":
        return schedule_of(
            {"kind": "solar", "event": words[1], "lat": _number(words[2]), "lon": _number(words[3])}, app
        )
    if len(words) == len(FIELDS):
        form = {"kind": "crontab", **dict(zip(FIELDS, words, strict=True))}
        return schedule_of({**form, "tz": tz} if tz else form, app)
    length_ms = duration_ms(text) if len(words) == 1 else None
    if length_ms is None:
        raise Rejected(
            f'expected a line of cron with five fields ("0 4 * * *"), a duration ("30s") or "solar EVENT LATITUDE '
            f'LONGITUDE", got: {quoted(text)}; nothing was changed'
        )
    return schedule_of({"kind": "interval", "every_s": length_ms / 1000, "relative": False}, app)


def form_of(value: Any, app: Any) -> Form:
    """The stored form of a schedule. A schedule that has none gets the form "code".

    Raises:
        Rejected: an interval is not from 1 ms to 100 years; nothing was changed.
    """
    for kind, known in _KINDS.items():
        if type(value) is known.type:
            if known.type is schedule and value.nowfun is None:
                check_interval(value.run_every.total_seconds())
            form = known.dump(value)
            if form is None:
                break
            form = {"kind": kind, **form}
            zone = value.__dict__.get("tz")
            if kind == "crontab" and zone is not None and str(zone) != str(app.timezone):
                form["tz"] = str(zone)
            return form
    if _is_django_crontab(value):
        return {"kind": "crontab", **_crontab_form(value), "tz": str(value.tz)}
    return {"kind": CODE, "shown": _ADDRESS.sub("", repr(value))[:200], "class": type(value).__qualname__}


def schedule_of(form: Form, app: Any) -> BaseSchedule:
    """The schedule of a form, for an app.

    Raises:
        Rejected: the form is unknown here or malformed, or the schedule is only in code; nothing was changed.
    """
    kind = form.get("kind")
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        if kind == CODE:
            raise Rejected(
                f"the schedule {quoted(form.get('shown'))} is only in the code of the app; nothing was changed"
            )
        raise Rejected(f"unknown kind of schedule: {quoted(kind)}; known are {', '.join(_KINDS)}; nothing was changed")
    try:
        made = known.load(form)
        made.app = app
    except Rejected:
        raise
    except Exception as error:  # a class of the app, or Celery's parser, which raises errors of many kinds
        raise Rejected(f"the {kind} schedule {_shown(form)} is wrong: {error}; nothing was changed") from error
    return cast("BaseSchedule", made)


def in_words(form: Form) -> str:
    """A form as listings show it: `every 30s`, `0 4 * * * Europe/Berlin`, `sunrise at 52.5, 13.4`."""
    match form.get("kind"):
        case "interval":
            return f"every {form.get('every_s'):g}s{', rounded to whole units' if form.get('relative') else ''}"
        case "crontab":
            line = " ".join(str(form.get(name, "*")) for name in FIELDS)
            return f"{line} {form['tz']}" if form.get("tz") else line
        case "solar":
            return f"{form.get('event')} at {form.get('lat')}, {form.get('lon')}"
        case "code":
            return f"in code: {form.get('shown')}"
    return _shown(form)


def check_interval(seconds: Any) -> None:
    """Raise `Rejected` unless `seconds` can be the interval of a schedule."""
    right = isinstance(seconds, int | float) and not isinstance(seconds, bool) and SHORTEST_S <= seconds <= LONGEST_S
    if not right:
        raise Rejected(f"expected an interval from 1 ms to 100 years, got: {quoted(seconds)} s; nothing was changed")


def _is_django_crontab(value: Any) -> bool:
    """Whether `value` is django-celery-beat's crontab with a time zone of its own."""
    return type(value).__name__ == "TzAwareCrontab" and isinstance(value, crontab)


def _interval_form(value: Any) -> Form | None:
    if value.nowfun is not None:
        return None
    return {"every_s": value.run_every.total_seconds(), "relative": bool(value.relative)}


def _interval(form: Form) -> Any:
    check_interval(form["every_s"])
    return schedule(timedelta(seconds=form["every_s"]), bool(form.get("relative", False)))


def _plain_crontab_form(value: Any) -> Form | None:
    return _crontab_form(value) if value.nowfun is None else None


def _crontab_form(value: Any) -> dict[str, Any]:
    return {name: _field(getattr(value, f"_orig_{name}")) for name in FIELDS}


def _field(given: Any) -> str:
    """A field of cron as text. Celery also accepts a number, and a list or set of numbers."""
    return (
        given if isinstance(given, str) else str(given) if isinstance(given, int) else ",".join(map(str, sorted(given)))
    )


def _crontab(form: Form) -> Any:
    fields = {name: form.get(name, "*") for name in FIELDS}
    for name, text in fields.items():
        if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
            raise Rejected(f"expected {name} of a crontab to be text, got: {quoted(text)}; nothing was changed")
    made: Any = crontab(**fields)
    if (tz := form.get("tz")) is not None:
        made.tz = zone_of(tz)
    return made


def zone_of(name: Any) -> ZoneInfo:
    """The time zone of a name such as "Europe/Berlin".

    Raises:
        Rejected: there is no such time zone; nothing was changed.
    """
    try:
        return ZoneInfo(name)
    except Exception as error:  # many kinds, for a name that is a path, a folder or no text
        raise Rejected(f"unknown time zone: {quoted(name)}; nothing was changed") from error


def _solar_form(value: Any) -> Form | None:
    if value.nowfun is not None:
        return None
    return {"event": value.event, "lat": float(value.lat), "lon": float(value.lon)}


def _solar(form: Form) -> Any:
    return solar(form["event"], float(form["lat"]), float(form["lon"]))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Rejected(f"expected a number of degrees, got: {quoted(text)}; nothing was changed") from None


def _shown(form: Form) -> str:
    return quoted(dict(form))


_KINDS: Final[dict[str, ScheduleKind]] = {
    "interval": ScheduleKind(schedule, _interval_form, _interval),
    "crontab": ScheduleKind(crontab, _plain_crontab_form, _crontab),
    "solar": ScheduleKind(solar, _solar_form, _solar),
}
