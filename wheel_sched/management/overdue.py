"""Counts overdue items for `stats` and `doctor`: items that are due but not released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wheel_sched.extensions import installed, resolve
from wheel_sched.management.members import place
from wheel_sched.management.wording import span
from wheel_sched.store import DelayStore, LiveMember

NOTICED_MS = 5_000  # an item that is later than this shows that no dispatcher releases it
_COUNTED = 1_000  # at most this many items of each shard are counted


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


def is_noticed(late_ms: int) -> bool:
    """Whether an item is late enough to show that no dispatcher releases items."""
    return late_ms >= NOTICED_MS


def unreleased(topics: Sequence[str], members: Sequence[LiveMember], now_ms: int) -> tuple[str, str]:
    """Why overdue items are not released, as far as the live members show it, and what a user can do about it.

    A member that was killed counts as live until its lease ends. A dispatcher that does not announce itself is unknown
    here. So neither text is certain.

    Args:
        topics: the topics of the items that wait.
        members: the live members of the namespace.
        now_ms: the store's time.
    """
    releasing, start = [one for one in members if one.member.releases], _dispatchers_for(topics, members)
    if not releasing:
        return "no dispatcher releases them", f"start {start}; if one runs, see its log"
    newest = place(max(releasing, key=lambda one: one.seen_ms), now_ms)
    more = f" and {len(releasing) - 1:,} more" if len(releasing) > 1 else ""
    what = f"no dispatcher releases them, although {newest}{more} should"
    return what, f"see its log; if it has died, start {start}"


def overdue_problem(
    late: OverdueItems, topics: Sequence[str], members: Sequence[LiveMember], now_ms: int
) -> tuple[str, str] | None:
    """What is wrong when items are overdue, and what a user can do. None: they are not late enough to show a problem.

    Args:
        late: the overdue items.
        topics, members, now_ms: as for `unreleased`.
    """
    if not is_noticed(late.late_ms):
        return None
    why, fix = unreleased(topics, members, now_ms)
    return f"{late.words}: {why}", fix


def _dispatchers_for(topics: Sequence[str], members: Sequence[LiveMember]) -> str:
    """The programs to start, as text: those for these topics if an extension knows them, else all dispatchers."""
    extensions = installed().extensions
    known = [resolve(one.dispatcher_of)(topics, members) for one in extensions if one.dispatcher_of]
    return " or ".join(filter(None, known)) or installed().dispatchers
