"""Pages of the messages that a filter chooses, in several states. A page reads a bounded number of messages.

States come one after another. In each state, messages come in order of due time or time of death. A cursor consists of
the present state and the store's cursor in it. A page that has reached its bound can be short or even empty. Its cursor
then leads to the next page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retry_topic.connection import Connection
from retry_topic.management.filters import Filter, ListedMessage, entry_of
from wheel_sched.errors import Rejected
from wheel_sched.store import MAX_BATCH, Found, State
from wheel_sched.store.core.items import STATES
from wheel_sched.store.core.listing import cursor_behind

LOOKED_AT = 2_000
"""The greatest number of messages that a page reads, unless its caller gives another one."""

_PAGES = 40  # a call of the store's listing reads at most so many pages
_CALLS = 8  # the most calls that read no message, because the listing skips messages of other topics
_CHUNK = 50


@dataclass(frozen=True, slots=True)
class MatchingPage:
    """One page.

    Args:
        entries: the messages that match.
        looked: how many messages were read for this page.
        cursor: the cursor for the next page; None for the last page.
    """

    entries: Sequence[ListedMessage]
    looked: int
    cursor: str | None


def matching_page(
    connection: Connection,
    chosen: Filter,
    *,
    cursor: str | None = None,
    limit: int = 50,
    most: int = LOOKED_AT,
) -> MatchingPage:
    """Read one page.

    Args:
        connection: where the messages are stored.
        chosen: the filter. Its limit is ignored. If it names no states, all four are searched.
        cursor: the cursor of the page before. Defaults to None: the first page.
        limit: at most this many messages. Defaults to 50.
        most: the page ends after this many messages were read. Defaults to 2,000.

    Raises:
        Rejected: the cursor does not come from a page of this search.
    """
    states: list[State] = [state for state in STATES if state in (chosen.states or STATES)]
    at, behind = _read_cursor(cursor, states)
    found: list[ListedMessage] = []
    looked = calls = 0

    def matches(item: Found) -> bool:
        nonlocal looked
        looked += 1
        return chosen.matches(entry_of(item))

    while at < len(states):
        chunk = min(MAX_BATCH if limit > MAX_BATCH else _CHUNK, (most - looked) // _PAGES)
        if len(found) == limit or chunk < 1 or calls >= _CALLS:
            return MatchingPage(found, looked, f"{states[at]} {behind or ''}")
        seen, (least_ms, greatest_ms) = looked, chosen.bounds(states[at])
        page = connection.store.list_items(
            states[at],
            topic=chosen.topic,
            cursor=behind,
            limit=chunk,
            least_ms=least_ms,
            greatest_ms=greatest_ms,
            matches=matches,
        )
        calls += looked == seen
        taken = page.found[: limit - len(found)]
        found += map(entry_of, taken)
        if len(taken) < len(page.found):
            behind = cursor_behind(taken, behind, connection.store.shards)
        else:
            behind = page.cursor
            at += behind is None
    return MatchingPage(found, looked, None)


def _read_cursor(cursor: str | None, states: Sequence[State]) -> tuple[int, str | None]:
    """The index in `states` at which the page begins, and the store's cursor in this state."""
    if cursor is None:
        return 0, None
    name, _, behind = cursor.partition(" ")
    for place, state in enumerate(states):
        if state == name:
            return place, behind or None
    raise Rejected(f"expected a cursor from an earlier page of this search, got: {cursor[:80]!r}; nothing was changed")
