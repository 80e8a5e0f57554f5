"""Conformance tests of `settle`, which ends the items of a claim."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import Claim
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settle, Settlement
from wheel_sched.testing.store_conformance.bench import Bench


class SettlingCases:
    """Tests of `settle`: done, next, held and dead, and only under the right claim."""

    def test_done_removes_an_item_and_its_refs(self, bench: Bench) -> None:
        """After `Done` the store has neither the item nor its refs. Only the counters of events show the item."""
        bench.put("a", refs=("r",))
        assert bench.settle_all(bench.claim()) == [Outcome.DONE]
        assert (bench.states("a"), bench.store.find("r")) == ([None], [])
        assert bench.store.counts().ever == {("accepted", ""): 1, ("completed", ""): 1}

    def test_next_keeps_the_record_unless_a_body_is_given(self, bench: Bench) -> None:
        """After a `Next` without a body the item has its old body, topic, refs and version."""
        bench.store.schedule([Item("a", bench.now_ms, b"one", "t", ("r",), "a")])
        before = bench.one("a")
        claim = bench.claim()
        assert bench.store.settle(claim, [Next("a", bench.now_ms + 50)]).outcomes == [Outcome.DONE]
        after = bench.one("a")
        assert (after.state, after.score_ms) == ("due", bench.now_ms + 50)
        assert (after.version, after.body, after.topic, after.refs, after.route) == (
            before.version,
            b"one",
            "t",
            ("r",),
            "a",
        )

    def test_next_with_a_body_is_a_successor(self, bench: Bench) -> None:
        """A `Next` with a body writes a new record with topic, refs and a greater version. Old refs are removed."""
        bench.put("a", topic="t", refs=("old", "both"))
        version = bench.one("a").version
        claim = bench.claim()
        successor = Next("a", bench.now_ms + 50, b"two", "u", ("both", "new"))
        assert bench.store.settle(claim, [successor]).outcomes == [Outcome.DONE]
        after = bench.one("a")
        assert (after.body, after.topic, after.refs) == (b"two", "u", ("both", "new"))
        assert after.version > version
        assert [bench.store.find(ref) for ref in ("old", "both", "new")] == [[], ["a"], ["a"]]
        assert bench.store.counts().now == {("due", "u"): 1}

    def test_an_empty_body_is_a_successor_too(self, bench: Bench) -> None:
        """A `Next` with the body b"" writes an empty body. With the body None it keeps the old body."""
        bench.put("a")
        bench.store.settle(bench.claim(), [Next("a", bench.now_ms, b"")])
        assert bench.one("a").body == b""

    def test_next_without_a_due_parks(self, bench: Bench) -> None:
        """After a `Next` without a due time, an item is held until a caller gives it a due time."""
        bench.put("a")
        bench.store.settle(bench.claim(), [Next("a", None)])
        assert (bench.one("a").state, bench.one("a").reason) == ("held", "parked")
        assert bench.store.reschedule(["a"], bench.now_ms) == [Outcome.DONE]
        assert [i.id for i in bench.claim().items] == ["a"]

    def test_held_keeps_its_reason(self, bench: Bench) -> None:
        """The store keeps the reason of a `Held` as one line, and cuts a long reason to about 500 characters."""
        bench.put("a", "b", "c")
        claim = bench.claim()
        reasons = ["circuit open: no route", "two\nlines", "\ud800 " + "x" * 1000]
        bench.store.settle(claim, [Held(i.id, reason) for i, reason in zip(claim.items, reasons, strict=True)])
        assert [bench.one(i).state for i in "abc"] == ["held"] * 3
        assert bench.one("a").reason == "circuit open: no route"
        assert bench.one("b").reason == "two lines"
        assert 400 < len(bench.one("c").reason) < 600
        assert bench.store.release(["a", "b", "c"], bench.now_ms) == [Outcome.DONE] * 3

    def test_dead_keeps_body_or_gets_a_new_one(self, bench: Bench) -> None:
        """A dead item has its old body or a new one, its reason and its time of death. Its refs still find it."""
        bench.put("a", "b", topic="t", refs=("r",))
        claim = bench.claim()
        bench.clock.advance(7)
        bench.store.settle(claim, [Dead("a", "no route"), Dead("b", "3:x", b"note", "u", ("s",))])
        a, b = bench.one("a"), bench.one("b")
        assert (a.state, a.body, a.topic, a.reason, a.score_ms) == ("dead", b"a", "t", "no route", bench.now_ms)
        assert (b.state, b.body, b.topic, b.reason, b.refs) == ("dead", b"note", "u", "3:x", ("s",))
        assert b.version > a.version
        assert (bench.store.find("r"), bench.store.find("s")) == (["a"], ["b"])
        assert bench.store.counts().now == {("dead", "t"): 1, ("dead", "u"): 1}

    def test_answers_stand_in_the_order_of_the_settlements(self, bench: Bench) -> None:
        """Outcomes are in the order of the settlements, for any mixture of done, next, held and dead.

        The outcome for an id that is not in the claim is STALE.
        """
        bench.put("a", "b", "c", "d", "e")
        claim = bench.claim()
        settlements: list[Settlement] = [
            Dead("d", "x"),
            Done("zz"),
            Next("b", bench.now_ms + 9),
            Done("a"),
            Held("c", "x"),
            Next("yy", None),
            Done("e"),
        ]
        done, stale = Outcome.DONE, Outcome.STALE
        assert bench.store.settle(claim, settlements).outcomes == [done, stale, done, done, done, stale, done]
        assert bench.states("a", "b", "c", "d", "e", "zz", "yy") == [None, "due", "held", "dead", None, None, None]

    def test_an_id_twice_in_one_call_settles_once(self, bench: Bench) -> None:
        """When a call has two settlements of one id, the second is STALE, and nothing is counted twice."""
        bench.put("a", "b", "c")
        claim = bench.claim()
        twice: list[Settlement] = [
            Done("a"),
            Done("a"),
            Dead("b", "x"),
            Held("b", "y"),
            Next("c", bench.now_ms),
            Next("c", None),
        ]
        assert bench.store.settle(claim, twice).outcomes == [Outcome.DONE, Outcome.STALE] * 3
        assert bench.states("a", "b", "c") == [None, "dead", "due"]

    def test_only_the_claim_that_holds_an_item_settles_it(self, bench: Bench) -> None:
        """A settlement under the number of another claim, or under a made-up one, changes nothing."""
        bench.put("a", "b")
        one, two = bench.claim(1), bench.claim(1)
        made_up = Claim(0, 99, 0, 1, None, None, [])
        for claim in (made_up, two):
            assert bench.store.settle(claim, [Done("a"), Dead("a", "x")]).outcomes == [Outcome.STALE] * 2
        assert bench.states("a", "b") == ["leased", "leased"]
        assert bench.settle_all(one) == bench.settle_all(two) == [Outcome.DONE]

    def test_a_cancelled_item_does_not_come_back(self, bench: Bench) -> None:
        """An item cancelled in flight leaves when it is settled as next or held. Done and dead take effect as usual."""
        bench.put("a", "b", "c", "d", refs=("r",))
        claim = bench.claim()
        assert bench.store.cancel(["a", "b", "c", "d"]) == [Outcome.CANCELLED] * 4
        assert bench.states("a", "b", "c", "d") == ["leased"] * 4
        settlements: list[Settlement] = [Done("a"), Next("b", bench.now_ms), Held("c", "x"), Dead("d", "x")]
        outcomes = bench.store.settle(claim, settlements).outcomes
        assert outcomes == [Outcome.DONE, Outcome.CANCELLED, Outcome.CANCELLED, Outcome.DONE]
        assert bench.states("a", "b", "c", "d") == [None, None, None, "dead"]
        assert bench.store.find("r") == ["d"]
        assert bench.store.counts().happened("cancelled") == 2

    def test_a_repeat_gives_the_first_answer(self, bench: Bench) -> None:
        """A repeat under the same token gives the first answer, even when the item has a newer claim."""
        bench.put("a", "b")
        claim = bench.claim()
        settlements: list[Settlement] = [Next("a", bench.now_ms), Done("b"), Done("c")]
        first = bench.store.settle(claim, settlements, token="t").outcomes
        newer = bench.claim()
        assert bench.store.settle(claim, settlements, token="t").outcomes == first
        assert first == [Outcome.DONE, Outcome.DONE, Outcome.STALE]
        assert bench.states("a") == ["leased"]
        assert bench.settle_all(newer) == [Outcome.DONE]
        assert bench.store.counts().happened("completed") == 2

    def test_the_cap_of_the_dead_trims_the_oldest(self, bench: Bench) -> None:
        """The call that adds dead items also removes the oldest ones above the cap, together with their refs."""
        for n in range(4):
            bench.clock.advance(1)
            bench.put(f"i{n}", refs=("r",))
            bench.store.settle(bench.claim(), [Dead(f"i{n}", "x")], dead_cap=3)
        assert [found.id for found in bench.everything("dead")] == ["i1", "i2", "i3"]
        assert sorted(bench.store.find("r")) == ["i1", "i2", "i3"]
        bench.put("j1", "j2", "j3")
        claim = bench.claim()
        bench.store.settle(claim, [Dead(i.id, "x") for i in claim.items], dead_cap=2)
        assert [found.id for found in bench.everything("dead")] == ["j2", "j3"]
        assert bench.store.counts().happened("trimmed") == 5

    def test_a_batch_has_at_most_500_settlements(self, bench: Bench) -> None:
        """Both the facade and the backend refuse a call with more than 500 settlements."""
        bench.put("a")
        claim = bench.claim()
        many = [Done("a")] * 501
        with pytest.raises(Rejected):
            bench.store.settle(claim, many)
        (answer,) = bench.store.execute([Call(0, Settle(claim.number, many))])
        assert isinstance(answer, Rejected)
        assert bench.states("a") == ["leased"]
        assert bench.store.settle(claim, []).outcomes == []

    def test_versions_only_grow(self, bench: Bench) -> None:
        """Every write of a record gives it a version that no record had before."""
        seen = []
        for n in range(3):
            bench.put("a", f"x{n}")
            seen.append(bench.one("a").version)
            bench.store.settle(bench.claim(), [Next("a", bench.now_ms, b"next")])
            seen.append(bench.one("a").version)
            bench.store.replace(Item("a", bench.now_ms, b"replaced"))
            seen.append(bench.one("a").version)
            bench.settle_all(bench.claim())
        assert seen == sorted(set(seen))
