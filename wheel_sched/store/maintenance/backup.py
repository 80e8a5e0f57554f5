"""Backup of a namespace as JSON Lines: a header, a line per item, attempt count and document, and a footer.

Invariants: a backup gets its name only when it is complete. Its footer has the counts and the SHA-256 of all lines
before it. An item in flight is written as due, at its original due time; a cancelled one is left out.

Services may run during a backup. A pass over the store can miss an item that changes its state at that time, so passes
are repeated until one finds nothing new, five at most. `exact` says whether the counters of items stood still during
the first pass; a new due time or body does not change them. Cost: each pass reads every item, and the ids stay in
memory. The calls block. Only one thread may use a backup.

A backup has the names of the paused topics. It has no history, known ids, log positions, writer fences, rate limits or
settings of fair topics.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from wheel_sched.store.attempt_counts import AttemptCount, ListCounts
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, STATES, Found, State
from wheel_sched.store.documents import MAX_PAGE, Documents
from wheel_sched.store.documents.operations import Document
from wheel_sched.store.maintenance.whole_file import whole_file

FORMAT = 1
_FOOTER_BYTES = 4_096
MAX_PASSES = 5  # an item that five passes miss changes its state faster than a pass can read it
_CLAIM = re.compile(r"(!?)\d+:(\d+):[r-]:")

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BackupFile:
    """The description of a backup file.

    Args:
        namespace: the namespace of the backup.
        shards: number of shards of this namespace.
        taken_ms: time of the backup by the store's clock.
        paused: topics that were paused.
        items: number of items in the file.
        attempt_counts: number of attempt counts in the file.
        documents: number of documents in the file: notes, operations, the audit log.
        exact: whether the counters of items stood still during the first pass.
        by_state: number of items by state.
    """

    namespace: str
    shards: int
    taken_ms: int
    paused: tuple[str, ...] = ()
    items: int = 0
    attempt_counts: int = 0
    exact: bool = True
    by_state: dict[str, int] = field(default_factory=dict)
    documents: int = 0


def write_backup(
    store: DelayStore,
    path: str | os.PathLike[str],
    *,
    namespace: str,
    replace: bool = False,
    progress: Progress | None = None,
) -> BackupFile:
    """Write the items, attempt counts and documents of a namespace to `path`. Only the owner of the file can read it.

    The file appears there only when it is complete.

    Args:
        store: the open store of the namespace.
        path: path of the file.
        namespace: name of the namespace, for the reader of the file.
        replace: whether an existing file may be replaced. An empty backup never replaces a backup with items. Defaults
            to False.
        progress: called with the number of items written so far.

    Raises:
        FileExistsError: a file exists that must not be replaced; it was not changed.
        StoreError, OSError: the store or the disk failed; `path` was not changed.
    """
    target = Path(path)
    with whole_file(target, replace=replace) as part:
        with part.open("wb") as file:
            written = _Writer(store, file, progress or (lambda _: None)).write(namespace)
            file.flush()
            os.fsync(file.fileno())
        if replace and not written.items and _items_in(target):
            text = "it holds a backup with items, and the namespace is empty; remove the file yourself if you want this"
            raise FileExistsError(errno.EEXIST, f"{text}; nothing was replaced", str(target))
    return written


def _items_in(path: Path) -> int:
    """The number of items in an existing backup according to its footer; 0 for any other file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _FOOTER_BYTES))
            footer = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
        return int(footer["items"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return 0


class _Writer:
    """One backup being written."""

    def __init__(self, store: DelayStore, file: BinaryIO, progress: Progress) -> None:
        self._store = store
        self._file = file
        self._digest = hashlib.sha256()
        self._progress = progress
        self._seen: set[str] = set()
        self._by_state: Counter[str] = Counter()

    def write(self, namespace: str) -> BackupFile:
        counts = self._store.counts()
        taken_ms, paused = counts.now_us // 1000, sorted(counts.paused)
        self._line(
            {
                "kind": "wheel-sched-backup",
                "format": FORMAT,
                "namespace": namespace,
                "shards": self._store.shards,
                "taken_ms": taken_ms,
                "paused": paused,
            }
        )
        self._pass()
        exact = _stood_still(counts, self._store.counts())
        for _ in range(0 if exact else MAX_PASSES - 1):
            if not self._pass():
                break
        attempt_counts, documents, by_state = self._attempt_counts(), self._documents(), dict(self._by_state)
        footer = {
            "kind": "footer",
            "items": len(self._seen),
            "attempt_counts": attempt_counts,
            "documents": documents,
            "exact": exact,
            "by_state": by_state,
        }
        self._file.write(_json({**footer, "sha256": self._digest.hexdigest()}))
        items, shards = len(self._seen), self._store.shards
        return BackupFile(namespace, shards, taken_ms, tuple(paused), items, attempt_counts, exact, by_state, documents)

    def _pass(self) -> int:
        """Write every item that is not written yet. Returns their number."""
        before = len(self._seen)
        for state in STATES:
            for found in all_items(self._store, state):
                if found.id in self._seen:
                    continue
                line = _item_line(found)
                if line is not None:
                    self._seen.add(found.id)
                    self._by_state[line["state"]] += 1
                    self._line(line)
                    if len(self._seen) % MAX_BATCH == 0:
                        self._progress(len(self._seen))
        self._progress(len(self._seen))
        return len(self._seen) - before

    def _attempt_counts(self) -> int:
        count = 0
        for shard in range(self._store.shards):
            for record in all_attempt_counts(self._store, shard):
                row = {"key": record.key, "attempts": record.attempts, "expiry_ms": record.expiry_ms}
                self._line({"kind": "attempt_count", **row})
                count += 1
        return count

    def _documents(self) -> int:
        """Write all documents, those of a collection in the order of their puts. Returns their number."""
        documents, count = Documents(self._store), 0
        for collection in documents.collections():
            for one in reversed(all_documents(documents, collection)):
                row = {"collection": collection, "id": one.id, "put_ms": one.put_ms, "until_ms": one.until_ms}
                self._line({"kind": "document", **row, "value": base64.b64encode(one.value).decode()})
                count += 1
        return count

    def _line(self, value: dict[str, Any]) -> None:
        raw = _json(value)
        self._digest.update(raw)
        self._file.write(raw)


def _stood_still(before: Counts, after: Counts) -> bool:
    return (before.now, before.ever, before.sizes) == (after.now, after.ever, after.sizes)


def all_items(store: DelayStore, state: State) -> Iterator[Found]:
    """All items of a state, page by page."""
    cursor = None
    while True:
        page = store.list_items(state, cursor=cursor, limit=MAX_BATCH)
        yield from page.found
        cursor = page.cursor
        if cursor is None:
            return


def all_attempt_counts(store: DelayStore, shard: int) -> Iterator[AttemptCount]:
    """All attempt counts of a shard, page by page."""
    start = 0
    while True:
        (page,) = store.execute([Call(shard, ListCounts(start))])
        if isinstance(page, Exception):
            raise page
        yield from page
        if len(page) < MAX_BATCH:
            return
        start += len(page)


def all_documents(documents: Documents, collection: str) -> list[Document]:
    """All documents of a collection, newest first."""
    page = documents.newest(collection, MAX_PAGE)
    found = page.documents
    while page.cursor is not None:
        page = documents.newest(collection, MAX_PAGE, page.cursor)
        found += page.documents
    return found


def claimed_due_ms(found: Found) -> int | None:
    """The due time of an item in flight; None when the item was cancelled and will not wait again."""
    claim = _CLAIM.match(found.reason)
    if claim is None:
        return found.score_ms
    return None if claim[1] else int(claim[2])


def _item_line(found: Found) -> dict[str, Any] | None:
    state, score_ms, reason = found.state, found.score_ms, found.reason
    if state == "leased":
        due_ms = claimed_due_ms(found)
        if due_ms is None:
            return None
        state, score_ms, reason = "due", due_ms, ""
    return {
        "kind": "item",
        "id": found.id,
        "state": state,
        "score_ms": score_ms,
        "version": found.version,
        "topic": found.topic,
        "body": base64.b64encode(found.body).decode(),
        "reason": reason,
        "refs": list(found.refs),
        "route": found.route,
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
