"""Metrics of the schedule, for Prometheus. Everything is read from the store, so any process can export them.

Each counter has the name of its entry as a label, and ends when the entry leaves the store. Only the `MOST_NAMED`
entries that were added first have counters of their own. So a program that adds very many entries does not flood
Prometheus.

The functions change nothing. Any thread may call them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from wheel_sched.escaping import escaped
from wheel_sched.observability.families import Metric, Samples, counter, gauge
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched_celery.beat.entries import MOST
from wheel_sched_celery.beat.entry import REF, StoredEntry, read_entry

MOST_NAMED: Final = 100


def of_schedule(store: DelayStore) -> Iterator[Metric]:
    """The metrics of all entries in the store of an app.

    Raises:
        StoreError: the store does not answer.
    """
    found = [read_entry(item) for item in store.get(store.find(REF, limit=MOST)) if item is not None]
    states = Counter(one.state for one in found)
    states.setdefault("waiting", 0)
    text = "Entries of beat's schedule."
    yield gauge("beat_entries", text, ["state"], [((state,), count) for state, count in sorted(states.items())])
    waiting = [one.found.score_ms for one in found if one.state == "waiting"]
    next_due: Samples = [((), min(waiting) / 1000)] if waiting else []
    yield gauge("beat_next_due_timestamp_seconds", "When the first entry is due, if any.", [], next_due)
    overdue_s = max(0, store.now_ms() - min(waiting)) / 1000 if waiting else 0.0
    yield gauge("beat_oldest_overdue_seconds", "How late the first entry is.", [], [((), overdue_s)])
    yield from _of_entries(found)


def _of_entries(found: list[StoredEntry]) -> Iterator[Metric]:
    entries = sorted((one.entry for one in found if one.entry is not None), key=lambda one: (one.added_ms, one.name))
    named = [((escaped(entry.name),), entry) for entry in entries[:MOST_NAMED]]
    sent = [(label, entry.runs) for label, entry in named]
    missed = [(label, entry.missed) for label, entry in named]
    caught_up = [(label, entry.caught_up) for label, entry in named]
    yield counter("beat_sent", "Occurrences of an entry that were sent.", ["entry"], sent)
    yield counter("beat_missed", "Occurrences that were missed and not sent.", ["entry"], missed)
    yield counter("beat_caught_up", "Occurrences that were missed and sent later.", ["entry"], caught_up)
