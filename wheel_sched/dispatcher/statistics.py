"""The work of a dispatcher, as counters and as events.

The dispatcher measures lateness from an item's due time until the store has settled it, by the store's clock. This
figure is for operators; tests and benchmarks measure lateness at the receiver. The buckets of lateness have upper
bounds from 1 ms to 1 h, as is usual with Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wheel_sched.escaping import logger_of
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Dead, Done, Held, Settlement

logger = logger_of("wheel_sched.dispatcher")

LATENESS_BUCKETS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000,
)  # fmt: skip


@dataclass(slots=True)
class DispatcherStats:
    """Counters since the start. Any thread may read them; only the dispatcher's owner thread changes them.

    `wheel_sched.observability.prometheus` describes each counter.
    """

    published: int = 0
    dead: int = 0
    held: int = 0
    failed: int = 0
    in_doubt: int = 0
    stale: int = 0
    claims: int = 0
    empty_claims: int = 0
    wake_ups: int = 0
    marks: int = 0
    sweeps: int = 0
    recovered: int = 0
    store_errors: int = 0
    reconnects: int = 0
    clock_jumps: int = 0
    in_flight: int = 0
    lateness_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    lateness_sum_ms: int = 0
    lateness_max_ms: int = 0

    def settled(
        self, items: Sequence[Claimed], settlements: Sequence[Settlement], outcomes: Sequence[Outcome], now_us: int
    ) -> None:
        """Count the outcomes of a batch that ended at `now_us` by the store's clock."""
        self.in_flight -= len(items)
        if outcomes.count(Outcome.DONE) == len(items) == [*map(type, settlements)].count(Done):  # the usual case
            self.published += len(items)
            self.late(now_us // 1000, [item.due_ms for item in items])
            return
        done_ms = []
        for item, settlement, outcome in zip(items, settlements, outcomes, strict=True):
            if outcome is Outcome.STALE:
                self.stale += 1
                continue
            if type(settlement) is Done:
                done_ms.append(item.due_ms)
            elif isinstance(settlement, Dead):
                self.dead += 1
            elif isinstance(settlement, Held):
                self.held += 1
        self.published += len(done_ms)
        self.late(now_us // 1000, done_ms)

    def late(self, now_ms: int, dues_ms: Iterable[int]) -> None:
        """Count the lateness of items that the store has settled at `now_ms`, by the store's clock."""
        for due_ms, count in Counter(dues_ms).items():  # items with the same due time are counted together
            lateness_ms = now_ms - due_ms
            self.lateness_counts[bisect_left(LATENESS_BUCKETS_MS, lateness_ms)] += count
            self.lateness_sum_ms += lateness_ms * count
            if lateness_ms > self.lateness_max_ms:
                self.lateness_max_ms = lateness_ms


def report_settled(
    on_settled: Callable[[Claimed, Settlement, int], None],
    settled: Iterable[tuple[Claimed, Settlement, Outcome]],
    now_ms: int,
) -> None:
    """Call `on_settled` for each item whose settlement was not stale. Errors of `on_settled` are logged, not raised."""
    for item, settlement, outcome in settled:
        if outcome is not Outcome.STALE:
            try:
                on_settled(item, settlement, now_ms)
            except Exception:
                logger.exception("dispatcher.on_settled_failed")
