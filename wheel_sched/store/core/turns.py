"""Lets topics take turns while many items are overdue: the twin of `overdue_of_others` in `prelude_claiming.lua`.

The comments of `prelude_claiming.lua` explain the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol

from wheel_sched.store.core.sorted_set import Entry, SortedSet

LOOK, NEWEST = 150, 50  # how many items a claim looks at: from where the last claim stopped, and among the newest
TIMES = 2  # a claim that wants n items looks at TIMES * n items of each of the two kinds at most
LOOK_BYTES, PART = 65_536, 50  # it reads PART items at a time, until it has read LOOK_BYTES of bodies
LEAST = 8  # a smaller claim takes items by due time alone


class TopicAndBody(Protocol):
    """The part of an item that `Turns` needs."""

    topic: str
    body: bytes


class Turn(NamedTuple):
    """Where the last search ended. It looks for items of topics that are missing among the first items of a claim.

    `left`: the search found an item that the claim did not take.
    """

    left: bool
    score_ms: int
    key: bytes


class Turns:
    """Decides which items of other topics a claim takes while many items of its topics are overdue.

    Args:
        due: the waiting items.
        ready: the waiting items of fair topics whose time has come.
        items: items of all states, by key.
        counts: number of items by state and topic.
        paused: the paused topics.
    """

    def __init__(
        self,
        due: SortedSet,
        ready: SortedSet,
        items: Mapping[bytes, TopicAndBody],
        counts: Mapping[tuple[str, str], int],
        paused: Container[str],
    ) -> None:
        self._due, self._ready = due, ready
        self._items, self._counts, self._paused = items, counts, paused
        self._turn: Turn | None = None

    def overdue_of_others(self, found: list[Entry], limit: int, until_ms: int) -> list[Entry]:
        """Overdue items of topics that have no item in `found`; at most `limit` / 2. Leaves out paused topics.

        `found`: the first `limit` overdue entries by due time.
        """
        due, items = self._due, self._items
        overdue = due.rank_behind(until_ms + 1, b"")
        if limit < LEAST or overdue <= 2 * limit:
            return []
        present = {items[key].topic for _, key in found}
        if len(due) + len(self._ready) <= sum(self._counts.get(("due", topic), 0) for topic in present):
            return []
        left, rank = False, limit
        if self._turn is not None:
            left = self._turn.left
            rank = max(limit, due.rank_behind(self._turn.score_ms, self._turn.key))
        if rank >= overdue:
            if not left:
                return []
            left, rank = False, limit
        stop = min(rank + min(LOOK, TIMES * limit), overdue)
        looked = self._within_bytes(due.by_rank(rank, stop - rank))
        first = max(stop, overdue - min(NEWEST, limit))
        newest = self._within_bytes(due.by_rank(first, overdue - first)) if first < overdue else []
        others = [
            entry
            for entry in looked + newest
            if (topic := items[entry[1]].topic) not in present and topic not in self._paused
        ]
        wants = Counter(items[key].topic for _, key in others)
        shares = shares_of(wants, limit // 2)
        chosen = []
        for entry in others:
            topic = items[entry[1]].topic
            if shares[topic]:
                shares[topic] -= 1
                chosen.append(entry)
            elif entry <= looked[-1]:
                left = True
        self._turn = Turn(left, *looked[-1])
        return chosen

    def _within_bytes(self, page: list[Entry]) -> list[Entry]:
        looked = total = 0
        while looked < len(page) and total < LOOK_BYTES:
            part = page[looked : looked + PART]
            total += sum(len(self._items[key].body) for _, key in part)
            looked += len(part)
        return page[:looked]


def shares_of(wants: Mapping[str, int], places: int) -> dict[str, int]:
    """Divide the positions of a claim between topics. `places` is the number of positions.

    The topics take turns. Each topic gets one position a turn, until it has as many as it wants.
    """
    shares = dict.fromkeys(wants, 0)
    while places:
        hungry = [topic for topic in wants if shares[topic] < wants[topic]][:places]
        if not hungry:
            break
        for topic in hungry:
            shares[topic] += 1
        places -= len(hungry)
    return shares
