"""One step of a durable operation: count some of its things, or change one batch of them.

A runner stores a batch, with the ids and versions of its things, before it changes them. When the runner dies, its
lease ends, and another runner performs the same batch again under the same token. For a minute the store answers with
what the first call did, and a lease is shorter than a minute. So the counts are exact, and no thing is changed twice.

If no runner continues within that minute, the kind has to find out which things of this batch were changed. Each kind
says in its own docstring how sure it can be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from wheel_sched.management.operations.book import OperationBook
from wheel_sched.management.operations.kind import OperationKind, PerformedBatch
from wheel_sched.management.operations.operation import (
    NOT_REACHED,
    UNKNOWN,
    DurableOperation,
    OperationBatch,
)
from wheel_sched.store import DelayStore

LEASE_MS = 20_000
REMEMBERED_MS = 45_000  # the store keeps an answer for a minute; the rest is for the call itself
BATCH = 200
_PACED_S = 1.0  # a paced batch has as many things as the rate allows in this time
_LARGEST = 40_000  # bytes of a batch in the record; a document may have 64 KiB
_TRIES = 20


class Stepper:
    """Takes steps of operations. Thread-safe.

    Args:
        store: holds the operations.
        owner: the name of the runner, for its leases.
        lease_ms: the time after which another runner takes an operation over, unless this one renews its lease.
            Defaults to 20 s.
    """

    def __init__(self, store: DelayStore, owner: str, lease_ms: int = LEASE_MS) -> None:
        self._store = store
        self._book = OperationBook(store)
        self._owner = owner
        self._lease_ms = lease_ms

    def step(self, operation: DurableOperation, kind: OperationKind) -> DurableOperation | None:
        """Take one step.

        Returns:
            The operation if this step has ended it, else None.

        Raises:
            StoreError, BrokerError: a server did not answer. The step can be taken again.
        """
        if operation.batch is not None:
            return self._settle(operation, operation.batch, kind)
        if operation.state == "counting":
            return self._count(operation, kind)
        if operation.state == "running":
            return self._run(operation, kind)
        return self._book.put(operation.ended(operation.state, self._store.now_ms()))

    def fail(self, operation_id: str, error: Exception) -> DurableOperation | None:
        """End an operation that cannot go on. Returns it, or None if somebody else has ended it."""
        for _ in range(_TRIES):
            found = self._book.get(operation_id)
            if found is None or not found.is_open:
                return None
            now_ms, words = self._store.now_ms(), f"{type(error).__name__}: {error}"
            if found.batch is not None:
                found = found.with_settled(0, {UNKNOWN: len(found.batch.entries)})
            stored = self._book.put(found.ended("failed", now_ms, words))
            if stored is not None:
                return stored
        return None

    def _held(self, operation: DurableOperation, now_ms: int) -> DurableOperation:
        return replace(operation, owner=self._owner, lease_until_ms=now_ms + self._lease_ms)

    def _count(self, operation: DurableOperation, kind: OperationKind) -> DurableOperation | None:
        held = self._book.put(self._held(operation, self._store.now_ms()))
        if held is None:
            return None
        counted = kind.count(held.arguments, held.created_ms + 1, held.cursor)
        samples = (*held.samples, *counted.samples)
        new, now_ms = held.with_counted(counted.number, counted.cursor, samples), self._store.now_ms()
        if new.state == "ready":
            new = released(new) if new.matched else new.ended("done", now_ms)
        else:
            new = self._held(new, now_ms)
        stored = self._book.put(new)
        return None if stored is None or stored.is_open else stored

    def _run(self, operation: DurableOperation, kind: OperationKind) -> DurableOperation | None:
        now_ms = self._store.now_ms()
        if operation.at_end or operation.handled >= operation.matched:
            return self._book.put(operation.ended("done", now_ms))
        held = self._book.put(self._held(operation, now_ms))
        if held is None:
            return None
        budget = min(batch_size(held.rate), held.matched - held.handled)
        plan = kind.plan(held.arguments, held.created_ms + 1, held.cursor, budget)
        while len(json.dumps(plan.entries)) > _LARGEST and budget > 1:  # long ids: the batch gets fewer things
            budget = max(1, budget // 4)
            plan = kind.plan(held.arguments, held.created_ms + 1, held.cursor, budget)
        now_ms = self._store.now_ms()
        every_ms = 1000 / held.rate if held.rate else 0.0
        batch = OperationBatch(held.batches + 1, now_ms, every_ms, plan.entries, plan.left)
        next_ms = max(now_ms, held.next_ms) + math.ceil(len(plan.entries) * every_ms)
        begun = replace(
            self._held(held, now_ms),
            cursor=plan.cursor,
            at_end=plan.cursor is None,
            batch=batch,
            batches=batch.number,
            next_ms=next_ms,
        )
        if not plan.entries:
            self._book.put(begun.with_settled(0, {}))
            return None
        stored = self._book.put(begun)
        return None if stored is None else self._settle(stored, batch, kind)

    def _settle(
        self, operation: DurableOperation, batch: OperationBatch, kind: OperationKind
    ) -> DurableOperation | None:
        """Perform the batch that the operation's record holds, and store its result. Returns what `step` returns.

        Others may change the record meanwhile, for example to cancel the operation. So this adds the counts to the
        newest record. The same write removes the batch, so the counts are added once.
        """
        now_ms = self._store.now_ms()
        if operation.owner != self._owner or operation.lease_until_ms <= now_ms:
            held = self._book.put(self._held(operation, now_ms))
            if held is None:
                return None
            operation = held
        token = f"operation-{operation.id}-{batch.number}"
        performed = kind.perform(operation.arguments, batch, token, remembered=now_ms - batch.begun_ms <= REMEMBERED_MS)
        found: DurableOperation | None = operation
        for _ in range(_TRIES):
            if found is None or found.batch is None or found.batch.number != batch.number:
                return None
            new = found.with_settled(performed.done, _complete(performed, batch))
            now_ms = self._store.now_ms()
            if new.state == "running":
                new = self._held(new, now_ms)
            else:
                new = released(new) if new.state == "paused" else new.ended(new.state, now_ms)
            stored = self._book.put(new)
            if stored is not None:
                return None if stored.is_open else stored
            found = self._book.get(operation.id)
        return None


def released(operation: DurableOperation) -> DurableOperation:
    """The operation without an owner, so that any runner may continue at once."""
    return replace(operation, owner="", lease_until_ms=0)


def batch_size(rate: float | None) -> int:
    """How many things the next batch may have at this rate."""
    return BATCH if rate is None else max(1, min(BATCH, int(rate * _PACED_S)))


def _complete(performed: PerformedBatch, batch: OperationBatch) -> Mapping[str, int]:
    """The counts of unchanged things by reason, completed: with the changed things they add up to the batch."""
    missing = len(batch.entries) - performed.done - sum(performed.left.values())
    return {**performed.left, NOT_REACHED: missing} if missing > 0 else performed.left
