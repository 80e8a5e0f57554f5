"""Conformance tests of recurring items: an item and its occurrences are settled and stored together."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import MAX_BATCH, Item, Outcome
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.core.settle import Dead, Done, Held, Settlement
from wheel_sched.store.recurring import MOST_OCCURRENCES, Recur
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench


class RecurringCases:
    """Tests of `Recurring.settle`: everything or nothing, only under the right claim and version, and once."""

    def test_an_occurrence_is_stored_with_the_next_due_time(self, bench: Bench) -> None:
        """The item has its next due time and body. Its occurrence is a new item that is due."""
        bench.store.schedule([Item("a", bench.now_ms, b"one", "t", ("r",))])
        claim = bench.claim()
        new = Item("a1", bench.now_ms, b"run", "q", ("s",), "a")
        next_ = Recur("a", bench.now_ms + MINUTE_MS, b"two", "t", ("r",), None, claim.items[0].version, [new])
        assert bench.recurring.settle(claim, [next_]).outcomes == [Outcome.DONE]
        assert (bench.one("a").score_ms, bench.one("a").body) == (bench.now_ms + MINUTE_MS, b"two")
        assert (bench.one("a1").state, bench.one("a1").body) == ("due", b"run")
        assert (bench.store.find("r"), bench.store.find("s")) == (["a"], ["a1"])
        assert bench.store.counts().now == {("due", "t"): 1, ("due", "q"): 1}
        assert [item.id for item in bench.claim().items] == ["a1"]

    def test_the_answer_names_the_due_time_of_the_occurrence(self, bench: Bench) -> None:
        """The first due time in the answer of `settle` is the occurrence's, so a dispatcher claims it at once."""
        bench.put("a")
        claim = bench.claim()
        settled = bench.recurring.settle(claim, [Recur("a", bench.now_ms + 9, occurrences=[Item("b", 5, b"")])])
        assert settled.due_head_ms == 5

    def test_other_settlements_may_be_in_the_same_call(self, bench: Bench) -> None:
        """Done, held and dead items are settled as by `settle`. Each recurring item gets its own occurrences."""
        bench.put("a", "b", "c", "d", "e")
        now_ms = bench.now_ms
        claim = bench.claim()
        settlements: list[Settlement] = [
            Recur("a", now_ms + 5, occurrences=[Item("a1", now_ms, b""), Item("a2", now_ms, b"")]),
            Done("b"),
            Held("c", "why"),
            Recur("d", None, occurrences=[Item("d1", None, b"")]),
            Dead("e", "broken"),
        ]
        assert bench.recurring.settle(claim, settlements).outcomes == [Outcome.DONE] * 5
        assert bench.states("a", "b", "c", "d", "e") == ["due", None, "held", "held", "dead"]
        assert bench.states("a1", "a2", "d1") == ["due", "due", "held"]

    def test_without_occurrences_it_is_a_next(self, bench: Bench) -> None:
        """A `Recur` without occurrences does what `Next` does."""
        bench.put("a")
        assert bench.recurring.settle(bench.claim(), [Recur("a", bench.now_ms + 5)]).outcomes == [Outcome.DONE]
        assert bench.one("a").score_ms == bench.now_ms + 5

    def test_after_another_claim_nothing_is_stored(self, bench: Bench) -> None:
        """When the lease ran out and the item was claimed again, the first claim stores no occurrence."""
        bench.put("a")
        first = bench.claim(lease_ms=1_000)
        bench.clock.advance(1_001)
        second = bench.claim()
        occurrence = Recur("a", bench.now_ms + 5, occurrences=[Item("b", bench.now_ms, b"")])
        assert bench.recurring.settle(first, [occurrence]).outcomes == [Outcome.STALE]
        assert bench.states("a", "b") == ["leased", None]
        assert bench.recurring.settle(second, [occurrence]).outcomes == [Outcome.DONE]
        assert bench.states("a", "b") == ["due", "due"]

    def test_an_item_that_was_changed_is_due_again_and_stores_nothing(self, bench: Bench) -> None:
        """An item that was replaced in flight waits with its new record, and is due now. No occurrence is stored."""
        bench.put("a", topic="t")
        claim = bench.claim()
        version = claim.items[0].version
        bench.store.replace(Item("a", bench.now_ms + MINUTE_MS, b"new", "u", ("r",)), in_flight=True)
        occurrence = Recur("a", bench.now_ms + 5, b"old", version=version, occurrences=[Item("b", bench.now_ms, b"")])
        assert bench.recurring.settle(claim, [occurrence]).outcomes == [Outcome.OTHER_VERSION]
        assert bench.states("a", "b") == ["due", None]
        assert (bench.one("a").body, bench.one("a").topic) == (b"new", "u")
        (again,) = bench.claim().items
        assert (again.id, again.body, again.refs) == ("a", b"new", ("r",))

    def test_a_cancelled_item_stores_nothing(self, bench: Bench) -> None:
        """An item that was cancelled in flight leaves, and its occurrence is not stored."""
        bench.put("a", refs=("r",))
        claim = bench.claim()
        assert bench.store.cancel(["a"]) == [Outcome.CANCELLED]
        occurrence = Recur("a", bench.now_ms + 5, b"x", version=99, occurrences=[Item("b", bench.now_ms, b"")])
        assert bench.recurring.settle(claim, [occurrence]).outcomes == [Outcome.CANCELLED]
        assert bench.states("a", "b") == [None, None]

    def test_an_occurrence_that_exists_is_not_changed(self, bench: Bench) -> None:
        """An occurrence whose id exists stays as it is. The item waits for its next due time."""
        bench.put("a")
        claim = bench.claim()
        bench.put("b", in_ms=77)
        occurrence = Recur("a", bench.now_ms + 5, occurrences=[Item("b", bench.now_ms, b"other")])
        assert bench.recurring.settle(claim, [occurrence]).outcomes == [Outcome.DONE]
        assert (bench.one("b").body, bench.one("b").score_ms) == (b"b", bench.now_ms + 77)

    def test_a_repeat_stores_nothing_and_answers_alike(self, bench: Bench) -> None:
        """A repeat with the same token gives the first answer, also when the occurrence has left meanwhile."""
        bench.put("a")
        claim = bench.claim()
        settlements = [Recur("a", bench.now_ms + MINUTE_MS, occurrences=[Item("b", bench.now_ms, b"")])]
        first = bench.recurring.settle(claim, settlements, token="again")
        bench.store.settle(bench.claim(), [Done("b")])
        second = bench.recurring.settle(claim, settlements, token="again")
        assert second.outcomes == first.outcomes == [Outcome.DONE]
        assert bench.states("a", "b") == ["due", None]

    def test_an_occurrence_of_a_paused_topic_is_held(self, bench: Bench) -> None:
        """The occurrence of a paused topic is held until the topic resumes."""
        bench.put("a")
        bench.store.pause("q")
        occurrence = Recur("a", bench.now_ms + 5, occurrences=[Item("b", bench.now_ms, b"", "q")])
        bench.recurring.settle(bench.claim(), [occurrence])
        assert bench.states("a", "b") == ["due", "held"]

    def test_a_malformed_occurrence_settles_nothing(self, bench: Bench) -> None:
        """A call with too many occurrences, a malformed one, or one of another shard is refused. It settles nothing."""
        bench.put("a")
        claim = bench.claim()
        many = [Item(f"b{number}", 5, b"") for number in range(MOST_OCCURRENCES + 1)]
        shards = bench.store.shards
        elsewhere = [Item(name, 5, b"") for name in "bcdefgh" if shard_of(name, shards) != shard_of("a", shards)]
        for wrong in (many, [Item("b", -1, b"", "", (), "a")], elsewhere[:1]):
            if wrong:
                with pytest.raises(Rejected, match=r"nothing was (settled|stored)"):
                    bench.recurring.settle(claim, [Recur("a", 5, occurrences=wrong)])
        with pytest.raises(Rejected, match="nothing was settled"):
            bench.recurring.settle(claim, [Done("x")] * (MAX_BATCH + 1))
        assert bench.states("a") == ["leased"]

    def test_a_full_call(self, bench: Bench) -> None:
        """One call settles as many recurring items, with as many occurrences, as a call may have."""
        names = [f"a{number}" for number in range(MAX_BATCH // MOST_OCCURRENCES)]
        bench.put(*names)
        claim = bench.claim()
        now_ms = bench.now_ms
        settlements = [
            Recur(name, now_ms + 5, b"x", occurrences=[Item(f"{name}.{n}", now_ms, b"") for n in range(5)])
            for name in names
        ]
        assert set(bench.recurring.settle(claim, settlements).outcomes) == {Outcome.DONE}
        assert bench.store.counts().total("due") == len(names) * 6
