"""Empties the store before an uninstallation: sends every waiting task to the broker as stock Celery would have done.

The `eta` stays in the message, so the tasks then wait in the memory of workers. Like a dispatcher, the drain claims
items under a lease, publishes them, waits for the confirms and settles them. So an interrupted drain loses nothing,
and can be repeated. Its messages have the mark of messages that the store has sent, so that running workers do not
put them back into the store. At the end, the drain counts the tasks that producers have held during the drain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.items import Found
from wheel_sched.store.core.settle import Done, Held, Next, Settlement
from wheel_sched_celery.beat.apart import is_task, tasks_alone
from wheel_sched_celery.beat.entry import TOPIC
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import decode
from wheel_sched_celery.release.broker_connection import BrokerConnection, short_connection
from wheel_sched_celery.wheel import Wheel, wheel_with_store

BATCH = 100
LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did.

    Args:
        published: number of tasks that the broker has now; counts also those that were cancelled during the drain.
        kept: number of tasks that stayed in the store although the drain claimed them, by reason.
        back: number of other tasks that wait in the store now: producers have held them during the drain.
    """

    published: int
    kept: dict[str, int]
    back: int = 0


def drain(app: Any, *, progress: Callable[[int], None] = lambda _count: None) -> Drained:
    """Publish every waiting task to its queue, with its `eta`. Held and dead tasks stay in the store, uncounted.

    First stop the app's producers, or remove `install` from them: otherwise they hold more tasks during the drain.
    Workers may be up.

    Args:
        app: the Celery app, with the integration.
        progress: called after each batch, with the number of tasks published so far. Defaults to nothing.

    Raises:
        ConfigError: the app has no store.
        StoreError: the store is away. Tasks that were published but not settled are published again later.
        OperationalError: the broker is away; nothing was done.
    """
    wheel = wheel_with_store(app)
    if wheel is None:
        raise ConfigError("drain: the app has no delay store; nothing was done")
    with short_connection(app) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)  # raises OperationalError
    broker = BrokerConnection(app)
    drained = _Draining(wheel, broker, progress)
    try:
        cursor: str | None = None
        while True:
            page = wheel.store.list_items("due", cursor=cursor, limit=BATCH, matches=is_task)
            drained.page(page.found)
            cursor = page.cursor
            if cursor is None:
                return Drained(drained.published, drained.kept, drained.back())
    finally:
        broker.close()


class _Draining:
    """The state of one drain."""

    def __init__(self, wheel: Wheel, broker: BrokerConnection, progress: Callable[[int], None]) -> None:
        self.published = 0
        self.kept: dict[str, int] = {}
        self._until_ms: int | None = None  # it claims what was due by then; None: what is due now
        self._later = 0  # number of kept tasks that wait in the store
        self._claimed: set[str] = set()  # ids of the page under way
        self._store = wheel.store
        self._lead_ms = wheel.settings.lead
        self._broker = broker
        self._progress = progress

    def page(self, page: Sequence[Found]) -> None:
        """Make the items of a page due now, and publish them. The ETA in their messages stays."""
        now_ms = self._store.now_ms()
        for shard in sorted({found.shard for found in page}):
            mine = [found for found in page if found.shard == shard]
            while True:
                until_ms = self._until_ms
                at_ms = now_ms if until_ms is None else min(now_ms, until_ms)
                ahead = [found.id for found in mine if found.score_ms > at_ms and found.id not in self._claimed]
                self._make_due(shard, ahead, at_ms)
                while self._batch(shard):
                    self._progress(self.published)
                if self._until_ms == until_ms:
                    break
            self._count_others(mine)

    def back(self) -> int:
        """How many tasks wait in the store, without those that the drain kept."""
        return max(0, tasks_alone(self._store.counts()).total("due") - self._later)

    def _make_due(self, shard: int, ids: Sequence[str], at_ms: int) -> None:
        ahead = [Alteration(item_id, "r", at_ms) for item_id in ids]
        for answer in self._store.execute([Call(shard, Change(ahead))] if ahead else []):
            if isinstance(answer, Exception):
                raise answer

    def _count_others(self, page: Sequence[Found]) -> None:
        """Count the tasks of a page that the dispatcher of a running worker has sent before this drain could."""
        others = [found.id for found in page if found.id not in self._claimed]
        self._claimed.clear()
        if others:
            found = self._store.get(others, anywhere=True)
            self.published += sum(item is None or item.state == "leased" for item in found)
            self._progress(self.published)

    def _batch(self, shard: int) -> int:
        """Publish one batch, and return how many items were claimed."""
        claim = self._store.claim(BATCH, lease_ms=LEASE_MS, shard=shard, until_ms=self._until_ms)
        self._give_back(claim, [item for item in claim.items if item.topic == TOPIC])
        self._claimed.update(item.id for item in claim.items)
        settlements: list[Settlement] = []
        readable: list[tuple[Claimed, HeldTask]] = []
        later_ms = claim.now_us // 1000 + LEASE_MS
        for item in claim.items:
            if item.topic == TOPIC:
                continue
            try:
                readable.append((item, decode(item.body)))
            except Rejected as error:
                self._keep("unreadable")
                settlements.append(Held(item.id, f"unreadable: {error}"))
        failures = self._broker.send([task for _, task in readable])
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

    def _give_back(self, claim: Claim, entries: Sequence[Claimed]) -> None:
        """Leave entries of the schedule to the dispatchers of workers, at once and before any task is published.

        From then on this drain claims only items that are due before these entries. It gives the tasks of its later
        pages such an early due time.
        """
        if entries:
            self._store.settle(claim, [Next(item.id, item.due_ms) for item in entries])
            self._until_ms = min(item.due_ms for item in entries) - 1

    def _keep(self, reason: str) -> None:
        self.kept[reason] = self.kept.get(reason, 0) + 1
