"""Due shards: what the owner knows of each shard, and which of them it looks at now.

A shard is *unread* until the store has said what it releases next, *due* when something may be claimed from it, and to
be *swept* when nothing happened for long. The alarms wake the owner for a shard that is none of these. Sans-I/O: now is
an argument, in ms of the store's clock. One owner.

Invariant: every shard that was read has an alarm no later than the earliest moment known here, or is due.
"""

from __future__ import annotations

from collections.abc import Iterable

from wheel_sched.dispatcher.alarms import Alarms


class DueShards:
    """See the module.

    Args:
        shards: how many there are.
        alarms: what wakes the owner.
        sweep_ms: see `DispatcherConfig`.
    """

    def __init__(self, shards: int, alarms: Alarms, sweep_ms: int) -> None:
        self._shards = range(shards)
        self._alarms = alarms
        self._sweep_ms = sweep_ms
        self._due: dict[int, None] = {}  # the shard that waited longest first, so that none starves
        self._to_sweep: set[int] = set()
        self._swept_ms: dict[int, int] = {}
        self.unread: set[int] = set(self._shards)
        self.epochs: dict[int, int] = {}

    def claimable(self) -> list[int]:
        """The due shards that were read, the one that waited longest first."""
        return [shard for shard in self._due if shard not in self.unread]

    def sweepable(self) -> list[int]:
        """The shards to be swept that were read."""
        return sorted(self._to_sweep - self.unread)

    def due(self, shard: int, *, sweep: bool = False) -> None:
        """The alarm of a shard has gone off."""
        if sweep:
            self._to_sweep.add(shard)
        else:
            self._due[shard] = None

    def claiming(self, shard: int) -> None:
        """A claim is sent; the shard is due again when its answer or a marker says so."""
        self._due.pop(shard, None)

    def read(self, shard: int, epoch: int) -> None:
        """The store has said what the shard releases next."""
        self.unread.discard(shard)
        self.epochs[shard] = epoch

    def read_anew(self, shards: Iterable[int] | None = None) -> None:
        """What is known of these shards may be wrong. Defaults to all."""
        self.unread.update(self._shards if shards is None else shards)

    def swept(self, shard: int, now_ms: int) -> None:
        """A shard has been swept."""
        self._to_sweep.discard(shard)
        self._swept_ms[shard] = now_ms

    def wake(self, shard: int, at_ms: int | None, now_ms: int, *, keep: bool = False) -> None:
        """Have the shard looked at then; None: nothing waits in it. `keep` an earlier moment that stands."""
        if not keep:
            self._due.pop(shard, None)  # an answer before this one, of the same step, may have said so
        if at_ms is None:
            if not keep:
                self._alarms.forget_shard(shard)
        elif at_ms <= now_ms:
            self._due[shard] = None
        else:
            self._alarms.look_at(shard, at_ms, now_ms, unless_earlier=keep)
            if now_ms - self._swept_ms.setdefault(shard, now_ms) >= self._sweep_ms:
                self._to_sweep.add(shard)  # a busy shard never sleeps long enough for an alarm to sweep it

    def clock_jumped(self) -> None:
        """The store's clock was stepped: no moment that was known before means anything."""
        self._swept_ms.clear()
        self.read_anew()
