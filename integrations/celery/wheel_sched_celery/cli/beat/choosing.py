"""Which entries a command is for: by names and patterns, or all."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wheel_sched.errors import NotDone, Rejected
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import StoredEntry

if TYPE_CHECKING:
    import click


def beat_entries(ctx: click.Context) -> BeatEntries:
    """The entries of the app that `celery -A` has named."""
    return BeatEntries(ctx.obj.app)


def choose(entries: Sequence[StoredEntry], names: Sequence[str], everything: bool) -> list[StoredEntry]:
    """The entries that a command is for, in order of their names.

    Args:
        entries: all entries.
        names: names, or patterns with * and ?. An entry whose name is exactly this text counts before a pattern.
        everything: whether the command is for all of them.

    Raises:
        Rejected: neither or both are given.
        NotDone: a name or pattern has no entry; nothing was changed.
    """
    if everything and names:
        raise Rejected("Give names, or --all, not both.")
    if not everything and not names:
        raise Rejected("Which entries? Give names, patterns such as 'mail-*', or --all.")
    if everything:
        return list(entries)
    chosen: dict[str, StoredEntry] = {}
    for name in names:
        exact = [one for one in entries if one.name == name]
        found = exact or [one for one in entries if fnmatchcase(one.name, name)]
        if not found:
            raise NotDone(f"there is no entry {name!r}; nothing was changed; see `celery wheel beat list`")
        chosen.update((one.name, one) for one in found)
    return sorted(chosen.values(), key=lambda one: one.name)
