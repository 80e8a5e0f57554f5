"""Owned shards: the claim source of a dispatcher that sends its claims in transactions of the broker.

It claims only from shards that this process owns, in the current ownership epoch, with a number above that of the last
sent claim. Such a claim has no lease end, because only the broker knows whether it was sent. The publisher ends the
claim, or the next owner of the shard does. A claim is ours while we own its shard. The dispatcher extends the ownership
while it works on the claim.

A process acquires a shard for its due items, but also for open claims of another process: no due item may follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retry_topic.release.shard_ownership import OwnedShard, ShardOwner
from wheel_sched.dispatcher import Batch, DispatcherConfig
from wheel_sched.errors import StaleEpoch, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import MAX_BATCH
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import Claim, ClaimDue
from wheel_sched.store.core.counts import Look, Window
from wheel_sched.store.core.settle import Settlement

logger = logger_of("retry_topic.release")

_LOOK_AGAIN_MS = 20  # while this process takes a shard over
_MOST_WORKERS = 8  # shards that send at the same time: they mostly wait for the broker


def transactional_config(config: DispatcherConfig, shards: int) -> DispatcherConfig:
    """The settings of a dispatcher that sends its claims in transactions.

    A shard's claims are sent one after another, so there are no more workers than shards. Claims are larger unless
    `batch` was set, because a transaction costs the same for few and many messages.
    """
    batch = MAX_BATCH if config.batch == DispatcherConfig().batch else config.batch
    return replace(config, workers=min(shards, _MOST_WORKERS), batch=batch)


class OwnedShards:
    """See the module. The methods are those of `wheel_sched.dispatcher.ClaimSource`.

    Args:
        ownership: the shards that this process owns.
    """

    def __init__(self, ownership: ShardOwner) -> None:
        self._ownership = ownership
        self._claiming: dict[str, OwnedShard] = {}  # by token: claim calls that the store has not answered

    def __repr__(self) -> str:
        return f"<OwnedShards {self._ownership!r}>"

    def look(self, shard: int) -> Call[Window]:
        """The call that reads a shard's next due items. A dispatcher makes it after each reconnect."""
        self._ownership.check_server()
        return Call(shard, Look(0, 0))

    def looked(self, window: Window) -> None:
        """Acquire a shard with waiting items before they are due, so that a take-over does not delay them."""
        if window.due_head_ms is not None or window.lease_head_ms is not None:
            self._ownership.prepare(window.shard)

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """The call that claims, if the shard is owned and taken over; else the call of `look`."""
        owned = self._ownership.acquire(shard)
        if owned is None:
            return Call(shard, Look(0, 0))
        above = self._ownership.last_number(shard, owned)
        operation = ClaimDue(limit, None, None, owned.epoch, above=above)
        self._claiming[operation.token] = owned
        return Call(shard, operation)

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """Record a claim under the ownership in which it was requested, also if that ownership has ended since."""
        owned = self._claiming.pop(call.operation.token)
        if claim.items:
            self._ownership.opened(claim.shard, claim.number, owned)

    def failed(self, call: Call[Any], error: Exception) -> None:
        """After a stale epoch, ask who owns the shard. After no answer, the store may be another one or have lost
        writes."""
        self._claiming.pop(call.operation.token, None)
        if isinstance(error, StaleEpoch):
            self._ownership.outdated(call.shard)
        elif isinstance(error, StoreUnavailable):
            self._ownership.suspect()

    def next_look_ms(self, shard: int, due_head_ms: int | None, lease_head_ms: int | None, now_ms: int) -> int | None:
        """The next due time of a shard that this process owns; else the time at which it may acquire the shard.

        If another process's shard has open claims, their owner may be dead. So the dispatcher looks again, even without
        due items.
        """
        heads = [head for head in (due_head_ms, lease_head_ms) if head is not None]
        if not heads or self._ownership.is_settled(shard):
            return min(heads, default=None)
        again_ms = self._ownership.elsewhere_until_ms(shard) + 1
        if lease_head_ms is not None or self._ownership.is_taking_over(shard):
            again_ms = max(again_ms, now_ms + _LOOK_AGAIN_MS)
        return again_ms if lease_head_ms is not None or due_head_ms is None else max(due_head_ms, again_ms)

    def extend(self, batch: Batch) -> bool:
        """Extend the ownership of the batch's shard."""
        try:
            return self._ownership.extend(batch.claim.shard, batch.claim.number)
        except WheelSchedError as error:
            logger.info("ownership.not_extended: %s", error)
            return False

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """The settlements of items still in the claim; None while the publisher does not know the claim's result."""
        shard, number = batch.claim.shard, batch.claim.number
        if self._ownership.is_open(shard, number):
            self._ownership.abandon(shard, number)
            return None
        early = batch.ended_early
        return settlements if not early else [each for each in settlements if each.id not in early]
