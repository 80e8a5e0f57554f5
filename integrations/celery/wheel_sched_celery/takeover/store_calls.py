"""The calls of a takeover on the store: store messages as items, withdraw items, ask for the time.

A worker takes a message over in two steps: it stores an item, then it acknowledges the message. If the message and the
item both stayed, the task would run twice. Before a worker acknowledges the message, it writes the id of its process
into the item (a ref `taker:...`).

A worker that could not wait for the store keeps its message. The worker's call may still reach the store and store an
item. The worker later *withdraws* (removes) this item, but only if no other process has written its id there.

Threads: the store's thread calls everything, except for `pending`, `fresh_us` and `estimate_us`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from wheel_sched.dispatcher.store_calls import ServerTime
from wheel_sched.errors import InDoubt, StoreError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.core.items import Found, Item, Outcome
from wheel_sched_celery.message.held_task import REVOKED, HeldTask, bounded
from wheel_sched_celery.wheel import Wheel

logger = logger_of("wheel_sched.celery")

LOOK_AGAIN_S: Final = 1.0
MOST: Final = 10_000
_LOOKS: Final = 2  # a server that hung may answer the first look before it executes the call that stores the item
_BATCH: Final = 100
_TAKER: Final = "taker:"
ASK_AGAIN_S: Final = 5.0
DRIFT: Final = 1e-4  # a clock runs at most this much faster than another


class TakenItems:
    """Stores each message that a worker takes over as an item, and can remove these items again.

    Args:
        wheel: the integration of the app, whose store is used.
    """

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel

    @property
    def _taker(self) -> str:
        return f"{_TAKER}{self._wheel.process_id}"

    def take(self, tasks: Sequence[HeldTask]) -> list[bool]:
        """Store messages in one call.

        Returns:
            For each message whether its item waits in the store now, so that the worker may acknowledge the message.
            It is not enough that the item exists: an item in flight leaves the store soon, a dead item is never sent.

        Raises:
            StoreError: the store is away or refuses. It may have stored some of the messages. The same call may be
                repeated.
        """
        items = [self._named(self._wheel.item_of(task)) for task in tasks]
        wanted = [item for item in items if item is not None]
        stored = self._wheel.call(lambda store: store.schedule(wanted, token="")) if wanted else None
        outcomes = iter(stored.outcomes if stored is not None else ())
        waits = [item is not None and next(outcomes) is not Outcome.DUPLICATE for item in items]
        for place, item in enumerate(items):
            if item is not None and not waits[place]:
                with contextlib.suppress(StoreError):
                    waits[place] = self.waits(tasks[place])
        return waits

    def waits(self, task: HeldTask) -> bool:
        """Whether the item of this message waits in the store, neither in flight nor dead.

        If so, the item now has the id of this process, so that no other process removes the item.

        Raises:
            StoreError: the store is away, or was a moment ago.
        """
        route = bounded(task.task_id)
        (found,) = self._wheel.call(lambda store: store.get([task.item_id], route=route))
        if found is None or found.state not in ("due", "held"):
            return False
        if self._taker in found.refs:
            return True
        change = Alteration(found.id, "p", "=", found.version, self._named(found.item()))
        (outcome,) = self._wheel.call(lambda store: store.change([change], route=route))
        return outcome is Outcome.DONE

    def withdraw(self, item_ids: Sequence[str]) -> Collection[str]:
        """Remove items whose messages this worker keeps.

        These stay: items with an id of another process, items in flight, dead letters, and items of revoked tasks.

        Returns:
            The ids that the store knew.

        Raises:
            StoreError: the store is away, or was a moment ago.
        """
        found = [item for item in self._wheel.call(lambda store: store.get(item_ids, anywhere=True)) if item]
        shards: dict[int, list[Alteration]] = {}
        for item in filter(self._is_mine, found):
            shards.setdefault(item.shard, []).append(Alteration(item.id, "c", "", item.version))
        calls = [Call(shard, Change(changes)) for shard, changes in shards.items()]
        if calls:
            with contextlib.suppress(InDoubt):  # the server executed it; only its durability is not confirmed
                self._wheel.call(lambda store: values_of(store.execute(calls)))
            logger.info("celery.withdrawn: %d tasks stay in this worker alone", sum(map(len, shards.values())))
        return {item.id for item in found}

    def _is_mine(self, found: Found) -> bool:
        if found.state not in ("due", "held") or found.reason == REVOKED:
            return False
        return all(ref == self._taker for ref in found.refs if ref.startswith(_TAKER))

    def _named(self, item: Item | None) -> Item | None:
        """The item with the ref of this process (`taker:...`), and without that of any other process."""
        if item is None:
            return None
        return replace(item, refs=(*(ref for ref in item.refs if not ref.startswith(_TAKER)), self._taker))


class Withdrawals:
    """Remembers which items this worker must remove: it keeps their messages, because the store answered too late.

    Args:
        items: makes the calls that remove items from the store.
        wheel: the integration of the app whose store is used.
    """

    def __init__(self, items: TakenItems, wheel: Wheel) -> None:
        self._items = items
        self._wheel = wheel
        self._looks: dict[str, int] = {}  # item id -> how many more times `withdraw` looks for it

    @property
    def pending(self) -> bool:
        return bool(self._looks)

    def add(self, item_ids: Iterable[str]) -> None:
        """Remove these items at the next `withdraw`, if the store has them: the worker keeps their messages.

        Remembers `MOST` items; further ones stay in the store, and their tasks may run twice.
        """
        dropped = 0
        for item_id in item_ids:
            if len(self._looks) < MOST or item_id in self._looks:
                self._looks[item_id] = _LOOKS
            else:
                dropped += 1
        if dropped:
            logger.warning("celery.not_withdrawn: %d more tasks may be in the store too, and run twice", dropped)

    def discard(self, item_ids: Iterable[str]) -> None:
        """Leave these items in the store: the worker is about to acknowledge copies of their messages."""
        for item_id in item_ids:
            self._looks.pop(item_id, None)

    def clear(self) -> None:
        self._looks.clear()

    def withdraw(self) -> None:
        """Try to remove all pending items from the store. If the store does not answer, they stay pending.

        If the store does not know an item, the next `withdraw` tries once more: a late `take` may store the item.
        """
        item_ids = list(self._looks)
        for at in range(0, len(item_ids), _BATCH):
            batch = item_ids[at : at + _BATCH]
            if not self._wheel.seems_up:
                return
            try:
                found = self._items.withdraw(batch)
            except WheelSchedError:  # `Wheel.call` has logged it
                return
            for item_id in batch:
                self._looks[item_id] -= 1
                if item_id in found or self._looks[item_id] <= 0:
                    del self._looks[item_id]


class StoreClock:
    """A worker's estimate of the store's time. It never goes back, so it is ahead if the store's clock was put back.

    Args:
        wheel: the integration of the app whose store is asked.
        monotonic_ns: returns the time of a local clock that never goes back, in ns. Defaults to `time.monotonic_ns`.
    """

    def __init__(self, wheel: Wheel, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wheel = wheel
        self._monotonic_ns = monotonic_ns
        self._time = ServerTime()
        self._fresh_until_us = -1
        self._answered_us = 0  # local time of the last reply
        self._highest_us = 0

    def now_us(self) -> int | None:
        """The store's time, in microseconds since 1970; None until the store has answered. May ask the store."""
        if self._monotonic_ns() // 1000 > self._fresh_until_us:
            self._ask()
        return self.estimate_us()

    def fresh_us(self) -> int | None:
        """The time that `now_us` returns, if it is known without asking the store; otherwise None."""
        return None if self._monotonic_ns() // 1000 > self._fresh_until_us else self.estimate_us()

    def estimate_us(self) -> int | None:
        """The store's time, computed from its last answer, even if this is old. None until the store has answered."""
        if not self._time.known:
            return None
        local_us = self._monotonic_ns() // 1000
        ahead_us = math.ceil((local_us - self._answered_us) * DRIFT)  # if this clock runs faster than the store's
        self._highest_us = max(self._highest_us, self._time.now_us(local_us) - ahead_us)
        return self._highest_us

    def _ask(self) -> None:
        before_us = self._monotonic_ns() // 1000
        try:
            now_us = self._wheel.store_now_us()
        except WheelSchedError:
            return
        after_us = self._monotonic_ns() // 1000
        self._answered_us = after_us
        self._fresh_until_us = after_us + round(ASK_AGAIN_S * 1e6)
        self._time.observe(now_us, before_us, after_us)
