"""The changes of entries of the schedule that a visitor can ask for. Each is previewed.

A preview stays valid as long as the definition and the state of the entry are the same, also if the entry runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from wheel_sched.dashboard import Action, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.named_things import ChosenThings, NamedKind
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.wording import relative
from wheel_sched_celery.beat.entries import BeatEntries, remove_present, why_not_present
from wheel_sched_celery.beat.entry import StoredEntry
from wheel_sched_celery.beat.shown_entry import entries_of as entries_in_words
from wheel_sched_celery.dashboard.beat_answers import entries_of, why_no_app
from wheel_sched_celery.dashboard.opening import OpenedTasks, opened_of

ENTRIES = NamedKind("entry", "entries", "the name of an entry", entries_in_words)


class EntryChange(NamedTuple):
    """A change of entries.

    Args:
        name: the name of the action.
        right: the right that it needs.
        summary: one line for the OpenAPI document.
        words: what it would do; `{}` becomes the number of entries.
        done: what it did; `{}` becomes the number of entries.
        why_not: why an entry cannot be changed so, in words; "" when it can.
        change: changes an entry. Raises NotDone or Rejected when it does not.
        warning: what the user should know before. Defaults to "".
    """

    name: str
    right: Right
    summary: str
    words: str
    done: str
    why_not: Callable[[OpenedTasks, StoredEntry], str]
    change: Callable[[BeatEntries, str], Any]
    warning: str = ""


def _with_app(opened: OpenedTasks, one: StoredEntry) -> str:
    return why_not_present(one) if one.entry is None else why_no_app(opened)


def _removable(opened: OpenedTasks, one: StoredEntry) -> str:
    """Why an entry cannot be removed, in words; "" when it can.

    An entry that the code still has would come back. Without the app nobody knows whether the code has it.
    """
    if one.entry is None or one.entry.source == "run-time":
        return ""
    return why_no_app(opened)


CHANGES = (
    EntryChange(
        "pause-beat-entry",
        "operate",
        "Let entries of the schedule wait until they are resumed",
        "pause {}",
        "{} paused",
        lambda _, one: why_not_present(one),
        BeatEntries.pause,
    ),
    EntryChange(
        "resume-beat-entry",
        "operate",
        "Let entries of the schedule run again that are paused, removed or failed",
        "resume {}",
        "{} resumed",
        _with_app,
        BeatEntries.resume,
        warning="they go on from their next due time after now",
    ),
    EntryChange(
        "run-beat-entry-now",
        "operate",
        "Send the tasks of entries of the schedule once more, now",
        "send the tasks of {} now",
        "{} to run now",
        lambda opened, one: why_not_present(one) or _with_app(opened, one),
        BeatEntries.run_now,
        warning="a live worker sends them; their rhythm does not change",
    ),
    EntryChange(
        "remove-beat-entry",
        "delete",
        "Remove entries of the schedule: they never run again",
        "remove {} for good",
        "{} removed",
        _removable,
        remove_present,
        warning="tasks that were sent already are not stopped",
    ),
)


def _preview(change: EntryChange, dashboard: Dashboard, arguments: Arguments) -> Preview:
    opened = opened_of(dashboard)
    entries = entries_of(opened)
    now_ms, chosen = entries.store.now_ms(), ChosenThings(ENTRIES)
    for name in ENTRIES.names_of(arguments):
        one = entries.get(name)
        why = "is not here: it was removed or never added" if one is None else change.why_not(opened, one)
        if why or one is None:
            chosen.leave(why)
        else:
            chosen.choose(one.name, one, _definition(one), _sample(one, now_ms))
    return chosen.preview(change.words, change.warning)


def _definition(one: StoredEntry) -> list[str]:
    state = "waiting" if one.state == "running" else one.state
    return [state, "" if one.entry is None else one.entry.fingerprint]


def _sample(one: StoredEntry, now_ms: int) -> str:
    entry = one.entry
    if entry is None:
        return f"{one.name}: (cannot be read)"
    due = "" if entry.due_ms is None else f", due {relative(entry.due_ms, now_ms)}"
    return f"{one.name}: {entry.task}, {one.state}{due}"


def _execute(change: EntryChange, dashboard: Dashboard, found: Preview) -> ActionResult:
    entries = entries_of(opened_of(dashboard))
    done, left = 0, Counter[str]()
    for name in found.selected:
        try:
            change.change(entries, name)
        except (NotDone, Rejected) as error:
            left[str(error)] += 1
        else:
            done += 1
    return ActionResult(done, change.done.format(entries_in_words(done)), dict(left), "/beat")


def _action(change: EntryChange) -> Action:
    return Action(
        change.name,
        change.right,
        change.summary,
        ENTRIES.fields,
        lambda dashboard, arguments: _preview(change, dashboard, arguments),
        lambda dashboard, _arguments, found, _who: _execute(change, dashboard, found),
    )


ACTIONS = tuple(map(_action, CHANGES))
