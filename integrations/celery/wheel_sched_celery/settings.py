"""Settings of the integration: arguments of `install`, else `app.conf.wheel_*`, else defaults.

The integration calls `load_settings` when it first needs a setting, because an app may be configured after `install`.
The functions are pure, except that they read `app.conf`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, Final

from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError
from wheel_sched.store.fair_shares import FairSettings
from wheel_sched.store.members.announcer import DISPATCHER_EVERY_MS, every_problem

PREFIX = "wheel_"
HORIZON_MS: Final = 2_000
LEAD_MS: Final = 1_000  # workers fetch the tasks of a burst this long before they are due
_DAY_MS: Final = 86_400_000
ON_OUTAGE = ("stock", "refuse")
_DURATIONS = ("horizon", "lead", "timeout", "drain_timeout", "announce", "beat_grace")
_MAY_BE_ZERO = ("lead", "announce", "beat_grace")
_FLAGS = ("dispatch", "takeover", "beat")
WORKER: Final = "celery-worker"
BEAT: Final = "celery-beat"
"""The kinds of members that send due tasks, see `wheel-sched ps`."""
CATCH_UP: Final = ("skip", "latest", "all")
MOST_LATE: Final = 1_000  # the greatest number of missed occurrences that beat sends


class _Unset:
    """Marks a setting that was not given. None cannot mark it, because None is a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()


