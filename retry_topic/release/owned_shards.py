"""Owned shards: the claim source of a dispatcher whose claims go out in transactions of the broker.

It claims only from shards that this process owns, in the current ownership epoch, with a number above the last that
went out. Such a claim has no lease end, because only the broker knows whether it went out: the publisher ends it, or
whoever owns the shard next. What keeps a claim ours is the ownership of its shard, which is extended while it is worked
on.

Open claims of another process are as good an occasion to acquire a shard as due items are: they may be the last.
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
from wheel_sched.store.core.settle import Settlement
from wheel_sched.store.core.window import Look, Window

logger = logger_of("retry_topic.release")

_LOOK_AGAIN_MS = 20  # while this process takes a shard over
_MOST_WORKERS = 8  # shards that send at the same time: they wait for the broker most of it


def transactional_config(config: DispatcherConfig, shards: int) -> DispatcherConfig:
    """The settings of a dispatcher whose claims go out in transactions.

    A shard's claims go out one after another, so more workers than shards are of no use. Claims are larger unless
    `batch` was set, since a transaction costs the same whatever it holds.
    """
    batch = MAX_BATCH if config.batch == DispatcherConfig().batch else config.batch
    return replace(config, workers=min(shards, _MOST_WORKERS), batch=batch)


class OwnedShards:
    """See the module; the methods are those of `wheel_sched.dispatcher.ClaimSource`.

    Args:
        ownership: which shards this process owns.
    """

    def __init__(self, ownership: ShardOwner) -> None:
        self._ownership = ownership
        self._claiming: dict[str, OwnedShard] = {}  # by token: claims that the store has not answered

    def __repr__(self) -> str:
        return f"<OwnedShards {self._ownership!r}>"

    def look(self, shard: int) -> Call[Window]:
        """The call that reads what a shard releases next; a dispatcher looks after each reconnect."""
        self._ownership.check_server()
        return Call(shard, Look(0, 0))

    def looked(self, window: Window) -> None:
        """Acquire a shard in which something waits before that is due, so that it is not late by a take-over."""
        if window.due_head_ms is not None or window.fly_head_ms is not None:
            self._ownership.prepare(window.shard)

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """A claim, when the shard is owned and taken over; a look otherwise."""
        owned = self._ownership.acquire(shard)
        if owned is None:
            return Call(shard, Look(0, 0))
        above = self._ownership.last_number(shard, owned)
        operation = ClaimDue(limit, None, None, owned.epoch, above=above)
        self._claiming[operation.token] = owned
        return Call(shard, operation)

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """The claim belongs to the ownership under which it was asked for, whatever happened since."""
        owned = self._claiming.pop(call.operation.token)
        if claim.items:
            self._ownership.opened(claim.shard, claim.number, owned)

    def failed(self, call: Call[Any], error: Exception) -> None:
        """A stale epoch: ask who owns the shard. No answer: the store may be another one now, or an earlier state."""
        self._claiming.pop(call.operation.token, None)
        if isinstance(error, StaleEpoch):
            self._ownership.outdated(call.shard)
        elif isinstance(error, StoreUnavailable):
            self._ownership.suspect()

    def next_look_ms(self, shard: int, due_head_ms: int | None, fly_head_ms: int | None, now_ms: int) -> int | None:
        """The next due of a shard that is ours; else when it may be ours.

        Where claims are open in a shard that is not ours, somebody has to find out about them: that is a reason to come
        back, due items or not.
        """
        heads = [head for head in (due_head_ms, fly_head_ms) if head is not None]
        if not heads or self._ownership.is_settled(shard):
            return min(heads, default=None)
        again_ms = self._ownership.elsewhere_until_ms(shard) + 1
        if fly_head_ms is not None or self._ownership.is_taking_over(shard):
            again_ms = max(again_ms, now_ms + _LOOK_AGAIN_MS)
        return again_ms if fly_head_ms is not None or due_head_ms is None else max(due_head_ms, again_ms)

    def extend(self, batch: Batch) -> bool:
        """Extend the ownership of the batch's shard."""
        try:
            return self._ownership.extend(batch.claim.shard, batch.claim.number)
        except WheelSchedError as error:
            logger.info("ownership.not_extended: %s", error)
            return False

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """What did not leave the claim early; None while the publisher does not know what became of the claim."""
        shard, number = batch.claim.shard, batch.claim.number
        if self._ownership.is_open(shard, number):
            self._ownership.abandon(shard, number)
            return None
        early = batch.ended_early
        return settlements if not early else [each for each in settlements if each.id not in early]
