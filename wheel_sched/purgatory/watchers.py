"""Watcher lists: the operations that wait under each key.

A watcher list is an insertion-ordered `dict[operation, None]`. A completed operation leaves each of its lists in O(1),
and a list is dropped with its last operation. So no purge is necessary, `watched` is exact, and no list keeps a
completed operation alive. Kafka's lists hold completed operations until a purge walks through all of them.

Threads: any thread may call any method. Entering an existing list, or leaving a list that stays, is one atomic dict
operation. Making or dropping a list takes the lock of the key's shard. A lock for each entry would cost as much as all
other work.

One race remains: thread A drops an empty list while thread B has looked it up and is about to enter it. Three rules
prevent a loss. A removes the list, starts a new epoch, and puts the list back if it is no longer empty. When B finds a
new epoch after it has entered, it checks under the lock that the list still belongs to the key. A thread that finds no
list looks again under the lock, where no other thread is in the middle of a change.

No shard's lock is held while an operation is tried or completed, and no thread holds the locks of two shards.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeAlias

from wheel_sched.purgatory.operation import DelayedOperation

_SHARDS = 64  # Kafka has 512, for threads that really run at the same time

WatcherList: TypeAlias = dict[DelayedOperation, None]


class WatcherLists:
    """The watcher lists of all keys."""

    __slots__ = ("_epoch", "_lists", "_locks")

    def __init__(self) -> None:
        self._lists: dict[Hashable, WatcherList] = {}
        self._locks = [threading.Lock() for _ in range(_SHARDS)]
        self._epoch = object()  # replaced whenever a list is dropped

    def __len__(self) -> int:
        return len(self._lists)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._lists))

    def enter(self, keys: Sequence[Hashable], operation: DelayedOperation) -> list[WatcherList]:
        """Watch `operation` under `keys`. Returns its lists, one for each key.

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
        """Remove an operation from the lists that `enter` returned, and drop those that are empty then."""
        for watchers in entered:
            watchers.pop(operation, None)
        self.drop(keys, entered)

    def drop(self, keys: Sequence[Hashable], entered: Sequence[WatcherList]) -> None:
        """Drop the lists of `keys` that are empty."""
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
        """The operations that wait under `key`, in the order of their arrival."""
        watchers = self._lists.get(key)
        if watchers is None:
            with self._locks[hash(key) % _SHARDS]:
                watchers = self._lists.get(key)
        return [] if watchers is None else list(watchers)

    def watched(self) -> int:
        """The number of entries in all lists."""
        return sum(map(len, list(self._lists.values())))

    def _enter_locked(self, key: Hashable, operation: DelayedOperation) -> WatcherList:
        with self._locks[hash(key) % _SHARDS]:
            watchers = self._lists.get(key)
            if watchers is None:
                watchers = self._lists[key] = {}
            watchers[operation] = None
            return watchers
