"""Values and time zones of a job as JSON. Everything that is not listed here is refused when a job is added.

Plain values stay as they are. A fixed set of other types gets a tag:

    {"$": "tuple", "v": [1, 2]}      tuple, set, frozenset, bytes, decimal, uuid, date, time (without a time zone),
                                     datetime, timedelta, zone, float (nan and infinities), dict (with keys that are no
                                     text, or with a "$" key)
    {"$": "pickle", "v": "gASV..."}  any other; only where `allow_pickle` is set, for writing and for reading

Any tag but pickle only chooses among the constructors of this module, so stored data names no code.

A time zone is stored as text: a name of the IANA database, or a fixed offset. No process could read any other zone.

    zoneinfo:Europe/Berlin    also for dateutil's zones, and for the local zone if its file is in the database
    pytz:Europe/Berlin        separate, because pytz counts an hour of the wall clock differently
    utc+3600                  an offset in seconds: `datetime.timezone`, and any zone whose offset never changes
"""

from __future__ import annotations

import base64
import math
import os
import pickle  # only behind `allow_pickle`, see Values
import zoneinfo
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from wheel_sched.errors import Rejected, StoreError
from wheel_sched_apscheduler.run_times import from_us, to_us

MAX_DEPTH = 64
LOCAL_FILES = (Path("/etc/localtime"), Path("/usr/local/etc/localtime"))
_PROBES = [datetime(year, month, 15, 12, tzinfo=UTC) for year in range(1970, 2038) for month in (1, 4, 7, 10)]


class NotSerializable(Rejected):
    """A job cannot be stored. Nothing was stored."""


class Unreadable(StoreError):
    """This release cannot read stored bytes as a job. They were not changed."""


class NotHere(Unreadable, LookupError):
    """This process cannot read or run a job. A process with a newer release or other settings may be able to."""


