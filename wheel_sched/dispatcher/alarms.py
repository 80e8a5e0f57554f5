"""Alarms: when the dispatcher has to look at a shard or at a batch in flight, on the store's time.

Each shard with waiting items has one alarm: at its earliest due time or lease end, or one sweep from now if that is
earlier. Each batch in flight has one alarm, to extend its lease or to give up the batch. Every reply of the store has
the next due time of the shard, so one alarm per shard is enough.

Sans-I/O: `now` is an argument, in ms of the store's clock. Threads: only the dispatcher's owner calls this.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.timers.queue import DeadlineQueue
from wheel_sched.wheel import TimerTaskEntry


class LookAtShard(NamedTuple):
    """An item is due in a shard. With `sweep` no item is due, and the shard only needs a sweep."""

    shard: int
    sweep: bool = False


class ExtendLease(NamedTuple):
    """A batch is still in flight: extend its lease."""

    batch: Batch


Alarm = LookAtShard | ExtendLease


class Alarms:
    """The times at which the dispatcher has to act.

    Args:
        sweep_ms: the longest time between two looks at a shard with waiting items.
    """

    def __init__(self, sweep_ms: int) -> None:
        self._sweep_ms = sweep_ms
        self._queue: DeadlineQueue[Alarm] = DeadlineQueue()
        self._shards: dict[int, TimerTaskEntry[Alarm]] = {}
        self._batches: dict[Batch, TimerTaskEntry[Alarm]] = {}
        self._settled_again: set[Batch] = set()  # batches that were settled a second time after a failed step

    def __len__(self) -> int:
        """How many shards have an alarm."""
        return len(self._shards)

    @property
    def batches(self) -> list[Batch]:
        """The batches in flight."""
        return list(self._batches)

    def out(self) -> int:
        """How many batches are in flight."""
        return len(self._batches)

    def next_ms(self) -> int | None:
        """When the next alarm is due; None when there is none."""
        return self._queue.next_ms()

    def due(self, now_ms: int) -> list[Alarm]:
        """The alarms that are due. The call removes the alarm of a shard; a batch stays until `done`.

        A `now_ms` before the last one sets the queue back: an alarm is due only when its time has come again.
        """
        for entry in self._queue.follow(now_ms):
            self._remember(entry)
        alarms = self._queue.take(now_ms)
        for alarm in alarms:
            if isinstance(alarm, LookAtShard):
                del self._shards[alarm.shard]
        return alarms

    def look_at(self, shard: int, at_ms: int, now_ms: int, *, unless_earlier: bool = False) -> None:
        """Set the alarm of a shard: look at it at `at_ms`, or sweep it before. Replaces the old alarm.

        With `unless_earlier` an old alarm that is as early or earlier stays.
        """
        sweep = at_ms > now_ms + self._sweep_ms
        at_ms = min(at_ms, now_ms + self._sweep_ms)
        armed = self._shards.get(shard)
        if armed is not None and unless_earlier and armed.deadline_ms <= at_ms:
            return
        self.forget_shard(shard)
        self._remember(self._queue.schedule(LookAtShard(shard, sweep), at_ms))

    def forget_shard(self, shard: int) -> None:
        """No item waits in the shard: remove its alarm."""
        armed = self._shards.pop(shard, None)
        if armed is not None:
            armed.cancel()

    def extend_lease(self, batch: Batch, at_ms: int) -> None:
        """The batch is in flight; extend its lease at `at_ms`."""
        self._remember(self._queue.schedule(ExtendLease(batch), at_ms))

    def done(self, batch: Batch) -> None:
        """The batch is settled."""
        entry = self._batches.pop(batch, None)
        if entry is not None:
            entry.cancel()

    def is_out(self, batch: Batch) -> bool:
        """Whether the batch is not settled yet."""
        return batch in self._batches

    def after_failure(self, known: Set[Batch]) -> list[Batch]:
        """A step of the owner has failed half-way. Returns the batches to settle again under their token.

        Args:
            known: the batches that another part of the dispatcher still works on.

        Each returned batch gets this second chance once. All other batches that are not `known` are forgotten: their
        items wait again when the lease ends.
        """
        lost = [batch for batch in self._batches if batch not in known]
        again = [batch for batch in lost if batch.over and batch not in self._settled_again]
        for batch in lost:
            if batch not in again:
                self.done(batch)
        self._settled_again = {batch for batch in self._settled_again if batch in self._batches} | {*again}
        return again

    def restart(self, now_ms: int, extend_at_ms: int) -> None:
        """The store's clock jumped: forget all shards, and look at the batches at `extend_at_ms`."""
        self._queue.restart(now_ms)
        self._shards.clear()
        for batch in self._batches:
            self.extend_lease(batch, extend_at_ms)

    def _remember(self, entry: TimerTaskEntry[Alarm]) -> None:
        if isinstance(entry.task, ExtendLease):
            self._batches[entry.task.batch] = entry
        elif entry.task is not None:
            self._shards[entry.task.shard] = entry
