"""Due shards: when a dispatcher's owner loop must look at which shard, and the calls that it sends for this.

A shard is *unread* until the store has reported its next due time. It is *due* when items may be claimed from it.
It must be *swept* when its last sweep was long ago: a sweep ends leases that have run out, finds items whose marker was
lost, and deletes old dead letters. Each other shard with waiting items has one alarm in a timing wheel: at the time
that the claim source names (with shared leases the earliest due time or lease end), or after `sweep_ms` if that is
earlier. Every reply of the store but that to a preparation has the next due time of the shard, so one alarm per shard
is enough.

This module does no I/O: the caller passes the time, in ms of the store's clock. One owner makes all calls.

Invariant: a shard whose earliest due time or lease end is known here is due, or has an alarm no later than
`ClaimSource.next_look_ms` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from wheel_sched.dispatcher.claim_source import ClaimSource
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.errors import StaleEpoch, WheelSchedError
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.sweep import Sweep
from wheel_sched.store.fair_shares.operations import PreparedDue, PrepareDue
from wheel_sched.timers.queue import DeadlineQueue
from wheel_sched.wheel import TimerTaskEntry

_PREPARE_EVERY_MS = 20
_SEARCH_EVERY_MS = 10  # the interval while preparations find items; each keeps the server busy for 1 to 2 ms


class Heads(Protocol):
    """A reply of the store with the earliest due time and the earliest lease end of a shard."""

    due_head_ms: int | None
    lease_head_ms: int | None


class ShardAlarm(NamedTuple):
    """The alarm of a shard. It goes off when an item is due there or, with `sweep`, when the shard needs a sweep."""

    shard: int
    sweep: bool


class DueShards:
    """The shards of a store, and when the owner of a dispatcher must look at each.

    Args:
        shards: number of shards.
        claim_source: says from which shards the dispatcher may claim.
        config: the dispatcher's settings. `sweep_ms` is the longest time between two looks at a shard with items.

    Attributes:
        unread: the shards that must be read.
        epochs: the epoch of each shard in the store's last answer.
    """

    def __init__(self, shards: int, claim_source: ClaimSource, config: DispatcherConfig) -> None:
        self._shards = range(shards)
        self._claim_source = claim_source
        self._config = config
        self._queue: DeadlineQueue[ShardAlarm] = DeadlineQueue()
        self._alarms: dict[int, TimerTaskEntry[ShardAlarm]] = {}
        self._due: dict[int, None] = {}  # the shard that has waited longest comes first, so that no shard starves
        self._to_sweep: set[int] = set()
        self._swept_ms: dict[int, int] = {}
        self._unprepared_ms: dict[int, int] = {}  # shard -> the earliest time of its next preparation
        self._searched: set[int] = set()  # shards in which the next preparation is likely to find items
        self.unread: set[int] = set(self._shards)
        self.epochs: dict[int, int] = {}

    def __len__(self) -> int:
        """How many shards have an alarm."""
        return len(self._alarms)

    # -- time

    def next_ms(self) -> int | None:
        """When the next alarm goes off, in ms of the store's clock; None when no shard has an alarm."""
        return self._queue.next_ms()

    def run_due(self, now_ms: int) -> int:
        """Remove the alarms whose time has come. The shard of each is then due; if it was for a sweep, to be swept.

        If `now_ms` is before the time of the last call, the store's clock was set back. All alarms then wait until the
        clock shows their times again. Returns how many alarms were removed.
        """
        for entry in self._queue.follow(now_ms):
            self._remember(entry)
        alarms = self._queue.take(now_ms)
        for shard, sweep in alarms:
            del self._alarms[shard]
            if sweep:
                self._to_sweep.add(shard)
            else:
                self._due[shard] = None
        return len(alarms)

    def clock_jumped(self, now_ms: int) -> None:
        """Forget all known times and read all shards again, because the store's clock has jumped to `now_ms`."""
        self._queue.restart(now_ms)
        self._alarms.clear()
        self._swept_ms.clear()
        self.read_anew()

    # -- calls

    def look_calls(self) -> list[Call[Any]]:
        """The calls that read the unread shards."""
        return [self._claim_source.look(shard) for shard in sorted(self.unread)]

    def sweep_calls(self) -> list[Call[Any]]:
        """The calls that sweep the shards whose last sweep was long ago."""
        config = self._config
        shards = sorted(self._to_sweep - self.unread)
        return [Call(shard, Sweep(config.dead_cap, config.dead_age_ms, config.lapse_cap)) for shard in shards]

    def claim_calls(
        self, most: int, limit: int, room: int, admits: Callable[[int], bool], failures: list[Exception]
    ) -> list[Call[Any]]:
        """The calls that claim from the due shards that have waited longest.

        These shards are then no longer due, until an answer or a marker makes them due again.

        Args:
            most: greatest number of shards.
            limit: greatest number of items per claim.
            room: greatest number of items in all claims together.
            admits: whether another batch of a shard may be claimed.
            failures: receives the errors of a claim source that could not find out whether it may claim.
        """
        calls: list[Call[Any]] = []
        due = [shard for shard in self._due if shard not in self.unread and admits(shard)]
        for shard in due[:most]:
            items = min(limit, room)
            if items <= 0:
                break
            room -= items
            del self._due[shard]
            try:
                calls.append(self._claim_source.claim(shard, items, self.epochs.get(shard)))
            except StaleEpoch:
                self.read_anew([shard])
            except WheelSchedError as error:
                failures.append(error)
        return calls

    def prepare_calls(self, now_ms: int) -> list[Call[Any]]:
        """The calls that prepare claims of due shards: they look for overdue items of fair topics.

        The backlog of one fair key can hide the overdue items of other keys. These calls find them, also while the
        publisher is busy and nothing is claimed. The dispatcher sends these calls in a round trip without other calls,
        because a claim or settlement in the same round trip would have to wait for them.
        """
        shards = [shard for shard in self._due if shard not in self.unread]
        return [Call(shard, PrepareDue()) for shard in shards if self._unprepared_ms.get(shard, 0) <= now_ms]

    def next_preparation_ms(self) -> int | None:
        """When the next preparation is likely to find items, in ms of the store's clock; None: no time is known."""
        shards = [shard for shard in self._searched if shard in self._due and shard not in self.unread]
        return min((self._unprepared_ms[shard] for shard in shards), default=None)

    # -- replies and markers

    def prepared(self, shard: int, prepared: PreparedDue, now_ms: int) -> None:
        """Handle the answer to a preparation. The answer decides when the shard's next preparation may run."""
        every_ms = _SEARCH_EVERY_MS if prepared.more else _PREPARE_EVERY_MS
        self._unprepared_ms[shard] = now_ms + (every_ms if prepared.fair else self._config.sweep_ms)
        if prepared.more:
            self._searched.add(shard)
        else:
            self._searched.discard(shard)

    def read(self, shard: int, epoch: int) -> None:
        """Note that the store has reported the next due time of a shard, and the shard's epoch."""
        self.unread.discard(shard)
        self.epochs[shard] = epoch

    def read_anew(self, shards: Iterable[int] | None = None) -> None:
        """Read these shards again in the next round trip, as their known state may be wrong. Defaults to all."""
        self.unread.update(self._shards if shards is None else shards)

    def swept(self, shard: int, now_ms: int) -> None:
        """Note that a shard has been swept."""
        self._to_sweep.discard(shard)
        self._swept_ms[shard] = now_ms

    def replied(self, shard: int, reply: Heads, now_ms: int, *, keep: bool = False) -> None:
        """Set the alarm of a shard to the time of its next claim, which follows from `reply`.

        `keep`: an earlier alarm stays.
        """
        at_ms = self._claim_source.next_look_ms(shard, reply.due_head_ms, reply.lease_head_ms, now_ms)
        self.look_at(shard, at_ms, now_ms, keep=keep)

    def marked(self, shard: int, due_ms: int | None, now_ms: int) -> None:
        """Handle a marker: a new item is due at `due_ms`, before all others of the shard. None: read the shard anew."""
        if due_ms is None:
            self.read_anew([shard])
        else:
            self.look_at(shard, due_ms, now_ms, keep=True)

    def look_at(self, shard: int, at_ms: int | None, now_ms: int, *, keep: bool = False) -> None:
        """Mark a shard as due if `at_ms` has come; otherwise set its alarm to `at_ms`. None: no item waits there.

        `keep`: an earlier alarm stays.
        """
        if not keep:
            self._due.pop(shard, None)  # an earlier answer in this step may have made the shard due
        if at_ms is None:
            if not keep:
                self._cancel(shard)
        elif at_ms <= now_ms:
            self._due[shard] = None
        else:
            self._set_alarm(shard, at_ms, now_ms, keep)
            if now_ms - self._swept_ms.setdefault(shard, now_ms) >= self._config.sweep_ms:
                self._to_sweep.add(shard)  # a busy shard never sleeps long enough for an alarm to sweep it

    def _set_alarm(self, shard: int, at_ms: int, now_ms: int, keep: bool) -> None:
        sweep_at_ms = now_ms + self._config.sweep_ms
        sweep = at_ms > sweep_at_ms
        at_ms = min(at_ms, sweep_at_ms)
        alarm = self._alarms.get(shard)
        if alarm is not None and keep and alarm.deadline_ms <= at_ms:
            return
        self._cancel(shard)
        self._remember(self._queue.schedule(ShardAlarm(shard, sweep), at_ms))

    def _remember(self, entry: TimerTaskEntry[ShardAlarm]) -> None:
        if entry.task is not None:
            self._alarms[entry.task.shard] = entry

    def _cancel(self, shard: int) -> None:
        alarm = self._alarms.pop(shard, None)
        if alarm is not None:
            alarm.cancel()
