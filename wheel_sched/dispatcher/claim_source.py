"""The claim source: from which shards a dispatcher may claim, how long it owns a claim, and how a claim ends.

    SharedLeases   any dispatcher claims from any shard, and owns a claim until the lease ends
    OwnedShards    a dispatcher claims only from shards that this process owns; the claims have no lease end, because
                   only the broker knows which claims were published (`retry_topic.release.transactions`)

The dispatcher asks its claim source before it calls the store, and reports the store's answers to it. The dispatcher's
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
from wheel_sched.store.core.counts import Look, Window
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Extend, Settlement
from wheel_sched.store.push import PushDue

logger = logger_of("wheel_sched.dispatcher")


class ClaimSource(Protocol):
    """Makes the calls with which a dispatcher claims, and receives the store's answers to these calls."""

    def look(self, shard: int) -> Call[Window]:
        """The call that reads when the next items of a shard are due."""
        ...

    def looked(self, window: Window) -> None:
        """Handle the store's answer to the call of `look`."""
        ...

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """The call that claims up to `limit` due items of a shard; while this process may not claim, the `look` call.

        Args:
            shard: the number of a shard in which items are due.
            limit: greatest number of items.
            epoch: the shard's epoch as the dispatcher last read it; None: not read yet.

        Raises:
            WheelSchedError: the source could not find out whether it may claim.
        """
        ...

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """Handle the store's answer to a claim."""
        ...

    def failed(self, call: Call[Any], error: Exception) -> None:
        """Handle a call that the store has refused or has not answered."""
        ...

    def next_look_ms(self, shard: int, due_head_ms: int | None, lease_head_ms: int | None, now_ms: int) -> int | None:
        """When the dispatcher has to claim from a shard next, in ms of the store's clock; None: no item waits there.

        Args:
            shard: the number of the shard.
            due_head_ms: the earliest due time in the shard, as the store has just answered; None: no item waits.
            lease_head_ms: the earliest lease end in the shard; None: no item is in flight.
            now_ms: the store's time.
        """
        ...

    def extend(self, batch: Batch) -> bool:
        """Extend the lease of a batch, counted from now. Returns False if this dispatcher may have lost the batch."""
        ...

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """The settlements of a batch that the store still has to perform.

        None: this process does not know whether the claim was published. The claim stays open, and the dispatcher
        forgets it.
        """
        ...


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Settings of the push, with which the server itself sends due items to its own streams and lists.

    In a cluster, a target must be in the same hash slot as the shard.

    Args:
        prefix: put in front of every target name. Defaults to "".
        create: whether the push creates a missing stream (a list always); else it refuses the item. Defaults to False.
        maxlen: approximate length to which streams are trimmed, 0 = never. Defaults to 0.
    """

    prefix: str = ""
    create: bool = False
    maxlen: int = 0


class SharedLeases:
    """The claim source of competing dispatchers: the first one to claim a batch owns it while it has the lease.

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
        """Implements `ClaimSource.look`."""
        return Call(shard, Look(0, 0))

    def looked(self, window: Window) -> None:
        """Implements `ClaimSource.looked`: nothing to do, because claims from every shard are allowed."""

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """Implements `ClaimSource.claim`."""
        lease_ms, lapse_cap, push = self._config.lease_ms, self._config.lapse_cap, self._push
        if push is None:
            return Call(shard, ClaimDue(limit, lease_ms, None, epoch, lapse_cap))
        return Call(shard, PushDue(limit, lease_ms, push.prefix, push.create, push.maxlen, epoch, lapse_cap))

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """Implements `ClaimSource.claimed`: nothing to do, because the store keeps the lease."""

    def failed(self, call: Call[Any], error: Exception) -> None:
        """Implements `ClaimSource.failed`: nothing to do. If the claim took items, they wait again after the lease."""

    def next_look_ms(self, shard: int, due_head_ms: int | None, lease_head_ms: int | None, now_ms: int) -> int | None:
        """Implements `ClaimSource.next_look_ms`. The items of an ended lease are due again, so lease ends count too."""
        if due_head_ms is None or lease_head_ms is None:
            return lease_head_ms if due_head_ms is None else due_head_ms
        return min(due_head_ms, lease_head_ms)

    def extend(self, batch: Batch) -> bool:
        """Implements `ClaimSource.extend`."""
        operation = Extend(batch.claim.number, [item.id for item in batch.items], self._config.lease_ms)
        (answer,) = self._store.execute([Call(batch.claim.shard, operation)])
        if isinstance(answer, Exception):
            logger.warning("dispatcher.lease_not_extended: %s", answer)
            return False
        return Outcome.STALE not in answer.outcomes

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """Implements `ClaimSource.to_settle`. Returns all settlements."""
        return settlements
