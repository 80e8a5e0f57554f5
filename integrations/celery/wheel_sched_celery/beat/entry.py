"""`BeatEntry`: one entry of the schedule, and its form in the store: `B1` and a JSON object.

kombu's JSON functions write and read it, so arguments may be dates, decimals or bytes. Reading executes no stored data.
An entry names a task and its arguments. Everybody who can write to the store can also send such a task, so entries are
not signed.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from kombu.utils.json import dumps, loads

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import MAX_DUE_MS, Found, Item, quoted
from wheel_sched_celery.beat.schedules import CODE, Form
from wheel_sched_celery.message.held_task import bounded
from wheel_sched_celery.settings import CATCH_UP, MOST_LATE

TOPIC: Final = "wheel-sched-beat"
"""The topic of all entries in the store. An app with entries in the store cannot have a queue of this name."""
REF: Final = "beat-entry"
"""The ref by which `DelayStore.find` finds all entries."""
MARK: Final = b"B1"
STATES: Final = ("waiting", "running", "paused", "removed", "failed", "unreadable")
SOURCES: Final = ("code", "file", "run-time")
LONGEST_NAME: Final = 200
_EARLIER: Final = 20  # an entry remembers so many of its earlier definitions


@dataclass(frozen=True, slots=True)
class BeatEntry:
    """One entry of the schedule. Times are in ms since 1970, by the store's clock.

    Args:
        name: unique in the app's store.
        task: the name of the task; it need not be registered.
        schedule: the stored form of the schedule, see `schedules`.
        args, kwargs: arguments of the task.
        options: further arguments of `apply_async` (queue, priority, expires, headers, ...).
        catch_up: what becomes of occurrences that were missed: "skip", "latest" or "all". Defaults to None: the app's
            setting.
        catch_up_limit: how many missed occurrences "all" sends at most, the last ones. Defaults to None: the app's
            setting.
        source: who set the entry: "code" (`beat_schedule`, `add_periodic_task`), "file" or "run-time".
        in_code: whether schedule or arguments are objects that only the code of the app has.
        zone: the time zone of the app, if the entry comes from code or file and its schedule depends on it; else "".
        paused: whether the entry waits for `resume`.
        removed: whether somebody removed the entry although the code still has it. It never runs.
        due_ms: the next due time; None while the entry is paused or removed, or is held after too many failures.
        last_ms: the due time of the last occurrence; None before the first. For a schedule class of the app: when the
            last occurrence was sent. For an imported entry: its last run in the other scheduler.
        added_ms: when the entry was added.
        changed_ms: when its definition was changed last.
        runs: how many occurrences were sent.
        missed: how many occurrences were missed and not sent. Of those before the sent ones, a tick counts up to 1,000.
        caught_up: how many occurrences were sent although a later one was already due.
        failures: how many ticks in a row have failed, because the message could not be made.
        problem: why the last of these ticks failed; "" when none did.
        earlier: fingerprints of earlier definitions, each with the time at which it was replaced.
    """

    name: str
    task: str
    schedule: Form
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    catch_up: str | None = None
    catch_up_limit: int | None = None
    source: str = "run-time"
    in_code: bool = False
    zone: str = ""
    paused: bool = False
    removed: bool = False
    due_ms: int | None = None
    last_ms: int | None = None
    added_ms: int = 0
    changed_ms: int = 0
    runs: int = 0
    missed: int = 0
    failures: int = 0
    problem: str = ""
    earlier: tuple[tuple[str, int], ...] = ()
    caught_up: int = 0

    @property
    def fingerprint(self) -> str:
        """A digest of the definition. Two entries with the same digest have the same definition."""
        parts = {name: getattr(self, name) for name in _DEFINITION}
        return hashlib.sha256(dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def redefined(self, other: BeatEntry, now_ms: int) -> BeatEntry:
        """This entry with the definition and source of `other`, and without failures. The rest of it stays."""
        earlier = [(mark, end_ms) for mark, end_ms in self.earlier if mark != other.fingerprint]
        if self.fingerprint != other.fingerprint:
            earlier.append((self.fingerprint, now_ms))
        changes = {name: getattr(other, name) for name in (*_DEFINITION, "source")}
        kept = tuple(earlier[-_EARLIER:])
        return replace(self, **changes, changed_ms=now_ms, earlier=kept, failures=0, problem="")

    def check(self) -> None:
        """Raise `Rejected` if the entry is malformed. `item` checks its arguments, `schedules` checks its schedule."""
        problem = _problem(self)
        if problem:
            raise Rejected(f"entry {quoted(self.name)}: {problem}; nothing was changed")

    def item(self) -> Item:
        """The item that stores the entry. It is held while the entry has no due time.

        Raises:
            Rejected: an argument is no value that JSON can hold; nothing was changed.
        """
        try:
            text: str = dumps({name: getattr(self, name) for name in _FIELDS})
        except (TypeError, ValueError, RecursionError) as error:
            raise Rejected(
                f"entry {quoted(self.name)}: its arguments or options cannot be stored: {error}; nothing was changed"
            ) from error
        return Item(item_id_of(self.name), self.due_ms, MARK + text.encode("utf-8", "surrogatepass"), TOPIC, (REF,))


_FIELDS: Final = tuple(spec.name for spec in fields(BeatEntry))
_DEFINITION: Final = ("task", "schedule", "args", "kwargs", "options", "catch_up", "catch_up_limit", "in_code", "zone")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as the store has it.

    Args:
        entry: the entry; None when it cannot be read.
        found: its item.
    """

    entry: BeatEntry | None
    found: Found

    @property
    def name(self) -> str:
        return self.found.id.removeprefix(_PREFIX) if self.entry is None else self.entry.name

    @property
    def state(self) -> str:
        """One of `STATES`. "running" means that a worker does a tick of the entry now."""
        if self.entry is None:
            return "unreadable"
        if self.entry.removed:
            return "removed"
        if self.entry.paused:
            return "paused"
        return {"due": "waiting", "leased": "running"}.get(self.found.state, "failed")

    @property
    def problem(self) -> str:
        """Why the entry failed; "" when it did not."""
        if self.entry is not None and self.entry.problem:
            return self.entry.problem
        return self.found.reason if self.state in ("failed", "unreadable") else ""


