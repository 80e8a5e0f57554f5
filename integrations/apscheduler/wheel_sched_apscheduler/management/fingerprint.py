"""Tells whether a job is still as somebody saw it. A change that a person asks for is carried out only then.

A paused or quarantined job is the same while its record is the same. So is a job that runs seldom: if it has run since
somebody saw it, that person must look again. A job that runs every few minutes or seconds gets a new record all the
time, and could never be paused by hand. Such a job is the same while its function, trigger, arguments and options are.
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

SELDOM_MS = 600_000  # a preview is valid for as long


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
