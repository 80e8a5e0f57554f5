"""Cases: the log, which is bounded, in order, and beside everything else."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench


class LogCases:
    """Appending, paging, bounds."""

    def test_entries_are_read_back_in_order_page_by_page(self, bench: Bench) -> None:
        """Byte for byte; a page goes on behind the last one; an empty log ends at once."""
        store = bench.store
        assert store.read_log(0) == ("", [])
        entries = [b"\xff %d" % n for n in range(5)]
        assert store.log([("r", entry) for entry in entries], keep=1_000) == 5
        first = store.read_log(0, limit=3)
        assert first.entries == entries[:3]
        rest = store.read_log(0, first.last)
        assert rest.entries == entries[3:]
        assert store.read_log(0, rest.last) == ("", [])

    def test_the_oldest_entries_go(self, bench: Bench) -> None:
        """About as many are kept as asked for: servers drop whole blocks of some hundred."""
        store = bench.store
        for start in range(0, 2_000, 500):
            store.log([("r", b"%d" % (start + n)) for n in range(500)], keep=300)
        found: list[bytes] = []
        last = ""
        while (page := store.read_log(0, last)).entries:
            found += page.entries
            last = page.last
        assert 300 <= len(found) <= 600
        assert found == [b"%d" % n for n in range(2_000 - len(found), 2_000)]

    def test_a_log_travels_with_attempts_and_changes_nothing_else(self, wide: Bench) -> None:
        """Each entry lies in the shard of its route; the answers of `remember` are its own."""
        store = wide.store
        later = wide.now_ms + MINUTE_MS
        entries = [(f"m{n}", b"%d" % n) for n in range(60)]
        assert store.remember([("k", 3, later)], logged=entries, keep=10_000) == [3]
        assert store.remember([], logged=[("m0", b"more")], keep=10_000) == []
        found = [store.read_log(shard).entries for shard in range(store.shards)]
        assert sorted(entry for part in found for entry in part) == sorted([*(entry for _, entry in entries), b"more"])
        assert all(found)
        assert not any(store.counts().now.values())

    def test_a_log_keeps_at_least_one(self, bench: Bench) -> None:
        """Nothing is appended to a log of nothing."""
        with pytest.raises(Rejected, match="expected keep"):
            bench.store.log([("r", b"x")], keep=0)
        assert bench.store.log([], keep=0) == 0
