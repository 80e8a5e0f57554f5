"""Conformance tests of attempt counts, raised alone or in the call that stores items."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

from wheel_sched.store.attempt_counts import ENDED
from wheel_sched.store.core.items import Item
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench


class AttemptCountCases:
    """Tests of attempt counts: they rise, expire, and can say that a message has succeeded."""

    def test_attempts_never_go_down(self, wide: Bench) -> None:
        """Until it expires, a count keeps the greatest number given, up to 998. A row with 0 attempts only reads it."""
        counts, later = wide.attempt_counts, wide.now_ms + MINUTE_MS
        assert counts.raise_to([("k", 3, later), ("l", 0, later)]) == [3, 0]
        assert counts.raise_to([("k", 1, later), ("l", 1, later), ("k", 0, later)]) == [3, 1, 3]
        assert counts.raise_to([("k", 5000, later)]) == [998]
        assert counts.raise_to([(f"k{n}", n, later) for n in range(900)]) == list(range(900))
        wide.clock.advance(MINUTE_MS + 1000)
        assert counts.raise_to([("k", 0, later), ("l", 2, wide.now_ms + MINUTE_MS)]) == [0, 2]
        wide.store.sweep()
        assert counts.raise_to([("l", 1, later), ("k", 0, 0)]) == [2, 0]

    def test_a_count_that_says_ended_keeps_saying_it(self, wide: Bench) -> None:
        """After `ENDED` is stored for a message, no number of attempts replaces it before the count expires."""
        counts, later = wide.attempt_counts, wide.now_ms + MINUTE_MS
        raised = [("k", 3, later), ("k", ENDED, later), ("k", 4, later), ("k", 0, 0)]
        assert counts.raise_to(raised) == [3, ENDED, ENDED, ENDED]
        wide.clock.advance(MINUTE_MS + 1000)
        assert counts.raise_to([("k", 0, 0)]) == [0]

    def test_raising_counts_removes_expired_ones(self, bench: Bench) -> None:
        """A call that raises counts also removes expired counts. The store then lists none, even without a sweep."""
        counts = bench.attempt_counts
        counts.raise_to([(f"old{n}", 1, bench.now_ms + 1_000) for n in range(400)])
        bench.clock.advance(MINUTE_MS)
        later = bench.now_ms + MINUTE_MS
        counts.raise_to([(f"new{n}", 1, later) for n in range(150)])
        counts.schedule([Item("x", bench.now_ms, b"")], [(f"more{n}", 1, later) for n in range(50)])
        assert len([*counts.all(0)]) == 200

    def test_items_are_stored_with_their_attempt_counts(self, wide: Bench) -> None:
        """`AttemptCounts.schedule` stores new items and raises all given counts, also those of items that exist."""
        counts, later = wide.attempt_counts, wide.now_ms + MINUTE_MS
        counts.raise_to([("b", 7, later), ("c", ENDED, later)])
        items = [Item(name, wide.now_ms, b"") for name in "abc"]
        raised = [("a", 1, later), ("b", 2, later), ("c", 3, later), ("d", 5_000, later)]
        assert counts.schedule(items[:2], raised[:2], token="t").accepted == 2
        assert counts.schedule(items[:2], raised[:2], token="t").accepted == 2  # a repeat after a lost reply
        assert counts.schedule(items, raised).accepted == 1
        assert counts.raise_to([(name, 0, 0) for name in "abcd"]) == [1, 7, ENDED, 998]
