"""Restore a backup after a check of its footer.

Invariants: a file with a wrong footer is never restored. Items are put back as `backup` wrote them. An interrupted
restore can be resumed, because existing ids are not changed. Counters of earlier events start from 0. Cost: two reads
of the file, and steps of at most 500 items or 8 MiB. The calls block.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.store.attempt_counts import AttemptCounts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import MAX_BATCH, STATES, Found
from wheel_sched.store.documents import Documents
from wheel_sched.store.documents.operations import Document
from wheel_sched.store.maintenance.backup import FORMAT, BackupFile, Progress

_BATCH_BYTES = 8 * 1024 * 1024  # restored in one step: more would block the server


class BadBackup(StoreError):
    """The file is no backup that this release reads, or it is incomplete or was changed: nothing was restored."""


class NamespaceNotEmpty(StoreError):
    """A backup can only be restored into an empty namespace: nothing was restored."""


def verify_backup(path: str | os.PathLike[str]) -> BackupFile:
    """Read a whole backup and check its footer.

    Raises:
        BadBackup: the file is no complete backup of this format; the text says what is wrong.
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    kinds: Counter[str] = Counter()
    header: dict[str, Any] | None = None
    with Path(path).open("rb") as file:
        for raw in file:
            line = _parsed(raw, path)
            kind = line.get("kind")
            if header is None:
                if kind != "wheel-sched-backup":
                    raise BadBackup(f"{path} is not a backup of wheel-sched; nothing was restored")
                if line.get("format") != FORMAT:
                    raise BadBackup(
                        f"{path} has format {line.get('format')!r}, this release reads {FORMAT}; nothing was restored"
                    )
                header = line
            elif kind == "footer":
                _check_footer(line, kinds, digest.hexdigest(), path)
                if file.read(1):
                    raise BadBackup(f"{path} has lines behind its footer; nothing was restored")
                return _described(header, line)
            digest.update(raw)
            kinds[str(kind)] += 1
    raise BadBackup(f"{path} ends without a footer: it was cut off; nothing was restored")


def _parsed(raw: bytes, path: object) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise BadBackup(f"{path} has a line that is no JSON ({error}); nothing was restored") from error
    except RecursionError:
        raise BadBackup(f"{path} has a line that is nested too deeply; nothing was restored") from None
    if not isinstance(line, dict):
        raise BadBackup(f"{path} is not a backup of wheel-sched; nothing was restored")
    return line


def _check_footer(footer: dict[str, Any], kinds: Counter[str], digest: str, path: object) -> None:
    found = {"items": kinds["item"], "attempt_counts": kinds["attempt_count"], "documents": kinds["document"]}
    told = {"documents": 0, **footer}  # an older release writes no documents
    wrong = [name for name, value in {**found, "sha256": digest}.items() if told.get(name) != value]
    if wrong:
        raise BadBackup(f"{path} does not fit its footer ({', '.join(wrong)}): it was changed; nothing was restored")


def _described(header: dict[str, Any], footer: dict[str, Any]) -> BackupFile:
    return BackupFile(
        header["namespace"],
        header["shards"],
        header["taken_ms"],
        tuple(header["paused"]),
        footer["items"],
        footer["attempt_counts"],
        footer["exact"],
        footer["by_state"],
        footer.get("documents", 0),
    )


def restore_backup(
    store: DelayStore, path: str | os.PathLike[str], *, resume: bool = False, progress: Progress | None = None
) -> int:
    """Put a backup into an empty namespace, with any number of shards. Returns how many items were put into it.

    Args:
        store: the open store of the namespace.
        path: a file that `write_backup` wrote.
        resume: continue an interrupted restore: the namespace need not be empty, and existing ids are not changed.
            Defaults to False.
        progress: called with the number of items read so far.

    Raises:
        BadBackup: see `verify_backup`; nothing was restored.
        NamespaceNotEmpty: the namespace has items, and `resume` is False; nothing was restored.
        StoreError, OSError: the store or the disk failed; continue with `resume`.
    """
    described = verify_backup(path)
    if not resume:
        there = {state: store.counts().sizes[state] for state in STATES}
        if any(there.values()):
            text = ", ".join(f"{count} {state}" for state, count in there.items() if count)
            raise NamespaceNotEmpty(
                f"the namespace is not empty ({text}); nothing was restored; give another namespace, or continue an "
                "interrupted restore (--resume)"
            )
    for topic in described.paused:
        store.pause(topic)
    put = seen = 0
    batch: list[Found] = []
    size = 0
    counts: list[tuple[str, int, int]] = []
    documents: dict[str, list[Document]] = {}
    with Path(path).open("rb") as file:
        for raw in file:
            line = json.loads(raw)
            if line["kind"] == "item":
                batch.append(_found(line))
                size += len(batch[-1].body)
                seen += 1
            elif line["kind"] == "attempt_count":
                counts.append((line["key"], line["attempts"], line["expiry_ms"]))
            elif line["kind"] == "document":
                documents.setdefault(line["collection"], []).append(_document(line))
            if len(batch) == MAX_BATCH or size > _BATCH_BYTES:
                put += store.restore(batch)
                batch, size = [], 0
                if progress is not None:
                    progress(seen)
            if len(counts) == MAX_BATCH:
                AttemptCounts(store).raise_to(counts)
                counts = []
    put += store.restore(batch)
    if counts:
        AttemptCounts(store).raise_to(counts)
    for collection, restored in documents.items():
        Documents(store).restore(collection, restored)
    if progress is not None:
        progress(seen)
    return put


def _document(line: dict[str, Any]) -> Document:
    return Document(line["id"], 0, line["put_ms"], base64.b64decode(line["value"]), line["until_ms"])


def _found(line: dict[str, Any]) -> Found:
    return Found(
        line["id"],
        line["state"],
        line["score_ms"],
        line["version"],
        line["topic"],
        base64.b64decode(line["body"]),
        line["reason"],
        tuple(line["refs"]),
        line["route"],
    )
