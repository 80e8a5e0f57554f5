"""`BeatEntries`: lists and changes the entries of an app's schedule. The command line and the dashboard call it::

    entries = BeatEntries(app)
    entries.add(entries.make("report", "shop.report", "0 4 * * *", kwargs={"day": "yesterday"}))
    entries.pause("report")

It needs the store only: workers may be down. A change takes effect at once in every process, because the store has the
only copy of an entry and wakes the dispatchers. If a worker ticks the entry at the same moment, the change wins: the
worker sends nothing, and the entry gets another tick.

Threads: any thread may call any method, and threads may share one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from wheel_sched.errors import NotDone, Rejected, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Found, Outcome, quoted
from wheel_sched_celery.beat.code_entries import code_entry, defined_names
from wheel_sched_celery.beat.entry import REF, BeatEntry, StoredEntry, item_id_of, read_entry
from wheel_sched_celery.beat.next_due import first_due_ms, is_plain, next_runs
from wheel_sched_celery.beat.occurrence import extra_id, occurrence_items
from wheel_sched_celery.beat.schedules import CODE, form_of, schedule_from, schedule_from_text, schedule_of
from wheel_sched_celery.wheel import managed_wheel

logger = logger_of("wheel_sched.celery")

MOST: Final = 100_000  # entries of one app
_ATTEMPTS: Final = 20  # to change an entry that others change at the same time

_UNREADABLE: Final = "cannot be read here; `remove` removes it"
_REMOVED: Final = "was removed; `resume` brings it back"
Edit = Callable[[BeatEntry, int], BeatEntry]


class BeatEntries:
    """The entries of an app's schedule.

    Args:
        app: a Celery app with the integration installed, or its `Wheel`.
        store: an open store to use instead of the app's own. Defaults to None.

    Raises:
        ConfigError: the integration is not installed, or the app has no store.
    """

    def __init__(self, app: Any, store: DelayStore | None = None) -> None:
        self.wheel = managed_wheel(app, store)
        self._store = store

    @property
    def store(self) -> DelayStore:
        return self.wheel.store if self._store is None else self._store

    # -- reading

    def all(self) -> list[StoredEntry]:
        """All entries (`MOST` at most), in order of their names, with the removed ones that the code still has."""
        ids = self.store.find(REF, limit=MOST)
        found = [item for item in self.store.get(ids) if item is not None]
        return sorted((read_entry(item) for item in found), key=lambda stored: stored.name)

    def get(self, name: str) -> StoredEntry | None:
        """The entry of this name; None when there is none."""
        found = self._found(name)
        return None if found is None else read_entry(found)

    def next_runs(self, name: str, count: int = 1) -> list[int]:
        """The next due times of an entry, in ms since 1970; none while it is paused, removed or has failed.

        A schedule whose class belongs to the app has only one such time: when a worker next asks whether it is due.

        Raises:
            NotDone: there is no such entry, or it cannot be read.
            Rejected: its schedule is wrong.
        """
        entry, _ = self._readable(name)
        if entry.due_ms is None:
            return []
        if entry.schedule.get("kind") == CODE:
            return [entry.due_ms][:count]
        return next_runs(schedule_of(entry.schedule, self.wheel.app), entry.due_ms, count)

    def _found(self, name: str) -> Found | None:
        (found,) = self.store.get([item_id_of(name)])
        return found

    def _readable(self, name: str) -> tuple[BeatEntry, Found]:
        found = self._found(name)
        if found is None:
            raise NotDone(f"there is no entry {quoted(name)}; nothing was changed")
        entry = read_entry(found).entry
        if entry is None:
            raise NotDone(f"the entry {quoted(name)} {_UNREADABLE}; nothing was changed")
        return entry, found

    # -- making

    def make(
        self,
        name: str,
        task: str,
        schedule: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        tz: str | None = None,
        catch_up: str | None = None,
        catch_up_limit: int | None = None,
        source: str = "run-time",
    ) -> BeatEntry:
        """Make an entry, for `add` and `replace`. It is not stored yet.

        Args:
            name: its name.
            task: the name of the task; it need not be registered here.
            schedule: a schedule of Celery, a timedelta, seconds, or a text as in `schedule_from_text`.
            args, kwargs: arguments of the task, values that JSON can hold.
            options: further arguments of `apply_async`, values that JSON can hold.
            tz: the time zone of a text of cron. Defaults to None: that of the app.
            catch_up, catch_up_limit: see `BeatEntry`. Default to None: the app's setting.
            source: see `BeatEntry`. Defaults to "run-time".

        Raises:
            Rejected: a value is malformed, the error names the entry; nothing was changed.
        """
        app = self.wheel.app
        try:
            made = schedule_from_text(schedule, app, tz) if isinstance(schedule, str) else schedule_from(schedule, app)
            form = form_of(made, app)
            if form["kind"] == CODE:
                raise Rejected(
                    f"the schedule {made!r} has no stored form: use interval, crontab or solar, or give its class one "
                    "with register_kind; nothing was changed"
                )
        except Rejected as error:
            raise Rejected(f"entry {quoted(name)}: {error}") from error
        entry = BeatEntry(
            *(name, task, form, tuple(args), dict(kwargs or {}), dict(options or {}), catch_up, catch_up_limit, source)
        )
        entry.check()
        entry.item()
        return entry

    # -- changing

    def add(self, entry: BeatEntry) -> StoredEntry:
        """Store a new entry, or bring a removed one back with this definition. Without `due_ms`: see `first_due_ms`.

        Raises:
            NotDone: there is an entry of this name that is not removed; nothing was changed.
            Rejected: the entry is malformed, or its schedule has no later time; nothing was changed.
        """
        now_ms = self.store.now_ms()
        fresh = replace(entry, added_ms=now_ms, changed_ms=now_ms)
        if not fresh.paused and not fresh.removed and fresh.due_ms is None:
            fresh = replace(fresh, due_ms=self.first_due_ms(fresh, now_ms))
        fresh.check()
        found = self._found(entry.name)
        if found is not None and (stored := read_entry(found)).entry is not None and stored.entry.removed:
            return self._changed(entry.name, lambda old, now: self._redefined(replace(old, removed=False), entry, now))
        if found is not None or self.store.schedule([fresh.item()]).accepted == 0:
            raise NotDone(f"there is an entry {quoted(entry.name)} already; nothing was changed; use `replace`")
        return self._stored(entry.name)

    def replace(self, entry: BeatEntry, *, if_version: int | None = None) -> StoredEntry:
        """Give an entry another definition. It keeps its counters but `failures`, and stays paused or removed.

        Args:
            entry: the new definition.
            if_version: the version that the entry must have (`StoredEntry.found.version`). Defaults to None: any.

        Raises:
            NotDone: there is no such entry, it cannot be read, or it has another version; nothing was changed.
            Rejected: the entry is malformed, or its schedule has no later time; nothing was changed.
        """
        entry.check()
        return self._changed(entry.name, lambda old, now_ms: self._redefined(old, entry, now_ms), if_version)

    def set_rhythm(self, name: str, last_ms: int, due_ms: int) -> StoredEntry:
        """Let an entry that has not run here go on from its last run in another scheduler.

        Args:
            name: the name of the entry.
            last_ms: the time of that run, in ms since 1970.
            due_ms: the next due time; it may have passed.

        Raises:
            NotDone: there is no such entry, or it has run already, is paused, removed or failed; nothing was changed.
        """

        def edit(old: BeatEntry, _: int) -> BeatEntry:
            if old.last_ms is not None or old.due_ms is None:
                raise NotDone(f"the entry {quoted(name)} has run already, or is paused or removed; nothing was changed")
            return replace(old, last_ms=last_ms, due_ms=due_ms)

        return self._changed(name, edit)

    def pause(self, name: str) -> StoredEntry:
        """Let an entry wait until `resume`. Occurrences until then do not count as missed. Idempotent.

        Raises:
            NotDone: there is no such entry, it cannot be read, or somebody removed it; nothing was changed.
        """
        return self._changed(name, lambda old, _: replace(_present(old), paused=True, due_ms=None))

    def resume(self, name: str) -> StoredEntry:
        """Let a paused, removed or failed entry run again, from its next due time, see `first_due_ms`. Idempotent.

        Raises:
            NotDone, Rejected: there is no such entry, it cannot be read, or see `first_due_ms`; nothing was changed.
        """

        def edit(old: BeatEntry, now_ms: int) -> BeatEntry:
            due_ms = old.due_ms if old.due_ms is not None and not old.failures else self.first_due_ms(old, now_ms)
            return replace(old, paused=False, removed=False, failures=0, problem="", due_ms=due_ms)

        return self._changed(name, edit)

    def remove(self, name: str, *, if_version: int | None = None) -> bool:
        """Remove an entry: it never runs again. Returns False if there was none.

        If the app's code still has an entry of this name, the store remembers that it was removed. Otherwise the next
        start of a worker would add it again. `resume` or `add` brings it back.

        Args:
            name: the name of the entry.
            if_version: the version that the entry must have. Defaults to None: any.

        Raises:
            NotDone: the entry has another version, or others change it again and again; nothing was changed.
        """
        stored = self.get(name)
        if stored is None:
            return False
        known = self._names_in_code()
        kept = stored.entry is not None and (stored.entry.source != "run-time" if known is None else name in known)
        if kept and stored.entry is not None:
            if not stored.entry.removed:
                self._changed(name, lambda old, _: replace(old, removed=True, paused=False, due_ms=None), if_version)
            return True
        verb = "x" if stored.found.state == "dead" else "c"
        (outcome,) = self.store.change([Alteration(stored.found.id, verb, "", if_version)])
        if outcome is Outcome.OTHER_VERSION:
            raise _other_version(name)
        return outcome in (Outcome.DONE, Outcome.CANCELLED)

    def run_now(self, name: str) -> str:
        """Send an extra occurrence now. The entry may be paused. Its next due time does not change.

        Returns:
            The id of the task, unless the entry's options name another one.

        Raises:
            NotDone: there is no such entry, it cannot be read, or somebody removed it; nothing was sent.
            Rejected: the message cannot be made here; nothing was sent.
        """
        entry = _present(self._readable(name)[0])
        arguments = None
        if entry.in_code:
            code = code_entry(self.wheel, name)
            if code is None:
                raise Rejected(
                    f"entry {quoted(name)} is only in code that this process does not have; nothing was sent"
                )
            arguments = code.arguments
        task_id = extra_id()
        try:
            items = occurrence_items(self.wheel, entry, self.store.now_ms(), task_id, arguments=arguments)
        except WheelSchedError:
            raise
        except Exception as error:  # the app's code, or a serializer
            raise Rejected(f"entry {quoted(name)}: its message cannot be made: {error!r}; nothing was sent") from error
        if items:
            self.store.schedule(items)
        return task_id

    def gone(self, known: Collection[str] | None = None) -> list[StoredEntry]:
        """Stored entries that came from code or file, and that this process does not have.

        They run until somebody removes them.

        Args:
            known: the names of the entries that this process has. Defaults to None: this method imports the app's tasks
                to learn the names. It returns no entry if the import fails.
        """
        if known is None:
            known = self._names_in_code()
        if known is None:
            return []
        return [
            stored
            for stored in self.all()
            if stored.entry is not None
            and stored.entry.source != "run-time"
            and not stored.entry.removed
            and stored.name not in known
        ]

    def _names_in_code(self) -> set[str] | None:
        """Import the app's tasks as a worker does, and return the names of the entries of code and file.

        Returns None if the import fails: then nobody knows what the code has.
        """
        try:
            self.wheel.app.loader.import_default_modules()
            return defined_names(self.wheel)
        except Exception as error:  # the app's own code
            logger.warning("celery.beat_code_unknown: the app's tasks cannot be imported here: %r", error)
            return None

    def first_due_ms(self, entry: BeatEntry, now_ms: int) -> int:
        """The first due time of an entry that is new or changed: after `now_ms`, or now for an interval that is over.

        If the schedule's class belongs to the app, the entry is due now: a process with this code then asks it.

        Raises:
            Rejected: the schedule is wrong or has no later time; nothing was changed.
        """
        if entry.schedule.get("kind") == CODE:
            return now_ms
        value = schedule_of(entry.schedule, self.wheel.app)
        return first_due_ms(value, now_ms, entry.last_ms) if is_plain(value) else now_ms

    def _redefined(self, old: BeatEntry, other: BeatEntry, now_ms: int) -> BeatEntry:
        new = old.redefined(other, now_ms)
        if new.paused or new.removed:
            return new
        same = (old.schedule, old.zone) == (new.schedule, new.zone) and old.due_ms is not None and not old.failures
        return new if same else replace(new, due_ms=self.first_due_ms(new, now_ms))

    def _stored(self, name: str) -> StoredEntry:
        stored = self.get(name)
        if stored is None:
            raise NotDone(f"the entry {quoted(name)} was removed by somebody else meanwhile")
        return stored

    def _changed(self, name: str, edit: Edit, if_version: int | None = None) -> StoredEntry:
        """Change an entry. Read it and call `edit` again when others have changed it meanwhile.

        `edit` gets the entry and the store's time, and returns the changed entry.
        """
        for _ in range(_ATTEMPTS):
            old, found = self._readable(name)
            if if_version is not None and found.version != if_version:
                raise _other_version(name)
            new = edit(old, self.store.now_ms())
            if new == old and found.state != "dead":
                return StoredEntry(old, found)
            new.check()
            item = new.item()
            verb = "q" if found.state == "dead" else "i"
            due = "" if item.due_ms is None else item.due_ms
            (outcome,) = self.store.change([Alteration(found.id, verb, due, found.version, item)])
            if outcome in (Outcome.DONE, Outcome.STORED, Outcome.HELD):
                return self._stored(name)
        raise NotDone(f"the entry {quoted(name)} is changed by others again and again; try once more")


def remove_present(entries: BeatEntries, name: str) -> None:
    """Remove an entry of a listing.

    Raises:
        NotDone: somebody else has removed it meanwhile.
    """
    if not entries.remove(name):
        raise NotDone("the entry is gone already")


def why_not_present(stored: StoredEntry) -> str:
    """Why an entry cannot be paused or run now, in words; "" when it can."""
    if stored.entry is None:
        return _UNREADABLE
    return _REMOVED if stored.entry.removed else ""


def _present(entry: BeatEntry) -> BeatEntry:
    if entry.removed:
        raise NotDone(f"the entry {quoted(entry.name)} {_REMOVED}; nothing was changed")
    return entry


def _other_version(name: str) -> NotDone:
    return NotDone(f"the entry {quoted(name)} was changed meanwhile; nothing was changed; read it again")
