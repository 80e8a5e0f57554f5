"""Conformance tests of dead letters, and of items that `restore` puts back."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from wheel_sched.store.core.items import Found, Item, Outcome
from wheel_sched.store.core.settle import Dead
from wheel_sched.testing.store_conformance.bench import DAY_MS, Bench

ABSENT, DONE, IN_FLIGHT, WRONG_STATE = Outcome.ABSENT, Outcome.DONE, Outcome.IN_FLIGHT, Outcome.WRONG_STATE


class DeadLetterCases:
    """Tests of requeue, delete, trim and restore."""

    def test_requeue_brings_a_dead_item_back(self, bench: Bench) -> None:
        """A requeued item has its old body, topic, refs and version, and the given due time."""
        bench.put("a", topic="t", refs=("r",))
        bench.store.settle(bench.claim(), [Dead("a", "x")])
        version = bench.one("a").version
        assert bench.store.requeue([("a", bench.now_ms + 5, None)]) == [DONE]
        found = bench.one("a")
        assert (found.state, found.score_ms, found.body, found.topic) == ("due", bench.now_ms + 5, b"a", "t")
        assert (found.version, found.reason, bench.store.find("r")) == (version, "", ["a"])
        assert bench.store.counts().happened("requeued") == 1
        assert bench.store.requeue([("a", bench.now_ms, None)]) == [WRONG_STATE]

    def test_requeue_can_repair(self, bench: Bench) -> None:
        """A requeue with a new body also sets the topic and the refs."""
        bench.put("a", topic="t", refs=("r",))
        bench.store.settle(bench.claim(), [Dead("a", "x")])
        assert bench.store.requeue([("a", bench.now_ms, Item("a", 0, b"fixed", "u", ("s",)))]) == [DONE]
        (item,) = bench.claim().items
        assert (item.body, item.topic, item.refs) == (b"fixed", "u", ("s",))
        assert (bench.store.find("r"), bench.store.find("s")) == ([], ["a"])

    def test_requeue_and_delete_are_for_the_dead(self, bench: Bench) -> None:
        """Requeue and delete change only dead items. For another item the outcome says why it was not changed."""
        bench.put("leased")
        claim = bench.claim()
        bench.put("due", in_ms=5)
        bench.put("held", in_ms=None)
        ids = ["due", "leased", "held", "none"]
        expected = [WRONG_STATE, IN_FLIGHT, WRONG_STATE, ABSENT]
        assert bench.store.requeue([(i, bench.now_ms, None) for i in ids]) == expected
        assert bench.store.delete_dead(ids) == expected
        assert bench.settle_all(claim) == [DONE]

    def test_deleting_is_for_good(self, bench: Bench) -> None:
        """A dead item that is deleted leaves with its body and refs, and its id may be used again."""
        bench.put("a", refs=("r",))
        bench.store.settle(bench.claim(), [Dead("a", "x")])
        assert bench.store.delete_dead(["a"]) == [DONE]
        assert (bench.states("a"), bench.store.find("r")) == ([None], [])
        assert bench.store.counts().happened("deleted") == 1
        assert bench.put("a") == [Outcome.STORED]

    def test_the_dead_are_capped_by_count(self, bench: Bench) -> None:
        """A sweep removes the oldest dead items above `dead_cap`. Without a cap it removes none."""
        for n in range(6):
            bench.clock.advance(1)
            bench.bury(f"i{n}")
        bench.store.sweep()
        assert bench.store.counts().sizes["dead"] == 6
        bench.store.sweep(dead_cap=2)
        assert [found.id for found in bench.everything("dead")] == ["i4", "i5"]
        assert bench.store.counts().happened("trimmed") == 4

    def test_the_dead_are_capped_by_age(self, bench: Bench) -> None:
        """A sweep removes dead items whose death is at least `dead_age_ms` ago, exact to the millisecond."""
        bench.bury("old")
        bench.clock.advance(1)
        bench.bury("young")
        bench.clock.advance(DAY_MS - 1)
        bench.store.sweep(dead_age_ms=DAY_MS)
        assert bench.states("old", "young") == [None, "dead"]

    def test_items_are_restored_as_they_were(self, bench: Bench) -> None:
        """A restore puts back state, score, version, reason and refs. Items that were in flight become due.

        Ids that exist are not changed.
        """
        bench.bury("dead", reason="12:x", topic="t")
        bench.put("leased", refs=("r",))
        claim = bench.claim(lease_ms=500)
        bench.put("due", in_ms=7, topic="u")
        bench.put("held", in_ms=9)
        bench.store.hold(["held"], "why: 1")
        ids = ["due", "leased", "held", "dead"]
        found = [bench.one(i) for i in ids]
        assert bench.store.restore(found) == 0
        bench.settle_all(claim)
        bench.store.cancel(["due", "held"])
        bench.store.delete_dead(["dead"])
        assert bench.states(*ids) == [None] * 4
        assert bench.store.restore([*found, *found]) == 4
        found[1].state, found[1].reason = "due", ""
        assert [bench.one(i) for i in ids] == found
        assert bench.store.find("r") == ["leased"]

    def test_a_restored_version_is_never_given_again(self, bench: Bench) -> None:
        """A record that is written after a restore gets a version that no record had before, restored ones included."""
        bench.store.restore([Found("a", "due", bench.now_ms, 5, "", b"restored")])
        seen = {5}
        for n in range(8):
            bench.put(f"i{n}")
            seen.add(bench.one(f"i{n}").version)
        assert len(seen) == 9
        assert bench.store.replace(Item("a", 0, b"new"), if_version=5) == DONE
        assert bench.one("a").version not in seen

    def test_a_letter_that_is_stored_dead_gets_a_version(self, bench: Bench) -> None:
        """A letter that was deleted and is buried again under its id has a version that no record had before."""
        seen = set()
        for _ in range(3):
            assert bench.store.bury([(Item("again", bench.now_ms, b"letter"), "why"), (Item("b", 0, b""), "why")]) >= 1
            seen.add(bench.one("again").version)
            assert bench.store.delete_dead(["again"]) == [DONE]
        bench.put("later")
        seen.add(bench.one("later").version)
        assert len(seen) == 4
        assert 0 not in seen

    def test_a_restored_item_raises_the_marker(self, bench: Bench) -> None:
        """A restored item that is due before all others writes the marker that wakes dispatchers."""
        mark = bench.store.windows(0)[0].mark
        bench.store.restore([Found("a", "due", bench.now_ms, 5, "", b"")])
        assert bench.store.windows(0)[0].mark != mark
