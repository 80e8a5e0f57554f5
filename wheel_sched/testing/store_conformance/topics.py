"""Cases: paused topics, held reasons, attempt records."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

from wheel_sched.store.backup import all_tries
from wheel_sched.store.core.items import ENDED, Done, Held, Item, Next, Outcome
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench


class TopicCases:
    """Pausing and resuming; remembering attempts."""

    def test_a_paused_topic_waits_and_others_flow(self, bench: Bench) -> None:
        """What is there and what comes is held; nothing of it is claimed; nothing wakes a dispatcher."""
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
        """And so is resuming; the time of the first pause stays."""
        began = bench.now_ms
        assert bench.store.pause("t") == 0
        bench.clock.advance(5)
        assert bench.store.pause("t") == 0
        assert bench.store.counts().paused == {"t": began}
        assert bench.store.resume("t") == bench.store.resume("t") == 0
        assert bench.store.counts().paused == {}
        assert bench.put("a", topic="t") == [Outcome.STORED]

    def test_resuming_brings_back_what_was_paused(self, bench: Bench) -> None:
        """With its dues; what was held for another reason stays held."""
        bench.put("a", "b", "c", in_ms=500, topic="t")
        bench.store.hold(["b"], "mine")
        bench.store.pause("t")
        bench.put("d", in_ms=None, topic="t")
        assert bench.store.resume("t") == 2
        assert [(f.id, f.score_ms - bench.now_ms) for f in bench.everything("due")] == [("a", 500), ("c", 500)]
        assert [bench.one(i).reason for i in "bd"] == ["mine", "parked"]

    def test_resuming_wakes_whoever_waits(self, bench: Bench) -> None:
        """What comes back may be due at once."""
        bench.put("a", topic="t")
        bench.store.pause("t")
        mark = bench.store.windows(0)[0].mark
        bench.store.resume("t")
        assert bench.store.windows(0)[0].mark != mark

    def test_the_overdue_are_spread(self, bench: Bench) -> None:
        """Evenly and in order over the interval, from now on; what is not overdue keeps its due."""
        bench.put(*(f"i{n:02d}" for n in range(10)), in_ms=100, topic="t")
        bench.put("late", in_ms=5000, topic="t")
        bench.store.pause("t")
        bench.clock.advance(1000)
        assert bench.store.resume("t", spread_ms=1100) == 11
        expected = [(f"i{n:02d}", n * 100) for n in range(10)] + [("late", 4000)]
        assert [(f.id, f.score_ms - bench.now_ms) for f in bench.everything("due")] == expected

    def test_large_topics_are_paused_and_resumed_in_pages(self, wide: Bench) -> None:
        """Thousands of items over several shards, none lost, none twice, others untouched."""
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
        """By its next, by its expired lease, by release, reschedule, requeue or a new topic: all of it waits."""
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
        """It may still be settled."""
        bench.put("a", topic="t")
        claim = bench.claim()
        assert bench.store.pause("t") == 0
        assert bench.store.settle(claim, [Done("a")]).outcomes == [Outcome.DONE]

    def test_reasons_are_indexed_by_their_first_word(self, bench: Bench) -> None:
        """Something held as "paused by hand" counts as paused; "pausedish" does not."""
        bench.put("a", "b", "c", topic="t")
        claim = bench.claim()
        bench.store.settle(claim, [Held("a", "paused by hand"), Held("b", "pausedish"), Held("c", "(paused)")])
        assert bench.store.resume("t") == 1
        assert bench.states("a", "b", "c") == ["due", "held", "held"]

    def test_a_paused_backlog_costs_other_topics_nothing(self, bench: Bench) -> None:
        """An overdue backlog of a paused topic is out of every claim's way after one pause."""
        bench.put(*(f"i{n}" for n in range(1500)), topic="t")
        bench.store.pause("t")
        bench.put("x", topic="u")
        assert bench.store.windows(0)[0].dues == [("x", bench.now_ms)]
        assert [i.id for i in bench.claim(1).items] == ["x"]

    def test_attempts_never_go_down(self, wide: Bench) -> None:
        """The greatest known wins until it expires; asking records nothing."""
        store, later = wide.store, wide.now_ms + MINUTE_MS
        assert store.remember([("k", 3, later), ("l", 0, later)]) == [3, 0]
        assert store.remember([("k", 1, later), ("l", 1, later), ("k", 0, later)]) == [3, 1, 3]
        assert store.remember([("k", 5000, later)]) == [998]
        assert store.remember([(f"k{n}", n, later) for n in range(900)]) == list(range(900))
        wide.clock.advance(MINUTE_MS + 1000)
        assert store.remember([("k", 0, later), ("l", 2, wide.now_ms + MINUTE_MS)]) == [0, 2]
        store.sweep()
        assert store.remember([("l", 1, later), ("k", 0, 0)]) == [2, 0]

    def test_a_record_that_has_ended_stays_so(self, wide: Bench) -> None:
        """No number of attempts says that it has ended, and none undoes it before its time."""
        store, later = wide.store, wide.now_ms + MINUTE_MS
        raised = [("k", 3, later), ("k", ENDED, later), ("k", 4, later), ("k", 0, 0)]
        assert store.remember(raised) == [3, ENDED, ENDED, ENDED]
        wide.clock.advance(MINUTE_MS + 1000)
        assert store.remember([("k", 0, 0)]) == [0]

    def test_records_past_their_time_go_as_others_come(self, bench: Bench) -> None:
        """However many there are: what is raised makes room for itself, between two sweeps as well."""
        store = bench.store
        store.remember([(f"old{n}", 1, bench.now_ms + 1_000) for n in range(400)])
        bench.clock.advance(MINUTE_MS)
        later = bench.now_ms + MINUTE_MS
        store.remember([(f"new{n}", 1, later) for n in range(150)])
        store.schedule([Item("x", bench.now_ms, b"")], tries=[(f"more{n}", 1, later) for n in range(50)])
        assert len([*all_tries(store, 0)]) == 200

    def test_items_come_with_their_attempt_records(self, wide: Bench) -> None:
        """Whatever these know: they are raised with the items, those that are there already included."""
        store, later = wide.store, wide.now_ms + MINUTE_MS
        store.remember([("b", 7, later), ("c", ENDED, later)])
        items = [Item(name, wide.now_ms, b"") for name in "abc"]
        tries = [("a", 1, later), ("b", 2, later), ("c", 3, later), ("d", 5_000, later)]
        assert store.schedule(items[:2], tries=tries[:2], token="t").accepted == 2
        assert store.schedule(items[:2], tries=tries[:2], token="t").accepted == 2  # a repeat after a lost reply
        assert store.schedule(items, tries=tries).accepted == 1
        assert store.remember([(name, 0, 0) for name in "abcd"]) == [1, 7, ENDED, 998]
