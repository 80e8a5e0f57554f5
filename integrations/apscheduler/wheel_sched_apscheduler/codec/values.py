"""Arguments as JSON: plain values as they are, a fixed set of other types with a tag. Everything else is refused.

    {"$": "tuple", "v": [1, 2]}      tuple, set, frozenset, bytes, decimal, uuid, date, time, datetime, timedelta, zone,
                                     float (nan and infinities), dict (with keys that are no text, or with a "$" key)
    {"$": "pickle", "v": "gASV..."}  only where `allow_pickle` is set, for writing and for reading

What is read never names code: a tag only chooses among the constructors of this module.
"""

from __future__ import annotations

import base64
import math
import pickle  # only behind `allow_pickle`, see Values
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

from wheel_sched_apscheduler.codec.zones import NotHere, NotSerializable, Unreadable, moment_of, zone_name, zone_of
from wheel_sched_apscheduler.instants import to_us

MAX_DEPTH = 64


class Values:
    """Values to JSON-able data and back.

    Args:
        allow_pickle: store values of other types as pickle. Whoever can write to the store can then run code in every
            process that reads it. Defaults to False.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle

    def dump(self, value: Any, place: str, depth: int = 0) -> Any:
        """JSON-able data for a value; `place` names it in the error.

        Raises:
            NotSerializable: the value has another type, or is nested too deeply.
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
        """The value behind `dump`.

        Raises:
            Unreadable: the data is not what `dump` makes, or holds pickle that is not allowed.
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
    """A tagged value, if its type is known here. Not of a subclass: that would be read as its base class."""
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
