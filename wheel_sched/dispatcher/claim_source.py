"""The claim source: from which shards a dispatcher may claim, how long a claim is its own, and how a claim ends.

    SharedLeases   any dispatcher claims from any shard; a claim is its own until the lease ends
    OwnedShards    claims only in shards that this process owns, without a lease end: only the broker knows which claims
                   went out (`retry_topic.release.owned_shards`)

The dispatcher asks its claim source before it calls the store, and reports what the store answered. The dispatcher's
owner thread makes all calls, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import Claim, ClaimDue
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Extend, Settlement
from wheel_sched.store.core.window import Look, Window
from wheel_sched.store.push.operations import PushDue

logger = logger_of("wheel_sched.dispatcher")


class ClaimSource(Protocol):
    """How a dispatcher comes by its claims."""

    def look(self, shard: int) -> Call[Window]:
        """The call that reads what a shard releases next."""
        ...

    def looked(self, window: Window) -> None:
        """The store has answered a look."""
        ...

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """The call that claims up to `limit` due items of a shard; a look while the shard may not be claimed from.

        Args:
            shard: where items are due.
            limit: items at most.
            epoch: the shard's epoch as the dispatcher last read it; None: it has not read it.

        Raises:
            WheelSchedError: the source could not find out whether it may claim.
        """
        ...

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """The store has answered a claim."""
        ...

    def failed(self, call: Call[Any], error: Exception) -> None:
        """The store has refused a call, or has not answered it."""
        ...

    def next_look_ms(self, shard: int, due_head_ms: int | None, fly_head_ms: int | None, now_ms: int) -> int | None:
        """When the dispatcher is to claim from a shard next, in ms of the store's clock; None: nothing waits there.

        Args:
            shard: which one.
            due_head_ms: the earliest due in it, as the store has just answered.
            fly_head_ms: the earliest lease end in it.
            now_ms: the store's time.
        """
        ...

    def extend(self, batch: Batch) -> bool:
        """Keep a batch this dispatcher's for another lease, counted from now; False: it is not known to be ours."""
        ...

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """Of a batch's settlements those that the store still has to perform.

        None: this process does not know what became of the claim. The claim stays open, and the dispatcher forgets it.
        """
        ...


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Where the server itself pushes due items, when target and store share it (and in a cluster, a slot).

    Args:
        prefix: put in front of every target name. Defaults to "".
        create: whether streams that do not exist are created; otherwise the item is refused. Defaults to False.
        maxlen: approximate length streams are trimmed to, 0 = never. Defaults to 0.
    """

    prefix: str = ""
    create: bool = False
    maxlen: int = 0


class SharedLeases:
    """The claim source of dispatchers that race: whoever claims first has the batch until its lease ends.

    Args:
        store: an open delay store.
        config: the dispatcher's settings.
        push: when given, a claim also pushes what it claims. Defaults to None.
    """

    def __init__(self, store: DelayStore, config: DispatcherConfig, push: PushTarget | None = None) -> None:
        self._store = store
        self._config = config
        self._push = push

    def look(self, shard: int) -> Call[Window]:
        """See `ClaimSource`."""
        return Call(shard, Look(0, 0))

    def looked(self, window: Window) -> None:
        """See `ClaimSource`: every shard may be claimed from."""

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """See `ClaimSource`."""
        lease_ms, lapse_cap, push = self._config.lease_ms, self._config.lapse_cap, self._push
        if push is None:
            return Call(shard, ClaimDue(limit, lease_ms, None, epoch, lapse_cap))
        return Call(shard, PushDue(limit, lease_ms, push.prefix, push.create, push.maxlen, epoch, lapse_cap))

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """See `ClaimSource`: the store keeps the lease."""

    def failed(self, call: Call[Any], error: Exception) -> None:
        """See `ClaimSource`: a claim that was made all the same comes back when its lease ends."""

    def next_look_ms(self, shard: int, due_head_ms: int | None, fly_head_ms: int | None, now_ms: int) -> int | None:
        """See `ClaimSource`: the next due, or the next lease end, for its items are due again then."""
        if due_head_ms is None or fly_head_ms is None:
            return fly_head_ms if due_head_ms is None else due_head_ms
        return min(due_head_ms, fly_head_ms)

    def extend(self, batch: Batch) -> bool:
        """See `ClaimSource`."""
        operation = Extend(batch.claim.number, [item.id for item in batch.items], self._config.lease_ms)
        (answer,) = self._store.execute([Call(batch.claim.shard, operation)])
        if isinstance(answer, Exception):
            logger.warning("dispatcher.lease_not_extended: %s", answer)
            return False
        return Outcome.STALE not in answer.outcomes

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """See `ClaimSource`: all of them."""
        return settlements
