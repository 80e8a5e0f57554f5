"""Time zones as text: a name of the IANA database, or a fixed offset.

Any other zone is refused when a job is added, because no process could read it again.

    zoneinfo:Europe/Berlin    also for dateutil's zones, and for the local zone if its file is in the database
    pytz:Europe/Berlin        separate, because pytz counts an hour of the wall clock differently
    utc+3600                  an offset in seconds: `datetime.timezone`, and any zone whose offset never changes
"""

from __future__ import annotations

import os
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from wheel_sched.errors import Rejected, StoreError
from wheel_sched_apscheduler.instants import from_us

LOCAL_FILES = (Path("/etc/localtime"), Path("/usr/local/etc/localtime"))
_PROBES = [datetime(year, month, 15, 12, tzinfo=UTC) for year in range(1970, 2038) for month in (1, 4, 7, 10)]


class NotSerializable(Rejected):
    """A job that cannot be stored; nothing was stored."""


class Unreadable(StoreError):
    """Stored bytes that are no job of this release; they were not changed."""


class NotHere(Unreadable, LookupError):
    """Stored bytes that another process may be able to read or run: a newer one, or one with other settings."""


def zone_name(zone: tzinfo) -> str:
    """A zone as text, see the module.

    Raises:
        NotSerializable: the zone has neither a name nor a fixed offset.
    """
    if zone is UTC:
        return "utc+0"
    if isinstance(zone, ZoneInfo):
        name = zone.key if _can_be_made_again(zone) else _name_by_file(zone)
    elif type(zone).__module__.partition(".")[0] == "pytz" and getattr(zone, "zone", None):
        return f"pytz:{zone.zone}"  # type: ignore[attr-defined]  # just asked for
    else:
        offset = _fixed_offset(zone)
        if offset is not None:
            if offset.microseconds:
                raise NotSerializable(f"expected an offset of whole seconds, got: {offset}; nothing was stored")
            return f"utc{offset.days * 86_400 + offset.seconds:+d}"
        name = _name_by_file(zone)
    if name:
        return f"zoneinfo:{name}"
    raise NotSerializable(
        f"expected a time zone with a name of the time zone database, or a fixed offset, got: {zone!r}; nothing was "
        "stored; give the scheduler or the trigger timezone='Area/City', for the machine's own zone set TZ=Area/City"
    )


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The zone behind `zone_name`.

    Raises:
        NotHere: this machine does not have it.
    """
    kind, _, key = name.partition(":")
    try:
        if kind == "zoneinfo":
            return ZoneInfo(key)
        if kind == "pytz":
            try:
                import pytz
            except ImportError:
                return ZoneInfo(key)
            zone: tzinfo = pytz.timezone(key)
            return zone
        if name.startswith("utc"):
            seconds = int(name[3:])
            return UTC if seconds == 0 else timezone(timedelta(seconds=seconds))
    except (ValueError, LookupError, OSError, OverflowError) as error:
        raise NotHere(f"the time zone {name!r} is not known here: {error}; install tzdata") from error
    raise NotHere(f"the time zone {name!r} is of a kind this release does not know")


def moment_of(us: int, zone: str) -> datetime:
    """An aware datetime.

    Raises:
        Unreadable: no calendar has such a moment, or this machine does not know the zone.
    """
    try:
        return from_us(us).astimezone(zone_of(zone))
    except (OverflowError, TypeError, ValueError) as error:
        raise Unreadable(f"its time {str(us)[:40]} is none: {error}") from error


def _can_be_made_again(zone: ZoneInfo) -> bool:
    """Whether its key is its name in the database. A zone read from a file has a key of its maker's choice."""
    try:
        zone.__reduce__()
    except Exception:  # PicklingError; a subclass may raise anything
        return False
    return bool(zone.key)


def _fixed_offset(zone: tzinfo) -> timedelta | None:
    """Its offset if that never changes, else None. Only such a zone has an offset without a time."""
    try:
        offset = zone.utcoffset(None)
        if isinstance(zone, timezone):
            return offset
        if offset is None or {_at(zone, probe) for probe in _PROBES} != {offset}:
            return None
    except Exception:  # any class may be a zone
        return None
    return offset


def _at(zone: tzinfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _name_by_file(zone: Any) -> str | None:
    """The name of a zone that was made from a file of the database, or from a copy such as the machine's own zone."""
    file = getattr(zone, "_filename", None)  # dateutil's
    files = [Path(file)] if isinstance(file, str) else [*_environment_file(), *LOCAL_FILES]
    return next((name for path in files for name in _names_of(path) if _are_alike(zone, name)), None)


def _are_alike(zone: tzinfo, name: str) -> bool:
    """Whether a zone has the same offsets as a zone of the database."""
    try:
        twin = ZoneInfo(name)
        return all(_at(zone, probe) == _at(twin, probe) for probe in _PROBES)
    except Exception:  # the file is no zone, or the zone has an unusual class
        return False


def _environment_file() -> list[Path]:
    name = os.environ.get("TZ", "").removeprefix(":")
    return [Path(name)] if name else []


@lru_cache(maxsize=16)
def _names_of(path: Path) -> list[str]:
    """The names of this file in the database: by its path or the path it links to, else by equal content."""
    folders = [Path(folder) for folder in zoneinfo.TZPATH if Path(folder).is_dir()]
    if not path.is_absolute():
        return [str(path)]
    names = [
        str(each.relative_to(folder))
        for each in (path, path.resolve())
        for folder in folders
        if each.is_relative_to(folder)
    ]
    if names or not path.is_file():
        return names
    content = path.read_bytes()
    return sorted(
        name
        for folder in folders
        for each in folder.rglob("[A-Z]*")
        if each.is_file()
        and each.stat().st_size == len(content)
        and each.read_bytes() == content
        and not (name := str(each.relative_to(folder))).startswith(("posix", "right"))
    )
