"""Brings the entries of code and file into the store.

Every process that serves beat compares its entries with those in the store when it starts. During a rolling deployment
processes with old and new code run side by side. They must not undo each other's work:

- A definition that the store has never seen is newer. It replaces the stored one.
- A definition that was replaced within the last hour is older. It does not come back by itself: a worker with old code
  may restart in the middle of a deployment. After that hour it counts as a deliberate return to old code.
  `sync(force=True)` returns to it at once.
- A definition that somebody replaced at run time never comes back by itself. Another definition that is new in the code
  replaces the one set at run time.
- An entry that somebody removed at run time stays removed, until `resume`, `add` or `sync(force=True)`.
- An entry that came from code runs on when the code of this process does not have it, and is reported. This process
  cannot know whether somebody deleted the entry, or a part of the app is not imported here. People notice a run too
  many, but not a missing run. `BeatEntries.remove` ends the entry. If its schedule or arguments are only in code, only
  processes with this code can run it; if none does so, it fails after some attempts.
- A worker of an older release may have made an entry a dead letter, because it could not read the entry. Such an entry
  comes back, wherever it was defined.

Threads: any thread may call `sync`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wheel_sched.errors import NotDone, Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.items import quoted
from wheel_sched_celery.beat.code_entries import defined, defined_names
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import BeatEntry

logger = logger_of("wheel_sched.celery")

OLDER_MS: Final = 3_600_000  # a definition that was replaced within this time comes from older code
UNREAD: Final = ("neither the neutral form nor the push form", "no entry of beat")
"""A dead letter's reason has one of these parts when a worker could not read the entry."""


@dataclass(slots=True)
class Synced:
    """The result of `sync`: the names of entries.

    Args:
        added: new in the store.
        changed: replaced by the definition in code.
        resumed: failed before, and are only in code, or an older release could not read them; with `force` also those
            that were removed and whose definition is the same.
        older: left as they are; the store has a newer definition than this process's code, or one set at run time.
        removed: in the code, but somebody removed them at run time.
        gone: in the store as entries of code, but not in the code of this process.
        problems: one line for each entry that is wrong; it was left out.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def sync(entries: BeatEntries, *, force: bool = False) -> Synced:
    """Bring the entries of code and file into the store, and log what was changed; see the top of this module.

    Args:
        entries: the entries in the store.
        force: whether this process's definitions replace all others in the store. Newer ones are replaced too, and
            removed entries come back. Defaults to False.

    Raises:
        StoreError: the store is away. Call again: the next call does the rest.
    """
    mine, problems = defined(entries.wheel)
    synced = Synced(problems=problems)
    for name, entry in sorted(mine.items()):
        try:
            _sync_one(entries, name, entry, synced, force)
        except (NotDone, Rejected) as error:
            synced.problems.append(f"entry {quoted(name)}: {error}")
    _bring_back(entries, synced)
    synced.gone = [stored.name for stored in entries.gone({*mine, *defined_names(entries.wheel)})]
    _log(synced)
    return synced


def _sync_one(entries: BeatEntries, name: str, entry: BeatEntry, synced: Synced, force: bool) -> None:
    stored = entries.get(name)
    if stored is None:
        try:
            entries.add(entry)
            synced.added.append(name)
            return
        except NotDone:  # another process added it meanwhile
            stored = entries.get(name)
    if stored is None or stored.entry is None:
        synced.problems.append(f"entry {quoted(name)} in the store cannot be read here; it was left as it is")
        return
    old = stored.entry
    if old.removed and not force:
        synced.removed.append(name)
    elif old.fingerprint == entry.fingerprint:
        if old.removed or (stored.state == "failed" and (old.in_code or stored.found.state == "dead")):
            entries.resume(name)
            synced.resumed.append(name)
    elif force or not _is_older(entries, old, entry):
        if old.removed:
            entries.resume(name)
        entries.replace(entry)
        synced.changed.append(name)
    else:
        synced.older.append(name)


def _bring_back(entries: BeatEntries, synced: Synced) -> None:
    """Bring back the entries that are dead letters because a worker of an older release could not read them."""
    for stored in entries.all():
        unread = stored.found.state == "dead" and any(part in stored.found.reason for part in UNREAD)
        if not unread or stored.entry is None or stored.name in synced.removed:
            continue
        try:
            entries.resume(stored.name)
            synced.resumed.append(stored.name)
        except (NotDone, Rejected) as error:
            synced.problems.append(f"entry {quoted(stored.name)}: {error}")


def _is_older(entries: BeatEntries, old: BeatEntry, entry: BeatEntry) -> bool:
    """Whether a newer definition, or one set at run time, has replaced that of `entry`."""
    ends_ms = [end_ms for mark, end_ms in old.earlier if mark == entry.fingerprint]
    if not ends_ms:
        return False
    return old.source == "run-time" or entries.store.now_ms() - max(ends_ms) < OLDER_MS


def _log(synced: Synced) -> None:
    for problem in synced.problems:
        logger.error("celery.beat_wrong: %.600s", problem)
    for name in synced.added:
        logger.info("celery.beat_added: entry '%.200s'", name)
    for name in synced.resumed:
        logger.info("celery.beat_resumed: entry '%.200s' runs again", name)
    for name in synced.changed:
        logger.info("celery.beat_changed: entry '%.200s' has the definition of this process's code now", name)
    for name in synced.older:
        logger.warning(
            "celery.beat_older: entry '%.200s' in the store is newer than in this process's code, or was set at run "
            "time; it was left as it is",
            name,
        )
    for name in synced.removed:
        logger.warning("celery.beat_removed: entry '%.200s' is in the code, but was removed at run time", name)
    for name in synced.gone:
        logger.warning(
            "celery.beat_gone: entry '%.200s' is not in this process's code any more; it runs until it is removed",
            name,
        )
