"""Keeps the entries of the schedule apart from held tasks: both are items of one store.

Listings, counters, `purge` and `drain` of tasks leave the entries alone. Only `due_head_ms` counts them too.
"""

from __future__ import annotations

from dataclasses import replace

from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import Found
from wheel_sched_celery.beat.entry import TOPIC


def is_task(found: Found) -> bool:
    """Whether an item is a held task, and not an entry of the schedule."""
    return found.topic != TOPIC


def tasks_alone(counts: Counts) -> Counts:
    """The store's counters without the entries. `due_head_ms` may still be the due time of an entry."""
    now = {key: count for key, count in counts.now.items() if key[1] != TOPIC}
    ever = {key: count for key, count in counts.ever.items() if key[1] != TOPIC}
    return replace(counts, now=now, ever=ever)
