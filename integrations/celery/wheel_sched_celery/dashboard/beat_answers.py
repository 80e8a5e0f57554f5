"""Entries of the schedule as data: what the pages and the JSON API show, made in one place for both.

Arguments and options, except the queue, are payload. They are left out unless the dashboard shows payloads.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.dashboard.schemas import INTEGER, INTEGER_OR_NONE, SWITCH, TEXT, TEXT_OR_NONE, array, listing, record
from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import StoredEntry
from wheel_sched_celery.beat.shown_entry import as_dict, catch_up_of
from wheel_sched_celery.dashboard.opening import OpenedTasks

_PAYLOAD = ("args", "kwargs", "options")
_NAME = 200
_RUNS = 10  # of one entry

_FIELDS = {
    "name": TEXT,
    "state": TEXT,
    "problem": TEXT,
    "gone": SWITCH,
    "task": TEXT_OR_NONE,
    "schedule": TEXT_OR_NONE,
    "source": TEXT_OR_NONE,
    "catch_up": TEXT,
    "queue": TEXT_OR_NONE,
    "due_ms": INTEGER_OR_NONE,
    "last_ms": INTEGER_OR_NONE,
    "runs": INTEGER,
    "missed": INTEGER,
}
ENTRY = record(**_FIELDS)
ENTRIES = listing("entries", ENTRY, cursor=TEXT_OR_NONE, total=INTEGER, overdue=INTEGER, why_no_app=TEXT)
ONE_ENTRY = record(entry=ENTRY, next_runs=array(INTEGER), added_ms=INTEGER, changed_ms=INTEGER, why_no_app=TEXT)


class EntryPage(NamedTuple):
    """A page of entries. `cursor` is the name after which the next page begins; None: this page is the last.

    `total` is the number of matching entries on this page and the later ones.
    """

    entries: list[dict[str, Any]]
    cursor: str | None
    total: int


def entries_of(opened: OpenedTasks) -> BeatEntries:
    """The entries of the schedule in the store of a dashboard."""
    held = opened.tasks
    return BeatEntries(held.wheel, held.store)


def gone_in(opened: OpenedTasks, entries: BeatEntries) -> frozenset[str]:
    """Names of entries that the code no longer has. Empty without the running application: only it knows its code."""
    return frozenset() if opened.app is None else frozenset(one.name for one in entries.gone())


def entry_page(
    opened: OpenedTasks, name: str, state: str, behind: str | None, limit: int, show_payloads: bool
) -> EntryPage:
    """One page of the entries, in order of their names.

    Args:
        opened: the tasks and entries of the dashboard.
        name: a pattern with * and ?; "" = all.
        state: only entries in this state; "" = all.
        behind: the cursor of the page before.
        limit: how many entries at most.
        show_payloads: whether arguments and options are shown.

    Raises:
        Rejected: the name is too long.
    """
    if len(name) > _NAME:
        raise Rejected(f"expected a name of at most {_NAME} characters, got {len(name):,}")
    entries = entries_of(opened)
    gone = gone_in(opened, entries)
    found = [
        one
        for one in entries.all()
        if (not name or fnmatchcase(one.name, name))
        and (not state or one.state == state)
        and (behind is None or one.name > behind)
    ]
    shown = [entry_as_dict(one, one.name in gone, show_payloads) for one in found[:limit]]
    return EntryPage(shown, found[limit - 1].name if len(found) > limit else None, len(found))


def entry_as_dict(one: StoredEntry, gone: bool, show_payloads: bool) -> dict[str, Any]:
    """An entry of a listing."""
    whole = as_dict(one, gone=gone)
    fields = {name: whole.get(name) for name in _FIELDS}
    fields |= {"runs": whole.get("runs", 0), "missed": whole.get("missed", 0), "catch_up": catch_up_of(one)}
    queue = whole.get("options", {}).get("queue")
    fields["queue"] = queue if isinstance(queue, str) else None
    if show_payloads:
        fields |= {name: whole.get(name) for name in _PAYLOAD}
    return fields


def one_entry(dashboard: Dashboard, opened: OpenedTasks, name: str) -> dict[str, Any]:
    """Everything about one entry.

    Raises:
        NotFound: there is no entry of this name.
    """
    entries = entries_of(opened)
    found = entries.get(name)
    if found is None:
        raise NotFound(f"there is no entry {name[:200]!r}: it was removed or never added")
    gone = found.name in gone_in(opened, entries)
    entry = found.entry
    return {
        "entry": entry_as_dict(found, gone, dashboard.config.show_payloads),
        "next_runs": _next_runs(opened, entries, found),
        "added_ms": 0 if entry is None else entry.added_ms,
        "changed_ms": 0 if entry is None else entry.changed_ms,
        "why_no_app": why_no_app(opened),
    }


def _next_runs(opened: OpenedTasks, entries: BeatEntries, found: StoredEntry) -> list[int]:
    """The next runs; without the running application only the first one, because the time zone may be the app's."""
    if found.entry is None or found.entry.due_ms is None:
        return []
    if opened.app is None:
        return [found.entry.due_ms]
    try:
        return entries.next_runs(found.name, _RUNS)
    except WheelSchedError:  # its schedule is wrong; the state and the problem of the entry say so
        return [found.entry.due_ms]


def why_no_app(opened: OpenedTasks) -> str:
    """Why this dashboard cannot compute due times or make messages; "" when it can."""
    if opened.app is not None:
        return ""
    return (
        "this needs the running application, with its time zone and its code: dashboard(..., celery_app=app), or "
        "`celery wheel beat`"
    )
