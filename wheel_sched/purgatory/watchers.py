"""Who waits for what: the operations watched under each key.

A watcher list is an insertion-ordered `dict[operation, None]`, so a completed operation leaves each of its lists in
O(1), and a list goes with its last operation. Hence nothing is ever purged, `watched` is exact, and no list keeps
anything alive. Kafka's lists hold completed operations until a purge has walked all of them.

Threads: any. Entering a list that exists and leaving one that stays are single dict operations, atomic by themselves.
Making and dropping a list takes the lock of the key's shard; a lock for each entry would cost as much as all the rest.
The one race between them: somebody drops a list as empty while somebody else, who has looked it up, is about to enter
it. Whoever drops takes the list away, starts a new epoch, and puts the list back if it is no longer empty; whoever
entered and finds another epoch than before verifies under the lock that the list is still the key's; whoever finds
no list looks again under the lock, where neither is half done.

No shard's lock is held while an operation is tried or completed, and no two are ever held together.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias

from wheel_sched.purgatory.operation import DelayedOperation

_SHARDS = 64  # Kafka has 512, for cores that really run at the same time

WatcherList: TypeAlias = dict[DelayedOperation, None]


class WatcherLists:
    """The watcher lists of all keys."""

    __slots__ = ("_epoch", "_lists", "_locks")

    def __init__(self) -> None:
        self._lists: dict[Hashable, WatcherList] = {}
        self._locks = [threading.Lock() for _ in range(_SHARDS)]
        self._epoch = object()  # another one since a list was last dropped

    def __len__(self) -> int:
        return len(self._lists)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._lists))

    def enter(self, keys: Sequence[Hashable], operation: DelayedOperation) -> list[WatcherList]:
        """Watch `operation` under `keys`; answers the lists it is in now, one for each key.

        Raises:
            TypeError: a key is not hashable; the operation is in no list.
        """
        lists, epoch = self._lists, self._epoch
        entered: list[WatcherList] = []
        try:
            for key in keys:
                watchers = lists.get(key)
                if watchers is None:
                    watchers = self._enter_locked(key, operation)
                else:
                    watchers[operation] = None
                entered.append(watchers)
            if self._epoch is not epoch:
                for place, key in enumerate(keys):
                    watchers = entered[place]
                    current = entered[place] = self._enter_locked(key, operation)
                    if current is not watchers:
                        watchers.pop(operation, None)
        except BaseException:
            self.leave(keys, operation, entered)
            raise
        return entered

    def leave(self, keys: Sequence[Hashable], operation: DelayedOperation, entered: Sequence[WatcherList]) -> None:
        """Undo `enter`."""
        for watchers in entered:
            watchers.pop(operation, None)
        self.drop(keys, entered)

    def drop(self, keys: Sequence[Hashable], entered: Sequence[WatcherList]) -> None:
        """Let go of the lists of `keys` that are empty."""
        for key, watchers in zip(keys, entered, strict=False):  # `enter` may have stopped half-way
            if watchers:
                continue
            with self._locks[hash(key) % _SHARDS]:
                if not watchers and self._lists.get(key) is watchers:
                    del self._lists[key]
                    self._epoch = object()
                    if watchers:
                        self._lists[key] = watchers

    def watching(self, key: Hashable) -> list[DelayedOperation]:
        """The operations watched under `key`, the one that has waited longest first."""
        watchers = self._lists.get(key)
        if watchers is None:
            with self._locks[hash(key) % _SHARDS]:
                watchers = self._lists.get(key)
        return [] if watchers is None else list(watchers)

    def watched(self) -> int:
        """Entries in all lists."""
        return sum(map(len, list(self._lists.values())))

    def _enter_locked(self, key: Hashable, operation: DelayedOperation) -> WatcherList:
        with self._locks[hash(key) % _SHARDS]:
            watchers = self._lists.get(key)
            if watchers is None:
                watchers = self._lists[key] = {}
            watchers[operation] = None
            return watchers
