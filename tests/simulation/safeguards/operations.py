"""Safeguards of durable operations on dead letters."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

KINDS = "retry_topic.management.dead_letter_operations"
OPERATIONS = "wheel_sched.management.operations"
SAFEGUARDS = [
    Safeguard(
        "a changed record of an operation is stored only over the version that was read",
        f"{OPERATIONS}.book:OperationBook.put",
        "expect=operation.version",
        "expect=None",
        "operations",
    ),
    Safeguard(
        "an operation changes a letter only in the version that it has chosen",
        f"{KINDS}:_LetterKind._change",
        "return self._store.run(",
        "[setattr(one, 'version', None) for _, one in alterations]; return self._store.run(",
        "operations",
    ),
    Safeguard(
        "a letter that dies again gets a version of its own",
        "wheel_sched.store.core.restore:Restore.in_memory",
        "found.version or next(fresh)",
        "found.version",
        "operations",
    ),
    Safeguard(
        "a batch is stored before its letters are changed",
        f"{OPERATIONS}.stepping:Stepper._run",
        "stored = self._book.put(begun)",
        "stored = begun",
        "operations",
    ),
    Safeguard(
        "a repeated batch has the token of the first call",
        f"{OPERATIONS}.stepping:Stepper._settle",
        'token = f"operation-{operation.id}-{batch.number}"',
        'token = f"operation-{operation.id}-{batch.number}-{now_ms}"',
        "operations",
    ),
    Safeguard(
        "an operation changes only letters that died before it was created",
        f"{KINDS}:_LetterKind._page",
        " if one.score_ms < until_ms",
        "",
        "operations",
    ),
    Safeguard(
        "a runner takes an operation over when the lease of another one has ended",
        f"{OPERATIONS}.operation:DurableOperation.is_free",
        " or self.lease_until_ms <= now_ms",
        "",
        "operations",
    ),
    Safeguard(
        "an operation changes nothing before it is confirmed",
        f"{OPERATIONS}.operation:DurableOperation.with_counted",
        '"ready"',
        '"running"',
        "operations",
    ),
    Safeguard(
        "an operation that was stopped during a batch stays stopped",
        f"{OPERATIONS}.stepping:Stepper._settle",
        "new = found.with_settled(performed.done, _complete(performed, batch))",
        'new = replace(found.with_settled(performed.done, _complete(performed, batch)), state="running")',
        "operations",
    ),
    Safeguard(
        "the counts of a batch are added once",
        f"{OPERATIONS}.stepping:Stepper._settle",
        "if found is None or found.batch is None or found.batch.number != batch.number:",
        "if found is None:",
        "operations",
    ),
    Safeguard(
        "a runner works only on operations that it holds or that are free",
        f"{OPERATIONS}.runner:OperationRunner.run_once",
        " or not operation.is_free(self.owner, now_ms)",
        "",
        "operations",
        hidden="versions and tokens keep the promises; the lease only saves work; few histories were tried",
    ),
]
