"""One entry as data for JSON, and as the lines that people read."""

from __future__ import annotations

from typing import Any

from wheel_sched.management.wording import instant, relative, when
from wheel_sched_celery.beat.entry import StoredEntry
from wheel_sched_celery.beat.schedules import in_words


def as_dict(stored: StoredEntry, *, gone: bool = False) -> dict[str, Any]:
    """An entry as data for JSON. Times are in ms since 1970.

    Args:
        stored: the entry.
        gone: whether the entry came from code, and this process's code does not have it. Defaults to False.
    """
    entry = stored.entry
    found: dict[str, Any] = {"name": stored.name, "state": stored.state, "problem": stored.problem, "gone": gone}
    if entry is None:
        return found
    return found | {
        "task": entry.task,
        "schedule": in_words(entry.schedule),
        "form": dict(entry.schedule),
        "args": _plain(entry.args),
        "kwargs": _plain(entry.kwargs),
        "options": _plain(entry.options),
        "catch_up": entry.catch_up,
        "catch_up_limit": entry.catch_up_limit,
        "source": entry.source,
        "due_ms": entry.due_ms,
        "last_ms": entry.last_ms,
        "added_ms": entry.added_ms,
        "changed_ms": entry.changed_ms,
        "runs": entry.runs,
        "missed": entry.missed,
    }


def entries_of(count: int) -> str:
    """A number of entries in words: `1 entry`, `2,000 entries`."""
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _plain(value: Any) -> Any:
    """A value as JSON has it; a date or a decimal becomes text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def row_of(stored: StoredEntry, now_ms: int, *, gone: bool = False) -> tuple[str, ...]:
    """The cells of one row of a listing, in the order of `HEAD`."""
    entry = stored.entry
    state = f"{stored.state}, gone from the code" if gone else stored.state
    if entry is None:
        return (stored.name, "(cannot be read)", "", "", "", state, "", "")
    return (
        stored.name,
        entry.task,
        in_words(entry.schedule),
        "-" if entry.due_ms is None else relative(entry.due_ms, now_ms),
        "never" if entry.last_ms is None else instant(entry.last_ms),
        state,
        entry.source,
        catch_up_of(stored),
    )


HEAD = ("name", "task", "schedule", "next", "last", "state", "source", "catch-up")


def catch_up_of(stored: StoredEntry) -> str:
    """The catch-up policy of an entry in words; "-" when it is that of the app."""
    entry = stored.entry
    if entry is None or entry.catch_up is None:
        return "-"
    return entry.catch_up if entry.catch_up_limit is None else f"{entry.catch_up}, {entry.catch_up_limit} at most"


def lines_of(stored: StoredEntry, now_ms: int, *, gone: bool = False) -> list[tuple[str, str]]:
    """Everything about an entry, as pairs of label and text."""
    entry = stored.entry
    lines = [("name", stored.name), ("state", stored.state)]
    if gone:
        lines.append(("", "the code of this process does not have it any more; `remove` ends it"))
    if stored.problem:
        lines.append(("problem", stored.problem))
    if entry is None:
        return [*lines, ("", "it cannot be read here; `remove` removes it")]
    lines += [
        ("task", entry.task),
        ("schedule", in_words(entry.schedule)),
        ("next", "-" if entry.due_ms is None else when(entry.due_ms, now_ms)),
        ("last", "never" if entry.last_ms is None else when(entry.last_ms, now_ms)),
        ("source", entry.source),
        ("catch-up", catch_up_of(stored)),
        ("args", repr(list(entry.args))),
        ("kwargs", repr(dict(entry.kwargs))),
        ("options", repr(dict(entry.options))),
        ("runs", f"{entry.runs:,} sent, {entry.missed:,} missed"),
        ("added", when(entry.added_ms, now_ms)),
        ("changed", when(entry.changed_ms, now_ms)),
    ]
    return lines
