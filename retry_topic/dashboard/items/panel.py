"""The overview's panel about messages: which are due next, and how late attempts start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retry_topic.history.latest import latest_attempts
from retry_topic.management.filters import ListedMessage, entry_of
from wheel_sched.dashboard import Dashboard, Panel
from wheel_sched.dashboard.charts import histogram
from wheel_sched.dashboard.rendering import quote_path
from wheel_sched.management.wording import one_line, relative
from wheel_sched.store import DelayStore

ATTEMPTS = 1_000
NEXT = 10
_FRESH_S = 5.0
_STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)


def lateness_rows(late_ms: Sequence[int]) -> list[tuple[str, int]]:
    """The rows of a histogram, as (label, count), from the lateness of each attempt; empty without attempts."""
    if not late_ms:
        return []
    rows, below = [], 0
    for step_ms in _STEPS_MS:
        up_to = sum(late <= step_ms for late in late_ms)
        rows.append((f"up to {step_ms} ms" if step_ms < 1_000 else f"up to {step_ms // 1_000} s", up_to - below))
        below = up_to
    return [*rows, ("later", len(late_ms) - below)]


def _lateness(dashboard: Dashboard) -> Sequence[tuple[str, int]]:
    """The rows of the histogram for the latest 1,000 attempts."""
    found = latest_attempts(dashboard.store, ATTEMPTS).rows
    return lateness_rows([max(0, one.started_ms - one.due_ms) for one in found if one.due_ms is not None])


def due_next(store: DelayStore, limit: int = NEXT) -> list[ListedMessage]:
    """The messages that are due next."""
    return [entry_of(found) for found in store.list_items("due", limit=limit).found]


def panel(dashboard: Dashboard) -> Panel:
    """The panel: messages that are due next, and the lateness of the latest attempts."""
    store = dashboard.store
    now_ms = store.now_ms()
    lines = [
        (relative(entry.at_ms or 0, now_ms), _line(entry), f"/items/{quote_path(entry.id)}")
        for entry in due_next(store)
    ]
    rows = dashboard.recent.get("lateness", _FRESH_S, lambda: _lateness(dashboard))
    about = "how late the latest recorded attempts started"
    chart = histogram(rows, about) if rows else None
    return Panel("Due next, and how late attempts start" if chart else "Due next", lines, chart=chart)


def _line(entry: ListedMessage) -> str:
    return one_line(f"{entry.id}  {entry.letter.topic}  {entry.error}".strip(), 160)


PANELS: tuple[Callable[[Dashboard], Panel | None], ...] = (panel,)
