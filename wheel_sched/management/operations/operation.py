"""The record of a durable operation, and its states. A thing is what an operation changes, such as a dead letter.

    counting ─► ready ─► running ◄─► paused        counting  things are counted, nothing is changed
        │         │         ├─► done    │          ready     the count is kept, and somebody has to confirm it
        └─────────┴─────────┴───────────┴─► cancelled
    any of the first four ─► failed                failed    it cannot go on; `error` says why

A record is JSON in a document. Each function here is pure and returns a new record. In every end state
`done` and the counts in `left` add up to `matched`, once the last batch is settled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from wheel_sched.errors import NotDone

OperationState = Literal["counting", "ready", "running", "paused", "done", "cancelled", "failed"]
OPEN: tuple[OperationState, ...] = ("counting", "ready", "running", "paused")
OperationStep = Literal["confirmed", "paused", "resumed", "cancelled"]
STEPS: Mapping[OperationStep, tuple[OperationState, ...]] = {
    "confirmed": ("ready",),
    "paused": ("running",),
    "resumed": ("paused",),
    "cancelled": OPEN,
}
"""What a person can do with an operation, and in which states."""

GONE = "gone meanwhile"
NOT_REACHED = "not reached"
UNKNOWN = "in the batch that failed"
_ERROR = 500  # characters


@dataclass(frozen=True, slots=True)
class OperationBatch:
    """Things that an operation has begun to change. A runner stores the batch before it changes the first of them.

    Args:
        number: its number within the operation, from 1.
        begun_ms: when the batch was stored, epoch ms of the store's clock.
        every_ms: the time between two of its things, in ms. Defaults to 0: all at once.
        entries: what the kind needs to change each thing, as JSON data. Defaults to none.
        left: how many things of the same step stay as they are, by reason. Defaults to none.
    """

    number: int
    begun_ms: int
    every_ms: float = 0.0
    entries: tuple[Any, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DurableOperation:
    """A durable operation. All times are epoch ms of the store's clock.

    Args:
        id: its id.
        kind: the name of its `OperationKind`.
        arguments: what the kind needs to know, as texts by name.
        who: who asked for it.
        created_ms: when the operation was created. It does not change things that came later.
        state: see the module.
        matched: how many things were counted. It does not change after the counting.
        done: how many were changed.
        left: how many stay as they are, by reason.
        samples: the first things in words.
        cursor: where the next step begins; None: at the start.
        at_end: whether all things have been looked at.
        rate: about this many things are changed a second. Defaults to None: as fast as possible.
        spread_ms: changes are spread over this time, instead of `rate`. Defaults to None.
        batch: the things that are being changed. Defaults to None.
        batches: how many batches have begun.
        next_ms: the earliest time at which the next batch may begin.
        owner: the runner that works on the operation. Defaults to "": nobody.
        lease_until_ms: from this time on, another runner may continue.
        confirmed_by: who confirmed the count.
        started_ms: when it was confirmed; 0: not yet.
        ended_ms: when it ended; 0: not yet.
        error: why it failed.
        version: of the document; 0: it is not stored.
    """

    id: str
    kind: str
    arguments: Mapping[str, str]
    who: str
    created_ms: int
    state: OperationState = "counting"
    matched: int = 0
    done: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    samples: tuple[str, ...] = ()
    cursor: str | None = None
    at_end: bool = False
    rate: float | None = None
    spread_ms: int | None = None
    batch: OperationBatch | None = None
    batches: int = 0
    next_ms: int = 0
    owner: str = ""
    lease_until_ms: int = 0
    confirmed_by: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    version: int = 0

    def check_step(self, step: OperationStep) -> None:
        """Check that a person can do this now.

        Raises:
            NotDone: the operation is in another state; nothing was changed.
        """
        states = STEPS[step]
        if self.state not in states:
            wait = "; wait until its things are counted" if self.state == "counting" and step == "confirmed" else ""
            raise NotDone(
                f"operation {self.id} is {self.state}: nothing was changed; it must be {' or '.join(states)} to be "
                f"{step}{wait}"
            )

    @property
    def handled(self) -> int:
        """How many things were changed, or stay as they are for a known reason."""
        return self.done + sum(self.left.values())

    @property
    def is_open(self) -> bool:
        """Whether the operation goes on, or can go on.

        An ended operation with a batch is open until the batch is settled.
        """
        return not self.ended_ms

    def needs_work(self, now_ms: int) -> bool:
        """Whether a runner has something to do now."""
        if self.batch is not None or self.state == "counting":
            return True
        return self.is_open and (self.state not in OPEN or (self.state == "running" and self.next_ms <= now_ms))

    def is_free(self, owner: str, now_ms: int) -> bool:
        """Whether this runner may work on the operation: it has the lease, or nobody has."""
        return self.owner in ("", owner) or self.lease_until_ms <= now_ms

    def with_counted(self, count: int, cursor: str | None, samples: tuple[str, ...]) -> DurableOperation:
        """The operation after one step of counting. It is ready when `cursor` is None."""
        state: OperationState = self.state if cursor is not None else "ready"
        return replace(self, matched=self.matched + count, cursor=cursor, state=state, samples=samples[:5])

    def with_settled(self, done: int, left: Mapping[str, int]) -> DurableOperation:
        """The operation after its batch: `done` things were changed; `left` counts the others by reason."""
        batch = self.batch
        added = Counter(self.left) + Counter(left) + Counter({} if batch is None else batch.left)
        return replace(self, done=self.done + done, left=dict(added), batch=None)

    def ended(self, state: OperationState, now_ms: int, error: str = "") -> DurableOperation:
        """The operation in an end state, with a reason for each unchanged thing. A batch that has begun stays."""
        if self.batch is not None:
            return replace(self, state=state, error=error[:_ERROR])
        counted = self.state not in ("counting",)
        rest = self.matched - self.handled if counted else 0
        left = Counter(self.left) + Counter({GONE if state == "done" else NOT_REACHED: max(rest, 0)})
        matched = self.matched if counted else 0
        return replace(
            self, state=state, matched=matched, left=dict(left), ended_ms=now_ms, owner="", error=error[:_ERROR]
        )

    def as_json(self) -> bytes:
        """The record as JSON, as the store keeps it. Without the version, which the store keeps beside it."""
        kept = asdict(self)
        del kept["version"]
        return json.dumps(kept).encode()

    def as_dict(self) -> dict[str, Any]:
        """The operation as data for JSON, without the fields that only runners need."""
        hidden = ("version", "batch", "cursor", "owner", "lease_until_ms", "next_ms", "at_end", "batches")
        kept = {name: value for name, value in asdict(self).items() if name not in hidden}
        return {**kept, "samples": list(self.samples), "handled": self.handled}


def read_operation(value: bytes, version: int) -> DurableOperation:
    """Read a record. Fields that this release does not know are left out."""
    kept = json.loads(value)
    known = {one.name for one in fields(DurableOperation)}
    batch = kept.pop("batch", None)
    kept = {name: found for name, found in kept.items() if name in known}
    kept["samples"] = tuple(kept.get("samples", ()))
    if batch is not None:
        in_batch = {one.name for one in fields(OperationBatch)}
        batch = {name: found for name, found in batch.items() if name in in_batch}
        batch = OperationBatch(**{**batch, "entries": tuple(batch["entries"])})
    return DurableOperation(**kept, batch=batch, version=version)
