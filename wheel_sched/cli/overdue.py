"""Counts overdue items for `stats` and `doctor`: items that are due but not released."""

from __future__ import annotations

from dataclasses import dataclass

from wheel_sched.cli.extensions import installed
from wheel_sched.cli.output import span
from wheel_sched.store import DelayStore

NOTICED_MS = 5_000  # an item that is later than this shows that no dispatcher runs: one would release it within ms
_COUNTED = 1_000  # at most so many items of each shard are counted


@dataclass(frozen=True, slots=True)
class OverdueItems:
    """The items that are due and not released.

    Args:
        count: how many were counted.
        more: whether there may be more than `count`.
        late_ms: how late the first item is.
    """

    count: int
    more: bool
    late_ms: int

    @property
    def words(self) -> str:
        """The overdue items as text, such as `3 items are overdue, the first by 1m`."""
        items = "1 item is" if self.count == 1 and not self.more else f"{self.count:,}{'+' * self.more} items are"
        return f"{items} overdue, {'by' if self.count == 1 and not self.more else 'the first by'} {span(self.late_ms)}"


def overdue(store: DelayStore) -> OverdueItems:
    """Count the items that are due now, up to a thousand per shard. This costs one small read per shard."""
    windows = store.windows(0, _COUNTED)
    late = (part.now_us // 1000 - part.due_head_ms for part in windows if part.due_head_ms is not None)
    dues = [len(part.dues) for part in windows]
    return OverdueItems(sum(dues), max(dues, default=0) >= _COUNTED, max((0, *late)))


def start_hint() -> str:
    """What a user can do about overdue items."""
    return f"start {installed().dispatchers}; if one runs, see its log"
