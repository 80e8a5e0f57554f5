"""Decides what becomes of each entry of another scheduler, and carries it out.

An imported entry goes on from its last run in the other scheduler. Its first due time here is the time at which the
other scheduler would have run it next. If that time has passed, the catch-up policy decides, as after any downtime. An
entry that runs once becomes a task that waits for its ETA.

`plan_import` only reads. Repeat an import as often as you like: what is here already is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from celery.schedules import schedule

from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.wording import instant
from wheel_sched_celery.beat.code_entries import defined_names
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import BeatEntry, StoredEntry
from wheel_sched_celery.beat.importing.foreign_entry import ForeignEntry
from wheel_sched_celery.beat.next_due import first_due_ms, next_due_ms
from wheel_sched_celery.beat.schedules import in_words, schedule_of
from wheel_sched_celery.message.held_task import ref_of

ADD: Final = "add"
CHANGE: Final = "change"
RHYTHM: Final = "rhythm"
ONCE: Final = "task"
SKIP: Final = "skip"
FAIL: Final = "fail"
CHANGING: Final = (ADD, CHANGE, RHYTHM, ONCE)


@dataclass(frozen=True, slots=True)
class ImportStep:
    """What becomes of one entry.

    Args:
        name: its name.
        action: "add" (the entry is new), "change" (the stored entry gets the other scheduler's definition), "rhythm"
            (the stored entry has not run yet and goes on from its last run in the other scheduler), "task" (the entry
            runs once, so it becomes a task with an ETA), "skip" (nothing is to do) or "fail" (it cannot be imported).
        words: the schedule and the due time, or the reason.
        entry: the entry to store, for "add", "change" and "rhythm"; for "task" it has the task and its arguments.
        once_ms: the ETA, for "task".
    """

    name: str
    action: str
    words: str
    entry: BeatEntry | None = None
    once_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The step as data for JSON."""
        entry = self.entry
        return {
            "name": self.name,
            "action": self.action,
            "words": self.words,
            "task": None if entry is None else entry.task,
            "schedule": None if entry is None or self.action == ONCE else in_words(entry.schedule),
            "due_ms": self.once_ms if entry is None or self.action == ONCE else entry.due_ms,
            "last_ms": None if entry is None else entry.last_ms,
            "paused": entry is not None and entry.paused,
        }


def plan_import(entries: BeatEntries, found: Iterable[ForeignEntry], *, change: bool = False) -> list[ImportStep]:
    """Decide about each entry. Nothing is changed.

    Args:
        entries: the entries of the app.
        found: the entries of the other scheduler.
        change: whether a stored entry with another definition gets that of the other scheduler. Defaults to False: it
            is skipped. An entry whose definition here comes from code or a file always keeps it.
    """
    now_ms = entries.store.now_ms()
    stored = {one.name: one for one in entries.all()}
    return [_step(entries, one, stored.get(one.name), now_ms, change) for one in found]


def _step(entries: BeatEntries, found: ForeignEntry, here: StoredEntry | None, now_ms: int, change: bool) -> ImportStep:
    try:
        if found.problem:
            return ImportStep(found.name, FAIL, found.problem)
        expires = found.options.get("expires")
        if isinstance(expires, datetime) and (expires - datetime.now(UTC)) <= timedelta(0):
            return ImportStep(found.name, SKIP, f"it ended at {expires.isoformat()}")
        return _once(entries, found, now_ms) if found.once else _periodic(entries, found, here, now_ms, change)
    except (Rejected, NotDone) as error:
        return ImportStep(found.name, FAIL, str(error))


def _periodic(
    entries: BeatEntries, found: ForeignEntry, here: StoredEntry | None, now_ms: int, change: bool
) -> ImportStep:
    entry = _entry(entries, found)
    due_ms = _due_ms(entries, entry, found, now_ms)
    entry = replace(entry, last_ms=found.last_run_ms, paused=found.paused, due_ms=None if found.paused else due_ms)
    words = f"{in_words(entry.schedule)}, {'paused' if found.paused else _next(due_ms, now_ms)}"
    if here is None:
        return ImportStep(found.name, ADD, words, entry)
    old = here.entry
    if old is None:
        return ImportStep(found.name, FAIL, "an entry of this name is here and cannot be read; remove it first")
    if old.removed:
        return ImportStep(found.name, SKIP, "somebody removed it here; `resume` brings it back")
    if _has_not_run(old, entry) and old.due_ms != due_ms:
        return ImportStep(found.name, RHYTHM, f"is here already, {_next(due_ms, now_ms)}", entry)
    if old.fingerprint == entry.fingerprint:
        return ImportStep(found.name, SKIP, "is here already")
    if old.source != "run-time":
        return ImportStep(found.name, SKIP, "has another definition here, from the code of the app, which counts")
    if not change:
        return ImportStep(found.name, SKIP, "has another definition here, which stays; --change replaces it")
    return ImportStep(found.name, CHANGE, words, entry)


def _has_not_run(old: BeatEntry, entry: BeatEntry) -> bool:
    """Whether the stored entry has this schedule, and has run in the other scheduler but not here."""
    waits = old.last_ms is None and old.due_ms is not None and old.schedule == entry.schedule
    return waits and entry.last_ms is not None and not entry.paused


def _entry(entries: BeatEntries, found: ForeignEntry) -> BeatEntry:
    source = "code" if found.name in defined_names(entries.wheel) else "run-time"
    return entries.make(found.name, found.task, found.schedule, found.args, found.kwargs, found.options, source=source)


def _due_ms(entries: BeatEntries, entry: BeatEntry, found: ForeignEntry, now_ms: int) -> int:
    """The due time that would have come next in the other scheduler."""
    value = schedule_of(entry.schedule, entries.wheel.app)
    starts_ms = found.starts_ms
    if starts_ms is not None and (found.last_run_ms is None or starts_ms > found.last_run_ms):
        return starts_ms if type(value) is schedule else next_due_ms(value, starts_ms - 1)
    if found.last_run_ms is None:
        return first_due_ms(value, now_ms)
    return next_due_ms(value, found.last_run_ms)


def _once(entries: BeatEntries, found: ForeignEntry, now_ms: int) -> ImportStep:
    if found.paused:
        return ImportStep(found.name, SKIP, "it runs once and is disabled")
    # a schedule is only needed to compute the time, and an entry only for its checks
    checked = entries.make(
        found.name, found.task, found.schedule or 1, found.args, found.kwargs, _options(found, now_ms)
    )
    at_ms = found.once_ms if found.once_ms is not None else _due_ms(entries, checked, found, now_ms)
    if at_ms <= now_ms:
        return ImportStep(
            found.name, FAIL, f"it runs once and was due at {instant(at_ms)}; if it did not run, send its task yourself"
        )
    if entries.store.find(ref_of(_task_id(found.name, at_ms)), limit=1):
        return ImportStep(found.name, SKIP, f"its task waits here already, {_next(at_ms, now_ms)}")
    entry = replace(checked, options=_options(found, at_ms))
    return ImportStep(found.name, ONCE, f"runs once, {_next(at_ms, now_ms)}", entry, at_ms)


def _options(found: ForeignEntry, at_ms: int) -> dict[str, Any]:
    """The options of a task that is sent now and due at `at_ms`.

    An `expires` in seconds counts from `at_ms`.
    """
    options = dict(found.options)
    seconds = options.get("expires")
    if isinstance(seconds, int | float):
        options["expires"] = _instant(at_ms) + timedelta(seconds=seconds)
    return options


def _next(due_ms: int, now_ms: int) -> str:
    if due_ms <= now_ms:
        return f"due since {instant(due_ms)}: the catch-up policy decides"
    return f"next {instant(due_ms)}"


def _instant(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def carry_out(entries: BeatEntries, steps: Sequence[ImportStep]) -> Iterator[tuple[ImportStep, str]]:
    """Carry out the steps that change something, one after the other. Yields each step with its error, or with "".

    An error of the store or the broker ends the import. Repeat the import then: it does the rest.

    Args:
        entries: the entries of the app.
        steps: of `plan_import`.
    """
    for step in steps:
        if step.action not in CHANGING or step.entry is None:
            continue
        try:
            _carry_out(entries, step, step.entry)
        except (Rejected, NotDone) as error:
            yield step, str(error)
        else:
            yield step, ""


def _carry_out(entries: BeatEntries, step: ImportStep, entry: BeatEntry) -> None:
    if step.action == ADD:
        entries.add(entry)
    elif step.action == CHANGE:
        entries.replace(entry)
    elif step.action == RHYTHM and entry.last_ms is not None and entry.due_ms is not None:
        entries.set_rhythm(step.name, entry.last_ms, entry.due_ms)
    elif step.once_ms is not None:
        task_id, eta = _task_id(step.name, step.once_ms), _instant(step.once_ms)
        entries.wheel.app.send_task(
            entry.task, entry.args, dict(entry.kwargs), eta=eta, task_id=task_id, **entry.options
        )


def _task_id(name: str, at_ms: int) -> str:
    """The id of the task of an entry that runs once: the same each time it is imported."""
    return str(uuid5(NAMESPACE_URL, f"wheel-sched-import:{name}:{at_ms}"))