_PREFIX: Final = "beat:"


def item_id_of(name: str) -> str:
    """The id of the item of an entry."""
    return _PREFIX + bounded(name)


def is_entry(body: bytes) -> bool:
    """Whether the body of an item is that of an entry."""
    return body.startswith(MARK)


def decode_entry(body: bytes) -> BeatEntry:
    """Read an entry from the body of its item.

    Raises:
        Rejected: the body is no entry of this release; nothing was changed.
    """
    try:
        if not is_entry(body):
            raise ValueError("it does not begin with B1")
        values = {name: value for name, value in loads(body[len(MARK) :]).items() if name in _FIELDS}
        values["args"] = tuple(values["args"])
        values["earlier"] = tuple((str(mark), int(end_ms)) for mark, end_ms in values["earlier"])
        entry = BeatEntry(**values)
    except Exception as error:  # foreign bytes may make the decoders of kombu raise anything
        raise Rejected(
            f"the body ({len(body)} bytes) is no entry of beat: {error!r:.200}; nothing was changed"
        ) from error
    problem = _problem(entry)
    if problem:
        raise Rejected(f"the body ({len(body)} bytes) is no entry of beat: {problem}; nothing was changed")
    return entry


def read_entry(found: Found) -> StoredEntry:
    """The entry of an item. Its `entry` is None when the item cannot be read."""
    try:
        return StoredEntry(decode_entry(found.body), found)
    except Rejected:
        return StoredEntry(None, found)


def _problem(entry: BeatEntry) -> str | None:
    """Why an entry is malformed; None when it is not."""
    checks: tuple[tuple[str, bool, str], ...] = (
        ("name", _is_name(entry.name), f"one line of 1 to {LONGEST_NAME} characters"),
        ("task", _is_name(entry.task), f"the name of a task, of 1 to {LONGEST_NAME} characters"),
        ("schedule", isinstance(entry.schedule, Mapping), "a schedule"),
        ("args", isinstance(entry.args, tuple), "a list"),
        ("kwargs", _is_mapping(entry.kwargs), "an object whose names are texts"),
        ("options", _is_mapping(entry.options), "an object whose names are texts"),
        ("catch_up", entry.catch_up is None or entry.catch_up in CATCH_UP, '"skip", "latest" or "all"'),
        ("catch_up_limit", entry.catch_up_limit is None or _is_count(entry.catch_up_limit), f"1 to {MOST_LATE}"),
        ("source", entry.source in SOURCES, f"one of {', '.join(SOURCES)}"),
        ("problem", isinstance(entry.problem, str), "text"),
        ("zone", isinstance(entry.zone, str), "text"),
        ("earlier", isinstance(entry.earlier, tuple), "a list"),
        *((name, isinstance(getattr(entry, name), bool), "True or False") for name in ("paused", "removed", "in_code")),
        *((name, _is_time(getattr(entry, name)), "a time in ms") for name in ("due_ms", "last_ms")),
        *((name, _is_number(getattr(entry, name)), "a number") for name in _NUMBERS),
    )
    for name, right, expected in checks:
        if not right:
            return f"expected {name} to be {expected}, got: {quoted(getattr(entry, name))}"
    if not entry.in_code and entry.schedule.get("kind") == CODE:
        return "its schedule is only in code, but the entry is not"
    return None


_NUMBERS: Final = ("added_ms", "changed_ms", "runs", "missed", "failures", "caught_up")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_DUE_MS


def _is_time(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_LATE
