"""Conformance tests of the history: its entries are in order, and their number is limited."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench


class HistoryCases:
    """Tests of the history: appending, reading page by page, and the limit on the number of entries."""

    def test_entries_are_read_back_in_order_page_by_page(self, bench: Bench) -> None:
        """Entries come back byte for byte. Each page begins behind the page before it. A page at the end is empty."""
        history = bench.history
        assert history.read(0) == ("", [])
        entries = [b"\xff %d" % n for n in range(5)]
        assert history.append([("r", entry) for entry in entries], keep=1_000) == 5
        first = history.read(0, limit=3)
        assert first.entries == entries[:3]
        rest = history.read(0, first.last)
        assert rest.entries == entries[3:]
        assert history.read(0, rest.last) == ("", [])

    def test_the_newest_entries_are_read_page_by_page(self, bench: Bench) -> None:
        """`newest` gives the latest entries first. Each page ends before the page before it. A page at the start is
        empty."""
        history = bench.history
        assert history.newest(0) == ("", [])
        entries = [b"\xff %d" % n for n in range(5)]
        history.append([("r", entry) for entry in entries], keep=1_000)
        first = history.newest(0, limit=3)
        assert first.entries == entries[:1:-1]
        rest = history.newest(0, first.last)
        assert rest.entries == entries[1::-1]
        assert history.newest(0, rest.last) == ("", [])

    def test_the_oldest_entries_go(self, bench: Bench) -> None:
        """The history keeps the newest `keep` entries, and some hundred more at most: servers remove whole blocks."""
        history = bench.history
        for start in range(0, 2_000, 500):
            history.append([("r", b"%d" % (start + n)) for n in range(500)], keep=300)
        found: list[bytes] = []
        last = ""
        while (page := history.read(0, last)).entries:
            found += page.entries
            last = page.last
        assert 300 <= len(found) <= 600
        assert found == [b"%d" % n for n in range(2_000 - len(found), 2_000)]

    def test_entries_lie_in_the_shard_of_their_route(self, wide: Bench) -> None:
        """An entry is appended to the history of the shard that its route chooses, and nothing else changes."""
        entries = [(f"m{n}", b"%d" % n) for n in range(60)]
        assert wide.history.append(entries, keep=10_000) == 60
        found = [wide.history.read(shard).entries for shard in range(wide.store.shards)]
        assert sorted(entry for part in found for entry in part) == sorted(entry for _, entry in entries)
        assert all(found)
        assert not any(wide.store.counts().now.values())

    def test_history_and_attempt_counts_share_a_round_trip(self, wide: Bench) -> None:
        """`raise_to` raises counts and appends entries in one round trip. Without counts it only appends entries."""
        later = wide.now_ms + MINUTE_MS
        entries = [(f"m{n}", b"%d" % n) for n in range(60)]
        assert wide.attempt_counts.raise_to([("k", 3, later)], history=entries, keep=10_000) == [3]
        assert wide.attempt_counts.raise_to([], history=[("m0", b"more")], keep=10_000) == []
        found = [wide.history.read(shard).entries for shard in range(wide.store.shards)]
        assert sorted(entry for part in found for entry in part) == sorted([*(entry for _, entry in entries), b"more"])
        assert all(found)
        assert not any(wide.store.counts().now.values())

    def test_a_history_keeps_at_least_one(self, bench: Bench) -> None:
        """An `append` of entries with `keep=0` is refused. An `append` of no entries is accepted."""
        with pytest.raises(Rejected, match="expected keep"):
            bench.history.append([("r", b"x")], keep=0)
        assert bench.history.append([], keep=0) == 0
