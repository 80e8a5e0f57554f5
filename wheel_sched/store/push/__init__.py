"""Server push: the server pushes due items to streams or lists exactly once, in the step that claims them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.store.core.call import Argument, Operation, Plan, head_of, new_token
from wheel_sched.store.core.claim import Claimed, check_lease, claimed_items
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.shard import MemoryShard


def push_due(
    plans: Plans,
    limit: int = 100,
    *,
    lease_ms: int = 30_000,
    shard: int = 0,
    prefix: str = "",
    create: bool = False,
    maxlen: int = 0,
    token: str | None = None,
) -> Plan[Pushed]:
    """Claim due items and push them in one step to streams or lists of the same server.

    Their bodies must be in push form (see `push_form`). An item that cannot be pushed stays claimed.

    `prefix` is put before the name of each target. `create`: a stream that does not exist is created. `maxlen`: the
    approximate length to which streams are cut (0 = not cut).
    """
    return plans.one(shard, PushDue(limit, lease_ms, prefix, create, maxlen, token=token or new_token()))


class ServerPush(Capability):
    """Pushes due items of a store to streams or lists of the same server."""

    push = blocking(push_due)


class AsyncServerPush(AsyncCapability):
    """The asyncio twin of `ServerPush`."""

    push = awaited(push_due)


@dataclass(slots=True)
class Refused:
    """An item that could not be pushed; it stays claimed until it is settled."""

    item: Claimed
    reason: str


@dataclass(slots=True)
class Pushed:
    """The result of one step: the due times of the pushed items, and the refused items, claimed under `number`.

    `script_us`: the processor time that the server needed for the script, in microseconds.
    """

    shard: int
    number: int
    now_us: int
    epoch: int
    due_head_ms: int | None
    lease_head_ms: int | None
    dues_ms: list[int]
    refused: list[Refused]
    script_us: int = field(compare=False)


@dataclass(slots=True)
class PushDue(Operation[Pushed]):
    """Claim due items and push them to streams or lists of the same server, in one step."""

    script = "publish"
    writes = False  # a crash loses both the push and the removal, or neither
    limit: int
    lease_ms: int
    prefix: str = ""
    create: bool = False
    maxlen: int = 0
    epoch: int | None = None
    lapse_cap: int = 0
    token: str = field(default_factory=new_token)

    def __post_init__(self) -> None:
        check_lease(self.lease_ms)

    def argv(self) -> list[Argument]:
        epoch = "" if self.epoch is None else self.epoch
        return [self.limit, self.lease_ms, epoch, self.lapse_cap, self.prefix, int(self.create), self.maxlen]

    def parse(self, reply: Any, shard: int) -> Pushed:
        number, now_us, epoch, due_head, lease_head, script_us, refusals = reply[:7]
        stop = 7 + 4 * refusals
        items = claimed_items(reply, 7, stop, 4)
        reasons = [reply[at].decode("utf-8", "replace") for at in range(10, stop, 4)]
        refused = [Refused(item, reason) for item, reason in zip(items, reasons, strict=True)]
        heads = head_of(due_head), head_of(lease_head)
        dues_ms = [int(due) for due in reply[stop].split()]
        return Pushed(shard, number, now_us, epoch, *heads, dues_ms, refused, script_us)

    def in_memory(self, shard: MemoryShard) -> Pushed:
        raise StoreError("one-script hand-over needs streams or lists on the same server: nothing was claimed")
