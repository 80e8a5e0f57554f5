"""Conformance tests of paused topics, and of the reasons of held items."""

# ruff: noqa: S101 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Done, Held, Next
from wheel_sched.testing.store_conformance.bench import Bench


class TopicCases:
    """Tests of paused and resumed topics."""

    def test_a_paused_topic_waits_and_others_flow(self, bench: Bench) -> None:
        """Existing and new items of a paused topic are held. No claim takes them, and no marker wakes a dispatcher."""
        bench.put("a", topic="t")
        bench.put("b", topic="u")
        assert bench.store.pause("t") == 1
        mark = bench.store.windows(0)[0].mark
        assert bench.put("c", in_ms=-5, topic="t") == [Outcome.HELD]
        assert bench.store.windows(0)[0].mark == mark
        assert [i.id for i in bench.claim().items] == ["b"]
        assert (bench.one("a").reason, bench.one("c").score_ms) == ("paused", bench.now_ms - 5)
        counts = bench.store.counts()
        assert (counts.paused, counts.due_head_ms) == ({"t": bench.now_ms}, None)

    def test_pausing_twice_is_pausing_once(self, bench: Bench) -> None:
        """A second pause or resume changes nothing. The time of the first pause is kept."""
        began = bench.now_ms
        assert bench.store.pause("t") == 0
        bench.clock.advance(5)
        assert bench.store.pause("t") == 0
        assert bench.store.counts().paused == {"t": began}
        assert bench.store.resume("t") == bench.store.resume("t") == 0
        assert bench.store.counts().paused == {}
        assert bench.put("a", topic="t") == [Outcome.STORED]

    def test_resuming_brings_back_what_was_paused(self, bench: Bench) -> None:
        """Items held by the pause wait again with their due times. Items that a person holds stay held, whatever the
        person's words are."""
        bench.put("a", "b", "c", "e", in_ms=500, topic="t")
        bench.store.hold(["b"], "mine")
        bench.store.hold(["e"], "paused until Monday")
        bench.store.pause("t")
        bench.put("d", in_ms=None, topic="t")
        assert bench.store.resume("t") == 2
        assert [(f.id, f.score_ms - bench.now_ms) for f in bench.everything("due")] == [("a", 500), ("c", 500)]
        assert [bench.one(i).reason for i in "bde"] == ["mine", "parked", "held: paused until Monday"]

    def test_resuming_raises_the_marker(self, bench: Bench) -> None:
        """A resume writes the marker that wakes dispatchers: resumed items may be due before all others."""
        bench.put("a", topic="t")
        bench.store.pause("t")
        mark = bench.store.windows(0)[0].mark
        bench.store.resume("t")
        assert bench.store.windows(0)[0].mark != mark

    def test_the_overdue_are_spread(self, bench: Bench) -> None:
        """A resume spreads overdue items evenly and in order over the next `spread_ms`.

        Items that are not overdue keep their due time.
        """
        bench.put(*(f"i{n:02d}" for n in range(10)), in_ms=100, topic="t")
        bench.put("late", in_ms=5000, topic="t")
        bench.store.pause("t")
        bench.clock.advance(1000)
        assert bench.store.resume("t", spread_ms=1100) == 11
        expected = [(f"i{n:02d}", n * 100) for n in range(10)] + [("late", 4000)]
        assert [(f.id, f.score_ms - bench.now_ms) for f in bench.everything("due")] == expected

    def test_large_topics_are_paused_and_resumed_in_pages(self, wide: Bench) -> None:
        """A topic with 2,000 items is paused and resumed: none is lost or doubled, and other topics do not change."""
        wide.put(*(f"i{n}" for n in range(2000)), topic="t")
        wide.put(*(f"o{n}" for n in range(300)), topic="u")
        assert wide.store.pause("t") == 2000
        assert wide.store.counts().now == {("held", "t"): 2000, ("due", "u"): 300}
        assert wide.store.resume("t", spread_ms=60_000) == 2000
        assert wide.store.counts().now == {("due", "t"): 2000, ("due", "u"): 300}
        scores = [f.score_ms - wide.now_ms for f in wide.everything("due")]
        assert (min(scores), max(scores) < 60_000) == (0, True)
        assert len(set(scores)) > 600

    def test_what_returns_to_a_paused_topic_is_held(self, bench: Bench) -> None:
        """An item is held when it enters a paused topic by `Next`, lease end, release, requeue or replace."""
        bench.bury("dead", topic="t")
        bench.put("held", in_ms=None, topic="t")
        bench.put("other", in_ms=1, topic="u")
        bench.put("next", "lapses", topic="t")
        claim = bench.claim(lease_ms=1000)
        bench.store.pause("t")
        bench.store.settle(claim, [Next("next", bench.now_ms + 3)])
        bench.store.release(["held"], bench.now_ms)
        bench.store.requeue([("dead", bench.now_ms, None)])
        bench.store.replace(Item("other", bench.now_ms + 1, b"", "t"))
        bench.clock.advance(1000)
        assert bench.claim().items == []
        ids = ["next", "lapses", "held", "dead", "other"]
        assert [bench.one(i).reason for i in ids] == ["paused"] * 5
        bench.store.resume("t")
        assert len(bench.claim().items) == 5

    def test_pausing_leaves_what_is_in_flight(self, bench: Bench) -> None:
        """A pause does not change items in flight, which can still be settled."""
        bench.put("a", topic="t")
        claim = bench.claim()
        assert bench.store.pause("t") == 0
        assert bench.store.settle(claim, [Done("a")]).outcomes == [Outcome.DONE]

    def test_reasons_are_indexed_by_their_first_word(self, bench: Bench) -> None:
        """A resume releases items whose reason begins with the word "paused", but not "pausedish" or "(paused)"."""
        bench.put("a", "b", "c", topic="t")
        claim = bench.claim()
        bench.store.settle(claim, [Held("a", "paused by hand"), Held("b", "pausedish"), Held("c", "(paused)")])
        assert bench.store.resume("t") == 1
        assert bench.states("a", "b", "c") == ["due", "held", "held"]

    def test_a_paused_backlog_costs_other_topics_nothing(self, bench: Bench) -> None:
        """A pause takes the overdue items of its topic out of the waiting items, so claims need not skip them."""
        bench.put(*(f"i{n}" for n in range(1500)), topic="t")
        bench.store.pause("t")
        bench.put("x", topic="u")
        assert bench.store.windows(0)[0].dues == [("x", bench.now_ms)]
        assert [i.id for i in bench.claim(1).items] == ["x"]
