"""Alarms: the timing wheel on the store's time, and what it wakes the dispatcher for.

A shard has one alarm, for its earliest due or lease end, at most one sweep away; a batch that is out has one, to have
its lease extended or to be given up. Every reply of the store tells the head of what is left, so the wheel need not
hold more of a shard than that. Sans-I/O: now is an argument, in ms of the store's clock. One owner.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.wheel import TimerTaskEntry, TimingWheel


class Wake(NamedTuple):
    """Look at a shard; `sweep`: nothing is due, keep house."""

    shard: int
    sweep: bool = False


class Keep(NamedTuple):
    """A batch is still out."""

    batch: Batch


Alarm = Wake | Keep


class Alarms:
    """What is to happen when.

    Args:
        sweep_ms: the longest a shard sleeps while something waits in it.
    """

    def __init__(self, sweep_ms: int) -> None:
        self._sweep_ms = sweep_ms
        self._wheel: TimingWheel[Alarm] = TimingWheel()
        self._shards: dict[int, TimerTaskEntry[Alarm]] = {}
        self._batches: dict[Batch, TimerTaskEntry[Alarm]] = {}
        self._troubled: set[Batch] = set()  # out while a turn failed, and given a second chance

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def batches(self) -> list[Batch]:
        """The batches that are out."""
        return list(self._batches)

    def out(self) -> int:
        """How many batches are out."""
        return len(self._batches)

    def next_ms(self) -> int | None:
        """When the next alarm goes off."""
        return self._wheel.next_expiry()

    def going_off(self, now_ms: int) -> list[Alarm]:
        """The alarms whose time has come; a clock that went back a little takes the wheel with it."""
        if now_ms < self._wheel.now_ms:
            self._rewind(now_ms)
        alarms: list[Alarm] = []
        for entry in self._wheel.advance(now_ms):
            if entry.task is not None:
                alarms.append(entry.task)
                if isinstance(entry.task, Wake):
                    self._shards.pop(entry.task.shard, None)
        return alarms

    def wake(self, shard: int, at_ms: int, now_ms: int, *, keep: bool = False) -> None:
        """Have the shard looked at then, or swept before; `keep` an earlier alarm that stands."""
        sweep = at_ms > now_ms + self._sweep_ms
        at_ms = min(at_ms, now_ms + self._sweep_ms)
        armed = self._shards.get(shard)
        if armed is not None and keep and armed.deadline_ms <= at_ms:
            return
        self.let_sleep(shard)
        self._shards[shard] = self._wheel.schedule(Wake(shard, sweep), at_ms)

    def let_sleep(self, shard: int) -> None:
        """Nothing waits in the shard."""
        armed = self._shards.pop(shard, None)
        if armed is not None:
            armed.cancel()

    def keep(self, batch: Batch, at_ms: int) -> None:
        """Have the batch looked after then."""
        self._batches[batch] = self._wheel.schedule(Keep(batch), at_ms)

    def done(self, batch: Batch) -> None:
        """The batch is settled."""
        entry = self._batches.pop(batch, None)
        if entry is not None:
            entry.cancel()

    def is_out(self, batch: Batch) -> bool:
        """Whether the batch is not settled yet."""
        return batch in self._batches

    def after_failure(self, known: Set[Batch]) -> list[Batch]:
        """A turn has failed half-way: the batches that are to be settled again, under their token, of those that
        nobody has any more. The others are let go of: their items come back when the lease ends."""
        lost = [batch for batch in self._batches if batch not in known]
        again = [batch for batch in lost if batch.over and batch not in self._troubled]
        for batch in lost:
            if batch not in again:
                self.done(batch)
        self._troubled = {batch for batch in self._troubled if batch in self._batches} | {*again}
        return again

    def restart(self, now_ms: int, keep_at_ms: int) -> None:
        """The store's clock jumped: every shard is to be looked at anew, batches at `keep_at_ms`."""
        self._wheel = TimingWheel(now_ms)
        self._shards.clear()
        for batch in self._batches:
            self.keep(batch, keep_at_ms)

    def _rewind(self, now_ms: int) -> None:
        """What stands in the wheel must not go off before its time comes again."""
        pending = self._wheel.snapshot()
        self._wheel = TimingWheel(now_ms)
        for entry in self._wheel.restore(pending):
            if isinstance(entry.task, Keep):
                self._batches[entry.task.batch] = entry
            elif entry.task is not None:
                self._shards[entry.task.shard] = entry
