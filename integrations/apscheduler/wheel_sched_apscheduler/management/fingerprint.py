"""Tells whether a job has changed since a person saw it. If it has, the change that the person asks for is refused.

A paused or quarantined job has changed if its record has changed. The same rule holds for a job that runs seldom: if it
has run since the person saw it, the person must look again. A job that runs every few minutes or seconds gets a new
record with each run. By that rule nobody could ever pause it by hand. So such a job has changed only if its function,
trigger, arguments or options have changed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from wheel_sched.store import Found
from wheel_sched_apscheduler.codec import Unreadable, definition_of
from wheel_sched_apscheduler.management.run_forecast import runs_until
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.stores.queries import is_quarantined
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

SELDOM_MS = 600_000  # for this time a preview is valid


def fingerprint(store: RedisWheelJobStore, found: Found) -> list[Any]:
    """The id, the state and the version of a job; for a job that runs often, a digest of its definition instead."""
    if found.state == "held":
        return [found.id, "quarantined" if is_quarantined(found) else "paused", found.version]
    definition = _definition_of_frequent(store, found)
    return [found.id, "active", found.version if definition is None else definition]


def _definition_of_frequent(store: RedisWheelJobStore, found: Found) -> str | None:
    """A digest of what a frequent job's runs do not change; None for a job that runs seldom or cannot be read."""
    try:
        moment, definition = store.codec.next_run_time(found.body), definition_of(found.body)
    except Unreadable:
        return None
    if moment is None:
        return None
    forecast = runs_until(store.codec.shown_trigger(found.body), moment, to_ms(moment) + SELDOM_MS, 2)
    if len(forecast.times_ms) < 2:
        return None
    return hashlib.sha256(definition).hexdigest()
