"""SortedSet: members with whole-number scores, in order of (score, member bytes), as a Redis sorted set keeps them.

It has a list of sorted blocks and a dict of scores. Cost: `add` and `discard` search in O(log n) and shift at most one
block. The first score costs O(1). A page of k entries costs O(k), and O(k + n / BLOCK) when it starts at a rank. The
set has no lock: its owner has one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

BLOCK = 512  # a block of over twice as many entries is split; shifting half a block costs less than searching it

Entry = tuple[int, bytes]


class SortedSet:
    """A set of members. Each member has one score."""

    __slots__ = ("_blocks", "_lasts", "_scores")

    def __init__(self) -> None:
        self._scores: dict[bytes, int] = {}
        self._blocks: list[list[Entry]] = []
        self._lasts: list[Entry] = []  # the last entry of each block

    def __len__(self) -> int:
        return len(self._scores)

    def __contains__(self, member: bytes) -> bool:
        return member in self._scores

    def __repr__(self) -> str:
        return f"<SortedSet {len(self)} members, first score {self.first_score()}>"

    def score(self, member: bytes) -> int | None:
        return self._scores.get(member)

    def first_score(self) -> int:
        """The least score, -1 for an empty set (scores are times, never negative)."""
        return self._blocks[0][0][0] if self._blocks else -1

    def add(self, member: bytes, score: int) -> None:
        """Add a member, or give it another score."""
        if member in self._scores:
            self.discard(member)
        self._scores[member] = score
        entry = (score, member)
        lasts = self._lasts
        if not lasts:
            self._blocks.append([entry])
            lasts.append(entry)
            return
        if entry > lasts[-1]:
            at = len(lasts) - 1
            block = self._blocks[at]
            block.append(entry)
            lasts[at] = entry
        else:
            at = bisect_left(lasts, entry)
            block = self._blocks[at]
            insort(block, entry)
        if len(block) > 2 * BLOCK:
            self._blocks[at : at + 1] = [block[:BLOCK], block[BLOCK:]]
            lasts.insert(at, block[BLOCK - 1])

    def discard(self, member: bytes) -> bool:
        """Remove a member. Returns whether it was in the set."""
        score = self._scores.pop(member, None)
        if score is None:
            return False
        at = bisect_left(self._lasts, (score, member))
        block = self._blocks[at]
        del block[bisect_left(block, (score, member))]
        if not block:
            del self._blocks[at], self._lasts[at]
        else:
            self._lasts[at] = block[-1]
        return True

    def pop_first(self, count: int) -> None:
        """Remove the first `count` members."""
        while count > 0 and self._blocks:
            block = self._blocks[0]
            for _, member in block[:count]:
                del self._scores[member]
            if count >= len(block):
                count -= len(block)
                del self._blocks[0], self._lasts[0]
            else:
                del block[:count]
                return

    def up_to(self, score: int, limit: int) -> list[Entry]:
        """The first entries with at most this score, `limit` at most."""
        return self._page(self._entries(0, 0), score, limit)

    def between(self, least: int, greatest: int, limit: int) -> list[Entry]:
        """The first entries with a score in this range, both ends included; `limit` at most."""
        return self._page(self._at_or_after((least, b"")), greatest, limit)

    def behind(self, score: int, member: bytes, greatest: int, limit: int) -> list[Entry]:
        """The first entries that sort behind (score, member), up to the score `greatest`; `limit` at most.

        The set need not have the entry (score, member).
        """
        return self._page(self._at_or_after((score, member + b"\0")), greatest, limit)

    def by_rank(self, rank: int, count: int) -> list[Entry]:
        """Up to `count` entries, after the first `rank` entries."""
        page: list[Entry] = []
        for block in self._blocks:
            if rank < len(block):
                page += block[rank : rank + count - len(page)]
                if len(page) == count:
                    break
            rank = max(0, rank - len(block))
        return page

    def rank_behind(self, score: int, member: bytes) -> int:
        """How many entries sort before (score, member), this entry included."""
        entry = (score, member + b"\0")
        at = bisect_left(self._lasts, entry)
        before = sum(map(len, self._blocks[:at]))
        return before + (bisect_left(self._blocks[at], entry) if at < len(self._blocks) else 0)

    def _at_or_after(self, entry: Entry) -> Iterator[Entry]:
        at = bisect_left(self._lasts, entry)
        return self._entries(at, bisect_left(self._blocks[at], entry) if at < len(self._blocks) else 0)

    def _entries(self, block: int, index: int) -> Iterator[Entry]:
        for at in range(block, len(self._blocks)):
            yield from self._blocks[at][index:] if index else self._blocks[at]
            index = 0

    @staticmethod
    def _page(entries: Iterator[Entry], greatest: int, limit: int) -> list[Entry]:
        page: list[Entry] = []
        if limit > 0:
            for entry in entries:
                if entry[0] > greatest:
                    break
                page.append(entry)
                if len(page) == limit:
                    break
        return page