@dataclass(frozen=True, slots=True)
class WheelSettings:
    """How tasks are held (kept in the store) and released (sent to their queues). Durations are in whole milliseconds.

    Users may give durations as texts, seconds or timedeltas.

    Args:
        url: address of the delay store (redis://, rediss://, unix://, embedded:FOLDER or a redis-py client); None = no
            store, only a better timer in the worker. Defaults to the broker's URL if the broker is a Redis.
        horizon: a task waits in the store if more than this time is left until it is due. None = no task is held; tasks
            that are held already are still released. Defaults to 2 s, at most half of the broker's visibility timeout.
        namespace: prefix of the store's keys. Defaults to "celery".
        shards: number of shards, fixed when the namespace is created. Defaults to 1.
        durability: "memory", "everysec", "fsync" or "replicated". Defaults to "everysec".
        replicas: how many replicas must confirm a write, if `durability` is "replicated". Defaults to 1.
        on_outage: what a producer does while the store is away: "stock" sends as Celery alone would, "refuse" raises
            `HoldRefused`. A retry is always sent, because Celery gives up a task whose retry cannot be sent. With a
            message that it receives, a worker does what Celery alone would. Defaults to "stock".
        lead: how long before its due time a task goes to its queue. A worker fetches it and keeps it in its timer
            until it is due. If the worker is killed then, the broker delivers the task again. Defaults to half of the
            horizon, but at most 1 s and at most a quarter of the broker's visibility timeout: a task that a worker
            holds longer than that timeout runs twice.
        dispatch: whether workers of this app release held tasks. Defaults to True.
        takeover: whether workers move ETA messages from the broker into the store. Defaults to True.
        timeout: how long one call on the store may take, in producers and workers, except for calls of a dispatcher. If
            `url` is a client or embedded:FOLDER, the timeouts of that client count instead. A worker's event loop waits
            only to answer `inspect`, at most 1 s for each call. Defaults to 5 s.
        drain_timeout: how long a stopping worker waits until its dispatcher has published its tasks. Defaults to 10 s.
        fair: the queues whose due tasks are shared between fair keys (see `wheel_fair_key`), with their settings:
            `{"celery": {"weights": {"gold": 4}, "default_weight": 1}}`. Both settings are optional. The value None ends
            the sharing of a queue. A worker writes the settings into the store when it starts. Defaults to no queue.
        announce: how often a worker announces itself in the store, for `wheel-sched ps`; 0 = never. Defaults to 1 min.
        beat: whether workers of this app bring the entries of its code and file into the store when they start, so that
            no beat process is necessary. All workers with `dispatch` send what is due, whatever this says. Defaults to
            False.
        beat_file: path of a TOML file with more entries of the schedule. Defaults to None.
        beat_catch_up: what becomes of occurrences that were missed while no worker was there: "skip", "latest" (one
            run, as Celery's beat does) or "all". An entry may have its own value. Defaults to "latest".
        beat_catch_up_limit: the greatest number of missed occurrences that "all" sends. It sends the latest ones.
            Defaults to 100.
        beat_grace: with "skip", an occurrence is missed only if it is late by more than this. Defaults to 1 min.
    """

    url: Any = field(default=None, repr=False)  # it may hold a password
    horizon: int | None = HORIZON_MS
    namespace: str = "celery"
    shards: int = 1
    durability: str = "everysec"
    replicas: int = 1
    on_outage: str = "stock"
    lead: int = LEAD_MS
    dispatch: bool = True
    takeover: bool = True
    timeout: int = 5_000
    drain_timeout: int = 10_000
    announce: int = DISPATCHER_EVERY_MS
    beat: bool = False
    beat_file: str | None = None
    beat_catch_up: str = "latest"
    beat_catch_up_limit: int = 100
    beat_grace: int = 60_000
    fair: Mapping[str, FairSettings | None] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether producers hold tasks, that is, store them instead of sending them to the broker at once."""
        return self.url is not None and self.horizon is not None


NAMES = tuple(spec.name for spec in fields(WheelSettings))


def load_settings(given: Mapping[str, Any], conf: Mapping[str, Any], broker_url: str | None) -> WheelSettings:
    """Make the settings from the arguments of `install` and from the app's configuration.

    Args:
        given: arguments of `install`. Those that are UNSET are read from `conf`.
        conf: the app's configuration.
        broker_url: the app's broker URL.

    Raises:
        ConfigError: names every setting that is wrong here. Namespace, shards and durability are checked when the store
            is opened.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    for key in conf:
        name = key.lower().removeprefix("celery_").removeprefix(PREFIX) if isinstance(key, str) else ""
        if PREFIX + name in str(key).lower() and name not in NAMES:
            close = get_close_matches(name, NAMES, 1)
            hint = f"did you mean {PREFIX}{close[0]}?" if close else f"known are {', '.join(PREFIX + n for n in NAMES)}"
            problems.append(f"unknown setting {key}; {hint}")
    for name in NAMES:
        place = name if given.get(name, UNSET) is not UNSET else PREFIX + name
        value = given[name] if place == name else conf.get(place, UNSET)
        if value is not UNSET:
            values[name] = _checked(name, value, place, problems)
    if "url" not in values:
        values["url"] = url_of_broker(broker_url)
        if values["url"] is None and values.get("horizon", HORIZON_MS) is not None:
            problems.append(
                "the broker is no Redis, so the delay store needs an address: install(app, url='redis://...') or "
                "app.conf.wheel_url; url=None works without a store"
            )
    if values.get("beat") is True and (values["url"] is None or values.get("dispatch") is False):
        problems.append("beat=True needs a store and dispatch=True: the workers' dispatchers send the periodic tasks")
    if problems:
        raise ConfigError(problems)
    visible_ms = _visibility_ms(conf)
    horizon_ms = values.setdefault("horizon", max(1, min(HORIZON_MS, visible_ms // 2)))
    if "lead" not in values and horizon_ms is not None:
        values["lead"] = min(LEAD_MS, horizon_ms // 2, visible_ms // 4)
    settings = WheelSettings(**values)
    if settings.horizon is not None and settings.lead >= settings.horizon:
        raise ConfigError(f"expected lead to be shorter than horizon ({settings.horizon} ms), got: {settings.lead} ms")
    return settings


def _visibility_ms(conf: Mapping[str, Any]) -> int:
    """The broker's visibility timeout, in ms, if the app sets one of less than a day; else a day."""
    options = conf.get("broker_transport_options") or {}
    seconds = options.get("visibility_timeout") if isinstance(options, Mapping) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < _DAY_MS / 1000:
        return _DAY_MS
    return int(seconds * 1000)


def url_of_broker(broker_url: str | None) -> str | None:
    """The store's URL for a Redis broker's URL; None for any other broker, for Sentinel and for several URLs."""
    if not broker_url or ";" in broker_url:
        return None
    scheme, mark, rest = broker_url.partition("://")
    if scheme in ("redis", "rediss") and mark:
        return broker_url if rest else f"{scheme}://localhost:6379/0"
    if scheme in ("redis+socket", "socket"):
        path, _, query = rest.partition("?")
        number = re.search(r"virtual_host=/?([0-9]+)", query)
        return f"unix://{path}?db={number[1] if number else 0}"
    return None


def _checked(name: str, value: Any, place: str, problems: list[str]) -> Any:
    if name in _DURATIONS:
        if value is None and name == "horizon":
            return None
        length_ms = duration_ms(value)
        if length_ms is None or (length_ms <= 0 and name not in _MAY_BE_ZERO):
            problems.append(f'expected {place} to be a duration such as "2s", "500ms" or seconds, got: {value!r}')
        elif name == "announce" and (problem := every_problem(place, length_ms)):
            problems.append(problem)
        return length_ms
    if name in _FLAGS:
        if not isinstance(value, bool):
            problems.append(f"expected {place} to be True or False, got: {value!r}")
    elif name == "replicas":
        if type(value) is not int or value < 1:
            problems.append(f"expected {place} to be a whole number from 1 up, got: {value!r}")
    elif name == "beat_catch_up":
        if value not in CATCH_UP:
            problems.append(f'expected {place} to be "skip", "latest" or "all", got: {value!r}')
    elif name == "beat_catch_up_limit":
        if type(value) is not int or not 1 <= value <= MOST_LATE:
            problems.append(f"expected {place} to be a whole number from 1 to {MOST_LATE}, got: {value!r}")
    elif name == "beat_file":
        if value is not None and not isinstance(value, str | PathLike):
            problems.append(f"expected {place} to be the path of a file, got: {value!r}")
        return None if value is None else fspath(value) if isinstance(value, str | PathLike) else value
    elif name == "fair":
        return _fair(value, place, problems)
    elif name == "on_outage":
        if value not in ON_OUTAGE:
            problems.append(f'expected {place} to be "stock" or "refuse", got: {value!r}')
    elif name == "url" and value == "memory:":
        problems.append(
            f"expected {place} to be a store that producers and workers share; {value!r} lives in one process"
        )
    return value


def _fair(value: Any, place: str, problems: list[str]) -> dict[str, FairSettings | None]:
    found: dict[str, FairSettings | None] = {}
    wanted = f'expected {place} to be queues with their settings, such as {{"celery": {{"weights": {{"gold": 4}}}}}}'
    if not isinstance(value, Mapping):
        problems.append(f"{wanted}, got: {value!r}")
        return found
    for queue, given in value.items():
        known = given is None or (isinstance(given, Mapping) and given.keys() <= {"weights", "default_weight"})
        if not isinstance(queue, str) or not known or not isinstance((given or {}).get("weights", {}), Mapping):
            problems.append(f"{wanted}, got: {queue!r}: {given!r}")
            continue
        try:
            found[queue] = None if given is None else FairSettings(**given)
        except ConfigError as error:
            problems += [f"{place}, queue {queue}: {problem}" for problem in error.problems]
    return found


def duration_ms(value: Any) -> int | None:
    """A duration in whole milliseconds, rounded up; None when `value` is no duration."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ConfigError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return -int(-value * 1000 // 1)
