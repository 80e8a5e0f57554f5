"""Operations: every call on one shard as a value that says what to do and how to read the answer.

The caller builds operations, a backend performs them: Redis as a script call (`script`, `argv`, `parse`), memory by
running the twin of that script. So the synchronous and the asyncio face, and all implementations, share one
description of each call, and a test can look at it without any I/O.

    keeping     what is stored and how it is kept: open, schedule, change, pause, sweep, remember, restore
    releasing   what is due and what becomes of it: claim, push, settle, extend
    owning      one owner of a shard and what its claims came to; how far a source's log is taken in
    reading     looking without changing: window, get, list, counts, find, known
    logging     a bounded log of what happened: log, logged
"""

from wheel_sched.store.operations.call import Argument, Call, Operation, Plan, bounded_reason, new_token
from wheel_sched.store.operations.keeping import (
    SCHEMA,
    Alteration,
    Change,
    CloseEpoch,
    Mend,
    Open,
    Pause,
    Remember,
    ReportJump,
    Restore,
    Schedule,
    Sweep,
)
from wheel_sched.store.operations.logging import Log, Logged, ReadLog
from wheel_sched.store.operations.owning import Own, Positions, Resolve
from wheel_sched.store.operations.reading import (
    Bulk,
    BulkPage,
    Count,
    Cuts,
    Find,
    Get,
    IdPage,
    Inspect,
    Known,
    ListIds,
    Look,
    Scan,
    Scanned,
    counts_of,
)
from wheel_sched.store.operations.releasing import ClaimDue, Extend, PushDue, Settle

__all__ = [
    "SCHEMA",
    "Alteration",
    "Argument",
    "Bulk",
    "BulkPage",
    "Call",
    "Change",
    "ClaimDue",
    "CloseEpoch",
    "Count",
    "Cuts",
    "Extend",
    "Find",
    "Get",
    "IdPage",
    "Inspect",
    "Known",
    "ListIds",
    "Log",
    "Logged",
    "Look",
    "Mend",
    "Open",
    "Operation",
    "Own",
    "Pause",
    "Plan",
    "Positions",
    "PushDue",
    "ReadLog",
    "Remember",
    "ReportJump",
    "Resolve",
    "Restore",
    "Scan",
    "Scanned",
    "Schedule",
    "Settle",
    "Sweep",
    "bounded_reason",
    "counts_of",
    "new_token",
]
