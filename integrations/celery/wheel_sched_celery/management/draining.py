"""Emptying the store, for an uninstallation: every held task goes to the broker as stock would have sent it.

`eta` stays in the message, so workers take over the waiting, in memory as Celery's own do. Items are claimed under a
lease, published, confirmed and settled like any due one: a drain that dies half-way loses nothing, and is repeated.
What is sent carries the mark of all messages that the store sends, so that running workers leave it alone. What
producers put on hold meanwhile is counted at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.items import Found
from wheel_sched.store.core.settle import Done, Held, Next, Settlement
from wheel_sched_celery.message.held_task import HeldTask, decode
from wheel_sched_celery.release.broker_connection import BrokerConnection, short_connection
from wheel_sched_celery.wheel import Wheel, wheel_of

BATCH = 100
LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did.

    Args:
        published: tasks that are in the broker now.
        kept: tasks left in the store, by reason.
        back: tasks that producers have put on hold meanwhile.
    """

    published: int
    kept: dict[str, int]
    back: int = 0


def drain(app: Any, *, progress: Callable[[int], None] = lambda _count: None) -> Drained:
    """Publish everything that waits, each to its queue with its `eta`.

    Stop the app's installed producers first, or take `install` out of them: what they hold meanwhile is drained too,
    for as long as this runs. Workers may be up.

    Args:
        app: the Celery app, with the integration.
        progress: called with the number published so far, after each batch. Defaults to nothing.

    Raises:
        ConfigError: the app has no store.
        StoreError: it is away; what was published is settled or comes back when its lease ends.
        OperationalError: the broker is away; nothing was done.
    """
    wheel = wheel_of(app)
    if wheel is None or wheel.settings.url is None:
        raise ConfigError("drain: the app has no delay store; nothing was done")
    with short_connection(app) as broker:
        broker.ensure_connection(max_retries=1, interval_start=0)  # raises OperationalError
    line = BrokerConnection(app)
    drained = _Draining(wheel, line, progress)
    try:
        cursor: str | None = None
        while True:
            page = wheel.store.list_items("due", cursor=cursor, limit=BATCH)
            drained.page(page.found)
            cursor = page.cursor
            if cursor is None:
                return Drained(drained.published, drained.kept, drained.back())
    finally:
        line.close()


class _Draining:
    """One drain under way."""

    def __init__(self, wheel: Wheel, line: BrokerConnection, progress: Callable[[int], None]) -> None:
        self.published = 0
        self.kept: dict[str, int] = {}
        self._later = 0  # of those kept, what waits in the store
        self._claimed: set[str] = set()  # of the page under way
        self._store = wheel.store
        self._lead_ms = wheel.settings.lead
        self._line = line
        self._progress = progress

    def page(self, page: Sequence[Found]) -> None:
        """Make a page of waiting items due now (the ETA in the message stays), and publish what is due."""
        now_ms = self._store.now_ms()
        for shard in sorted({found.shard for found in page}):
            self._make_due(shard, [found.id for found in page if found.shard == shard and found.score_ms > now_ms])
            while self._batch(shard):
                self._progress(self.published)
            self._count_others([found for found in page if found.shard == shard])

    def back(self) -> int:
        """How many wait in the store beside those that were kept."""
        return max(0, self._store.counts().total("due") - self._later)

    def _make_due(self, shard: int, ids: Sequence[str]) -> None:
        now_ms = self._store.now_ms()
        ahead = [Alteration(item_id, "r", now_ms) for item_id in ids]
        for answer in self._store.execute([Call(shard, Change(ahead))] if ahead else []):
            if isinstance(answer, Exception):
                raise answer

    def _count_others(self, page: Sequence[Found]) -> None:
        """What is due a running worker's dispatcher may send before this one does: it is in the broker as well."""
        others = [found.id for found in page if found.id not in self._claimed]
        self._claimed.clear()
        if others:
            found = self._store.get(others, anywhere=True)
            self.published += sum(item is None or item.state == "leased" for item in found)
            self._progress(self.published)

    def _batch(self, shard: int) -> int:
        """Publish one batch; how many were claimed."""
        claim = self._store.claim(BATCH, lease_ms=LEASE_MS, shard=shard)
        self._claimed.update(item.id for item in claim.items)
        settlements: list[Settlement] = []
        readable: list[tuple[Claimed, HeldTask]] = []
        for item in claim.items:
            try:
                readable.append((item, decode(item.body)))
            except Rejected as error:
                self._keep("unreadable")
                settlements.append(Held(item.id, f"unreadable: {error}"))
        later_ms = claim.now_us // 1000 + LEASE_MS
        failures = self._line.send([task for _, task in readable])
        self.published += failures.count(None)
        for (item, task), failure in zip(readable, failures, strict=True):
            if failure is None:
                settlements.append(Done(item.id))
            else:
                self._keep(failure.reason)
                self._later += 1
                settlements.append(Next(item.id, max(task.eta_ms - self._lead_ms, later_ms)))
        if settlements:
            self._store.settle(claim, settlements)
        return len(claim.items)

    def _keep(self, reason: str) -> None:
        self.kept[reason] = self.kept.get(reason, 0) + 1
