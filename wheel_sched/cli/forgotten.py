"""What nobody attends to, for `stats`, `ls` and `doctor`: items no dispatcher releases, retries no service takes in."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from wheel_sched.cli.output import span
from wheel_sched.config import Settings
from wheel_sched.store import DelayStore

NOTICED_MS = 5_000  # a dispatcher releases within milliseconds; what is a little late may be on its way
_COUNTED = 1_000  # in each shard

MEND = "start `wheel-sched serve GROUP` (of Celery a worker, of APScheduler a scheduler); if one runs, see its log"


@dataclass(frozen=True, slots=True)
class OverdueItems:
    """How many are due and not released, and since when the first one is.

    Args:
        count: of them, as far as they were counted.
        more: whether there are more than that.
        late_ms: how late the first one is.
    """

    count: int
    more: bool
    late_ms: int

    @property
    def words(self) -> str:
        """`3 items are overdue, the first by 1m`."""
        items = "1 item is" if self.count == 1 and not self.more else f"{self.count:,}{'+' * self.more} items are"
        return f"{items} overdue, {'by' if self.count == 1 and not self.more else 'the first by'} {span(self.late_ms)}"


def overdue(store: DelayStore) -> OverdueItems:
    """What is due now, counted up to a thousand a shard; one small read a shard."""
    windows = store.windows(0, _COUNTED)
    late = (part.now_us // 1000 - part.due_head_ms for part in windows if part.due_head_ms is not None)
    dues = [len(part.dues) for part in windows]
    return OverdueItems(sum(dues), max(dues, default=0) >= _COUNTED, max((0, *late)))


NOT_LOOKED_AT = "not looked at on Kafka: `wheel-sched kafka lag GROUP` tells how far the intake is"


def untaken(client: Any, settings: Settings) -> list[Any] | None:
    """`retry_topic.cli.untaken.untaken_at`: the retry service is a guest here, and is not imported by name."""
    found: list[Any] | None = import_module("retry_topic.cli.untaken").untaken_at(client, settings)
    return found
