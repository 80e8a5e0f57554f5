"""`OperationBook`: the durable operations of a namespace, as documents.

Each change names the version that it has read. Of two changes at the same time, one is refused and has to read again.
The collection "open-operations" lists the operations that have not ended, so that a runner does not read the others.

The record of an operation is deleted 30 days after its last change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.moments import check_pace
from wheel_sched.management.operations.operation import DurableOperation, OperationStep, read_operation
from wheel_sched.store import DelayStore, Documents

MOST_OPEN = 100
KEPT_MS = 30 * 86_400_000
_OPERATIONS = "operations"
_OPEN = "open-operations"
_LARGEST = 8_192  # bytes of the arguments
_YOUNG_MS = 60_000  # the time that `create` has to store the operation after its entry in the list
_TRIES = 20


class OperationBook:
    """Stores and changes operations. Thread-safe.

    Args:
        store: the open store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._documents = Documents(store)

    def create(
        self,
        kind: str,
        arguments: Mapping[str, str],
        who: str,
        *,
        rate: float | None = None,
        spread_ms: int | None = None,
    ) -> DurableOperation:
        """Store a new operation. A runner counts its things next, and changes nothing before `confirm`.

        Args:
            kind: the name of its kind.
            arguments: for the kind.
            who: who asks for the operation.
            rate: about this many changes a second, above 0. Defaults to None: as fast as possible.
            spread_ms: spread the changes over this time instead. Defaults to None.

        Raises:
            Rejected: an argument is wrong; nothing was stored.
            NotDone: too many operations are open; nothing was stored.
        """
        check_operation_pace(rate, spread_ms)
        if len(json.dumps(dict(arguments))) > _LARGEST:
            raise Rejected(f"the arguments are longer than {_LARGEST:,} bytes: nothing was stored")
        if self._documents.count(_OPEN) >= MOST_OPEN:
            raise NotDone(f"{MOST_OPEN} operations are open: nothing was stored; confirm or cancel some of them first")
        new = DurableOperation(
            uuid4().hex[:12], kind, dict(arguments), who[:200], self._store.now_ms(), rate=rate, spread_ms=spread_ms
        )
        self._documents.put(_OPEN, new.id, b"", ttl_ms=KEPT_MS)
        version = self._documents.put(_OPERATIONS, new.id, new.as_json(), expect=0, ttl_ms=KEPT_MS)
        self._documents.put(_OPEN, new.id, b"", ttl_ms=KEPT_MS)  # a runner may have removed the entry
        return replace(new, version=version or 0)

    def get(self, operation_id: str) -> DurableOperation | None:
        """The operation with this id; None when there is none."""
        (found,) = self._documents.get(_OPERATIONS, [operation_id])
        return None if found is None else read_operation(found.value, found.version)

    def newest(self, limit: int = 50, behind: str | None = None) -> tuple[list[DurableOperation], str | None]:
        """The operations whose records changed last, and the cursor of the next page; None: there are no more."""
        page = self._documents.newest(_OPERATIONS, limit, behind)
        return [read_operation(one.value, one.version) for one in page.documents], page.cursor

    def open(self) -> list[DurableOperation]:
        """The operations that have not ended, at most 100, the oldest first."""
        listed = self._documents.newest(_OPEN, MOST_OPEN).documents
        found = self._documents.get(_OPERATIONS, [one.id for one in listed])
        now_ms, kept = self._store.now_ms(), []
        for entry, document in zip(listed, found, strict=True):
            operation = None if document is None else read_operation(document.value, document.version)
            if operation is not None and operation.is_open:
                kept.append(operation)
                if now_ms - entry.put_ms > KEPT_MS // 2:  # the entry must not end before the record
                    self._documents.put(_OPEN, entry.id, b"", expect=entry.version, ttl_ms=KEPT_MS)
            elif operation is not None or now_ms - entry.put_ms > _YOUNG_MS:
                self._documents.remove(_OPEN, entry.id, expect=entry.version)
        return sorted(kept, key=lambda one: (one.created_ms, one.id))

    def put(self, operation: DurableOperation) -> DurableOperation | None:
        """Store a changed record. None: somebody has changed it since it was read, and nothing was stored."""
        version = self._documents.put(
            _OPERATIONS, operation.id, operation.as_json(), expect=operation.version, ttl_ms=KEPT_MS
        )
        if version is None:
            return None
        if not operation.is_open:
            self._documents.remove(_OPEN, operation.id)
        return replace(operation, version=version)

    def confirm(self, operation_id: str, who: str, version: int) -> DurableOperation:
        """Let a counted operation run, if its record still has this version.

        Raises:
            NotDone: the operation is not ready, or has another version; nothing was changed.
        """
        found = self.found(operation_id)
        if found.version != version:
            raise NotDone(f"operation {operation_id} has changed meanwhile: nothing was started; look at it again")
        found.check_step("confirmed")
        rate = found.rate
        if found.spread_ms:
            rate = max(found.matched * 1000 / found.spread_ms, 1e-6)
        new = replace(
            found, state="running", confirmed_by=who[:200], started_ms=self._store.now_ms(), rate=rate, cursor=None
        )
        stored = self.put(new)
        if stored is None:
            raise NotDone(f"operation {operation_id} has changed meanwhile: nothing was started; look at it again")
        return stored

    def pause(self, operation_id: str) -> DurableOperation:
        """Stop a running operation before its next batch.

        Raises:
            NotDone: the operation does not run; nothing was changed.
        """
        return self._change(operation_id, "paused", lambda found: replace(found, state="paused"))

    def resume(self, operation_id: str) -> DurableOperation:
        """Let a paused operation continue.

        Raises:
            NotDone: the operation is not paused; nothing was changed.
        """
        return self._change(operation_id, "resumed", lambda found: replace(found, state="running"))

    def cancel(self, operation_id: str) -> DurableOperation:
        """End an operation before its next batch. What it has changed stays changed.

        Raises:
            NotDone: the operation has ended; nothing was changed.
        """
        now_ms = self._store.now_ms()
        return self._change(operation_id, "cancelled", lambda found: found.ended("cancelled", now_ms))

    def found(self, operation_id: str) -> DurableOperation:
        """The operation with this id.
        Raises:
            NotDone: no operation has this id.
        """
        found = self.get(operation_id)
        if found is None:
            raise NotDone(
                f"there is no operation {operation_id!r:.80}: nothing was changed; operations are kept for 30 days"
            )
        return found

    def _change(
        self,
        operation_id: str,
        step: OperationStep,
        change: Callable[[DurableOperation], DurableOperation],
    ) -> DurableOperation:
        for _ in range(_TRIES):
            found = self.found(operation_id)
            found.check_step(step)
            stored = self.put(change(found))
            if stored is not None:
                return stored
        raise NotDone(f"other programs keep changing operation {operation_id}: this change was not made; try again")


def check_operation_pace(rate: float | None, spread_ms: int | None) -> None:
    """Check how an operation spreads its changes, see `check_pace`.

    The operation has to end before its record is deleted.

    Raises:
        Rejected: both are given, or one is out of bounds.
    """
    check_pace(rate, spread_ms)
    if spread_ms is not None and not 0 < spread_ms <= KEPT_MS:
        raise Rejected(f"expected a spread above 0 and at most 30 days, got: {spread_ms!r} ms; nothing was stored")
