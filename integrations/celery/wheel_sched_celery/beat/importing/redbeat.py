"""Reads the entries of celery-redbeat from its Redis server. Nothing is written there.

The sorted set `redbeat::schedule` names the keys of all entries. The hash of an entry has two fields in JSON:
`definition` and `meta`. `meta` has the time of the last run. An object with the key `__type__` stands for a date or a
schedule. The set `redbeat::statics` has the names of entries that come from `app.conf.beat_schedule`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from wheel_sched.errors import Rejected, StoreUnavailable, WheelSchedError
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

PREFIX: Final = "redbeat:"
_PAGE: Final = 500
_LONGEST: Final = 1_000_000  # bytes of a definition


def read_redbeat(url: str, prefix: str = PREFIX) -> list[ForeignEntry]:
    """Read all entries of a redbeat server, in order of their names.

    Args:
        url: the server's URL, the app's `redbeat_redis_url`.
        prefix: the app's `redbeat_key_prefix`. Defaults to "redbeat:".

    Raises:
        StoreUnavailable: the server does not answer, or a key has another type.
        Rejected: there are no entries under this prefix, or too many.
    """
    from wheel_sched.store.redis.backend import client_for

    with contextlib.closing(client_for(url)) as client, _translated():
        members: Any = client.zrange(f"{prefix}:schedule", 0, MAX_ENTRIES)
        keys: list[bytes] = list(members)
        if not keys:
            raise Rejected(
                f"there are no entries of redbeat under the prefix {shown(prefix)}; nothing was changed; "
                "--prefix gives another one, see redbeat_key_prefix of the app"
            )
        if len(keys) > MAX_ENTRIES:
            raise Rejected(f"there are more than {MAX_ENTRIES:,} entries of redbeat; nothing was changed")
        rows: list[tuple[bytes | None, bytes | None]] = []
        for at in range(0, len(keys), _PAGE):
            with client.pipeline(transaction=False) as pipe:
                for key in keys[at : at + _PAGE]:
                    pipe.hmget(key, "definition", "meta")
                rows += [tuple(row) for row in pipe.execute()]
    found = [entry_of(_name(key, prefix), *row) for key, row in zip(keys, rows, strict=True)]
    return sorted(found, key=lambda entry: entry.name)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """In this block, raise errors of redis-py as `StoreUnavailable`."""
    import redis

    try:
        yield
    except WheelSchedError:
        raise
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"the server of redbeat does not answer as one: {error}; nothing was changed") from error


def _name(key: bytes, prefix: str) -> str:
    return key.decode("utf-8", "backslashreplace").removeprefix(prefix)


def entry_of(name: str, definition: bytes | None, meta: bytes | None) -> ForeignEntry:
    """Read one entry.

    Args:
        name: its name, from its key.
        definition, meta: the fields of its hash.
    """
    if definition is None:
        return ForeignEntry(name, problem="its definition is gone: redbeat, too, drops such an entry")
    try:
        given = mapping_of("definition", _loads("definition", definition))
        ran = mapping_of("meta", _loads("meta", meta)) if meta else {}
        last = ran.get("last_run_at")
        if last is not None and not isinstance(last, datetime):
            raise Rejected(f"expected its last_run_at to be a date, got: {shown(last)}")
        enabled = given.get("enabled", True)
        if not isinstance(enabled, bool):
            raise Rejected(f"expected enabled to be true or false, got: {shown(enabled)}")
        found = given.get("schedule")
        if not isinstance(found, _Schedule):
            raise Rejected(f"expected its schedule to be an interval or a crontab, got: {shown(found)}")
        return ForeignEntry(
            text_of("name", given.get("name", name)),
            text_of("task", given.get("task")),
            found.made(),
            list_of("args", given.get("args")),
            mapping_of("kwargs", given.get("kwargs")),
            mapping_of("options", given.get("options")),
            paused=not enabled,
            last_run_ms=None if last is None else ms_of(last),
        )
    except Rejected as error:
        return ForeignEntry(name, problem=str(error))


def _loads(what: str, text: bytes) -> Any:
    if len(text) > _LONGEST:
        raise Rejected(f"its {what} has {len(text):,} bytes, the limit is {_LONGEST:,}")
    try:
        return json.loads(text, object_hook=_object)
    except Rejected:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Rejected(f"its {what} cannot be read: {error}") from error


class _Schedule:
    """The JSON object of a schedule. `made` turns it into a schedule of Celery.

    Only the definition's own schedule is made. The arguments of its task may have such objects too.
    """

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self._kind, self._fields = kind, fields

    def __repr__(self) -> str:
        return f"a schedule of the kind {self._kind}"

    def made(self) -> Any:
        """The schedule of Celery.

        Raises:
            Rejected: Celery has no such schedule, or a field is wrong.
        """
        if self._kind == "interval":
            return interval_of(self._fields.get("every", 0), bool(self._fields.get("relative")))
        if self._kind == "crontab":
            return crontab_of(self._fields)
        raise Rejected(
            "its schedule is an rrule, which Celery does not have; write it as a crontab, or as a schedule class of "
            "the app in app.conf.beat_schedule"
        )


def _object(found: dict[str, Any]) -> Any:
    """A date or a schedule, if the object stands for one."""
    kind = found.get("__type__")
    fields = {name: value for name, value in found.items() if name != "__type__"}
    if kind == "datetime":
        return _date(fields)
    if kind in ("interval", "crontab", "rrule"):
        return _Schedule(kind, fields)
    return found


def _date(fields: dict[str, Any]) -> datetime:
    zone = fields.pop("timezone", "UTC")
    tz: tzinfo = timezone(timedelta(seconds=zone)) if isinstance(zone, int | float) else zone_of(zone)
    return datetime(tzinfo=tz, **fields)