class Values:
    """Writes values as data for JSON, and reads them back.

    Args:
        allow_pickle: store values of other types as pickle. Whoever can write to the store can then run code in every
            process that reads it. Defaults to False.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle

    def dump(self, value: Any, place: str, depth: int = 0) -> Any:
        """Write a value as data for JSON. `place` says in an error where the value is.

        Raises:
            NotSerializable: the value's type is not listed at the top of this module, or it is nested too deeply.
        """
        kind = type(value)
        if value is None or kind in (str, bool, int):
            return value
        if depth > MAX_DEPTH:
            raise NotSerializable(f"{place} is nested more than {MAX_DEPTH} deep, or holds itself; nothing was stored")
        if kind is float:
            return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
        if kind is list:
            return [self.dump(item, place, depth + 1) for item in value]
        if kind is dict:
            if "$" not in value and all(type(key) is str for key in value):
                return {key: self.dump(item, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
            pairs = [[self.dump(k, place, depth + 1), self.dump(v, place, depth + 1)] for k, v in value.items()]
            return {"$": "dict", "v": pairs}
        if kind in (tuple, set, frozenset):
            items = [self.dump(item, place, depth + 1) for item in value]
            return {"$": kind.__name__, "v": items}
        scalar = _dump_scalar(value)
        if scalar is not None:
            return scalar
        if self.allow_pickle:
            try:
                return {"$": "pickle", "v": base64.b64encode(pickle.dumps(value)).decode()}
            except Exception as error:
                raise NotSerializable(f"{place} cannot be pickled: {error}; nothing was stored") from error
        raise NotSerializable(
            f"expected {place} to be plain data (numbers, text, bytes, dates, lists, dicts ...), got: "
            f"{kind.__module__}.{kind.__qualname__}; nothing was stored; pass an id and look the object up in the "
            "job, or open the store with allow_pickle=True if you trust everybody who can write to it"
        )

    def load(self, data: Any) -> Any:
        """The value that `dump` has written as this data.

        Raises:
            Unreadable: the data is not what `dump` makes, or holds pickle that is not allowed.
            Exception: any error of unpickling.
        """
        kind = type(data)
        if kind is list:
            return [self.load(item) for item in data]
        if kind is not dict:
            return data
        tag = data.get("$")
        if tag is None:
            return {key: self.load(item) for key, item in data.items()}
        try:
            content = data["v"]
            if tag in _COLLECTIONS:
                return _COLLECTIONS[tag](self.load(item) for item in content)
            if tag == "dict":
                return {self.load(key): self.load(item) for key, item in content}
            if tag in _SCALARS:
                return _SCALARS[tag](content)
        except Unreadable:
            raise
        except Exception as error:  # hostile data may be of any shape
            raise Unreadable(f"a stored {str(tag)[:40]!r} cannot be read: {error}") from error
        if tag == "pickle":
            if not self.allow_pickle:
                raise NotHere("it holds pickled data, and this store does not read pickle (allow_pickle=True does)")
            return pickle.loads(base64.b64decode(data["v"]))  # noqa: S301 - opted in, see the class
        raise Unreadable(f"it holds a value of the unknown kind {str(tag)[:40]!r}")


def _dump_scalar(value: Any) -> dict[str, Any] | None:
    """The value with its tag; None if its type has no tag. A subclass gets None: it would be read as its base class."""
    kind = type(value)
    if kind is datetime:
        if value.tzinfo is None:
            return {"$": "datetime", "v": [value.isoformat(), value.fold]}
        return {"$": "moment", "v": [to_us(value), zone_name(value.tzinfo)]}
    if kind is date:
        return {"$": "date", "v": value.isoformat()}
    if kind is time and value.tzinfo is None:
        return {"$": "time", "v": [value.isoformat(), value.fold]}
    if kind is timedelta:
        return {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if kind is bytes:
        return {"$": "bytes", "v": base64.b64encode(value).decode()}
    if kind is Decimal:
        return {"$": "decimal", "v": str(value)}
    if kind is UUID:
        return {"$": "uuid", "v": str(value)}
    if isinstance(value, tzinfo):
        return {"$": "zone", "v": zone_name(value)}
    return None


def zone_name(zone: tzinfo) -> str:
    """A time zone as text, in one of the three forms at the top of this module.

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
    """The time zone that a text from `zone_name` names.

    Raises:
        NotHere: this machine does not have the time zone.
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
    """The moment that is `us` microseconds after 1970, as a datetime in a time zone.

    Args:
        us: microseconds since 1970.
        zone: a text from `zone_name`.

    Raises:
        Unreadable: a datetime cannot have this moment.
        NotHere: this machine does not have the time zone.
    """
    try:
        return from_us(us).astimezone(zone_of(zone))
    except (OverflowError, TypeError, ValueError) as error:
        raise Unreadable(f"its time, {str(us)[:40]} us after 1970, is out of range: {error}") from error


def _can_be_made_again(zone: ZoneInfo) -> bool:
    """Whether the zone's key is a name in the time zone database. A zone that was read from a file may have any key."""
    try:
        zone.__reduce__()
    except Exception:  # PicklingError; a subclass may raise anything
        return False
    return bool(zone.key)


def _fixed_offset(zone: tzinfo) -> timedelta | None:
    """The offset of a zone whose offset never changes; None for any other zone."""
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
    """The name of a zone that was made from a file of the time zone database, or from a copy like /etc/localtime."""
    file = getattr(zone, "_filename", None)  # zones of dateutil have this attribute
    files = [Path(file)] if isinstance(file, str) else [*_environment_file(), *LOCAL_FILES]
    return next((name for path in files for name in _names_of(path) if _are_alike(zone, name)), None)


def _are_alike(zone: tzinfo, name: str) -> bool:
    """Whether a zone has the same offsets as the zone with this name in the time zone database."""
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
    """The names of a zone file in the time zone database, found by its path or link target, else by its content."""
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


_COLLECTIONS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": lambda text: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
    "datetime": lambda pair: datetime.fromisoformat(pair[0]).replace(fold=pair[1]),
    "moment": lambda pair: moment_of(*pair),
    "date": date.fromisoformat,
    "time": lambda pair: time.fromisoformat(pair[0]).replace(fold=pair[1]),
    "timedelta": lambda parts: timedelta(*parts),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": Decimal,
    "uuid": UUID,
    "zone": zone_of,
}
