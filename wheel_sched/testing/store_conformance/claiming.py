"""Conformance tests of claims and leases, of fencing, and of items whose lease ends too often."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected, StaleEpoch
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Done, Next
from wheel_sched.testing.store_conformance.bench import Bench, done


class ClaimingCases:
    """Tests of claims, leases and their fencing."""

    def test_nothing_is_claimed_before_its_due(self, bench: Bench) -> None:
        """One millisecond before its due time an item is not claimed; at its due time it is."""
        bench.put("a", in_ms=1000)
        bench.clock.advance(999)
        assert bench.claim().items == []
        bench.clock.advance(1)
        assert [item.id for item in bench.claim().items] == ["a"]

    def test_claims_go_by_due_and_then_by_the_bytes_of_the_id(self, bench: Bench) -> None:
        """The earliest item comes first. Among equal due times the order is that of the bytes of the ids."""
        now = bench.now_ms
        dues = [("b", now), ("Z", now), ("a", now), ("é", now), ("later", now - 1), ("\udcff", now), ("aa", now)]
        bench.store.schedule([Item(i, due, b"") for i, due in dues])
        assert [i.id for i in bench.claim(4).items] == ["later", "Z", "a", "aa"]
        assert [i.id for i in bench.claim(4).items] == ["b", "é", "\udcff"]

    def test_a_topic_behind_a_burst_gets_its_turn(self, bench: Bench) -> None:
        """Three items are due after 2,000 items of another topic. They are claimed, in order, long before all 2,000."""
        bench.put(*(f"b{n:04d}" for n in range(2000)), topic="burst")
        bench.put("c", "d", "e", in_ms=1, topic="other")
        bench.clock.advance(1)
        claims = [[item.id for item in bench.claim(80).items] for _ in range(12)]
        assert [i for ids in claims for i in ids if i in "cde"] == ["c", "d", "e"]
        rest = bench.store.counts().now["due", "burst"]
        assert rest == 2000 - (12 * 80 - 3)
        assert all(len(ids) == 80 for ids in claims)
        burst = [i for ids in claims for i in ids if i not in "cde"]
        assert burst == [f"b{n:04d}" for n in range(len(burst))]

    def test_topics_behind_a_burst_share_its_turns(self, bench: Bench) -> None:
        """A burst of one topic, 150 items of a second and one item of a third are due, in this order.

        The item of the third topic is claimed before all 150 are claimed.
        """
        bench.put(*(f"b{n:03d}" for n in range(500)), topic="burst")
        bench.put(*(f"m{n:03d}" for n in range(150)), in_ms=1, topic="many")
        bench.put("single", in_ms=2, topic="one")
        bench.clock.advance(2)
        ids: list[str] = []
        while "single" not in ids:
            assert len(ids) < 320, ids
            ids += [item.id for item in bench.claim(40).items]
        many = [i for i in ids if i[0] == "m"]
        assert many == sorted(many)
        assert 0 < len(many) < 150

    def test_a_later_turn_takes_what_an_earlier_one_left_behind(self, bench: Bench) -> None:
        """A claim looks for topics that its first items lack. It goes on after the place where the last claim stopped.

        At the end of the overdue items the search begins again, if it has left an item of such a topic behind.
        """
        bench.put(*(f"b{n:04d}" for n in range(3000)), topic="burst")
        bench.put(*(f"m{n:03d}" for n in range(60)), in_ms=1, topic="many")
        bench.clock.advance(1)
        ids = [item.id for _ in range(60) for item in bench.claim(40).items]
        assert sum(i[0] == "m" for i in ids) == 60
        assert bench.store.counts().now["due", "burst"] == 3060 - 2400
        bench.put("late", in_ms=1, topic="many")
        bench.clock.advance(1)
        assert "late" in [item.id for item in bench.claim(40).items]

    def test_a_topic_that_is_paused_has_no_turn(self, bench: Bench) -> None:
        """Items of a paused topic are held, so a claim contains only items of the other topic."""
        bench.put(*(f"b{n:03d}" for n in range(200)), topic="burst")
        bench.store.pause("other")
        bench.put("c", topic="other")
        assert [item.id[0] for item in bench.claim(40).items] == ["b"] * 40

    def test_every_answer_has_the_same_heads(self, bench: Bench) -> None:
        """Claim, settle, window and sweep return the same earliest due time and the same earliest lease end."""
        bench.put("a")
        bench.put("b", in_ms=700)
        claim = bench.claim(lease_ms=5000)
        heads = (bench.now_ms + 700, bench.now_ms + 5000)
        assert (claim.due_head_ms, claim.lease_head_ms) == heads
        assert [(w.due_head_ms, w.lease_head_ms, w.dues) for w in bench.store.windows(10_000)] == [
            (*heads, [("b", bench.now_ms + 700)])
        ]
        (swept,) = bench.store.sweep()
        assert (swept.due_head_ms, swept.lease_head_ms, swept.recovered) == (*heads, 0)
        settled = bench.store.settle(claim, [Done("a")])
        assert (settled.due_head_ms, settled.lease_head_ms) == (bench.now_ms + 700, None)
        assert bench.store.cancel(["b"]) == [Outcome.DONE]
        assert bench.claim().due_head_ms is None

    def test_no_id_of_any_length_drops_out_of_a_claim(self, bench: Bench) -> None:
        """Items with ids of any length, from 1 to 512 bytes, can be claimed and settled together."""
        ids = ["~" * length for length in (1, 63, 64, 65, 96, 128, 511, 512)] + [f"m{n}" for n in range(8)]
        bench.store.schedule([Item(i, bench.now_ms, b"") for i in ids])
        claim = bench.claim(100)
        assert sorted(item.id for item in claim.items) == sorted(ids)
        assert [found.state for found in bench.store.get(ids) if found is not None] == ["leased"] * len(ids)
        settled = bench.store.settle(claim, [Done(item.id) for item in claim.items])
        assert settled.outcomes == [Outcome.DONE] * len(ids)

    def test_a_window_looks_ahead_without_touching(self, bench: Bench) -> None:
        """A window lists ids and due times up to `ahead_ms` and `limit`, in order, and changes nothing."""
        for n in range(5):
            bench.put(f"i{n}", in_ms=n * 100)
        window = bench.store.windows(200)[0]
        assert window.dues == [(f"i{n}", bench.now_ms + n * 100) for n in range(3)]
        assert len(bench.store.windows(10_000, limit=2)[0].dues) == 2
        assert bench.store.counts().sizes["due"] == 5

    def test_until_narrows_a_claim_and_never_widens_it(self, bench: Bench) -> None:
        """With `until_ms` in the past a claim gets fewer items. With `until_ms` in the future it gets none early."""
        bench.put("a")
        bench.put("b", in_ms=100)
        bench.clock.advance(100)
        assert [i.id for i in bench.store.claim(until_ms=bench.now_ms - 1).items] == ["a"]
        bench.put("c", in_ms=1)
        assert [i.id for i in bench.store.claim(until_ms=bench.now_ms + 10**6).items] == ["b"]

    def test_nothing_to_claim_has_no_number(self, bench: Bench) -> None:
        """A claim without items has the number 0 and uses up no number. Settling an item under it is STALE."""
        claim = bench.claim()
        assert (claim.number, claim.items) == (0, [])
        bench.put("a")
        assert bench.store.settle(claim, [Done("a")]).outcomes == [Outcome.STALE]
        assert bench.claim().number == 1

    def test_a_repeat_gets_the_same_batch(self, bench: Bench) -> None:
        """A claim repeated under the same token gets the same items, also later. Another claim gets other items."""
        bench.put("a", "b", "a\n1:b", "x\n1:a", "rest")
        first = bench.store.claim(4, token="t")
        assert [i.id for i in first.items] == ["a", "a\n1:b", "b", "rest"]
        bench.clock.advance(500)
        again = bench.store.claim(4, token="t")
        assert (again.number, again.items) == (first.number, first.items)
        assert [i.id for i in bench.claim().items] == ["x\n1:a"]

    def test_a_repeat_leaves_out_what_is_settled(self, bench: Bench) -> None:
        """A repeated claim returns only the items that are not settled yet."""
        bench.put("a", "b", "c")
        first = bench.store.claim(token="t")
        bench.store.settle(first, [Done("a"), Next("b", bench.now_ms)])
        assert [i.id for i in bench.store.claim(token="t").items] == ["c"]
        assert bench.store.claim(token="t").number == first.number

    def test_an_expired_lease_hands_the_item_out_again(self, bench: Bench) -> None:
        """After the lease of an item has ended, a new claim gets the item with its old due time.

        Settling or extending it under the old claim is then STALE.
        """
        bench.put("a")
        due_ms = bench.now_ms
        first = bench.claim(lease_ms=1000)
        bench.clock.advance(999)
        assert bench.claim().items == []
        bench.clock.advance(1)
        second = bench.claim()
        assert [(i.id, i.due_ms, i.lapses) for i in second.items] == [("a", due_ms, 1)]
        assert [i.lapses for i in first.items] == [0]
        assert second.number > first.number
        assert bench.store.settle(first, [Done("a")]).outcomes == [Outcome.STALE]
        assert bench.store.extend(first, ["a"]) == [Outcome.STALE]
        assert bench.settle_all(second) == [Outcome.DONE]
        assert bench.store.counts().happened("lapsed") == 1

    def test_a_sweep_recovers_leases_and_clears_refs_of_the_cancelled(self, bench: Bench) -> None:
        """A sweep ends expired leases without a claim. An item that was cancelled in flight leaves with its refs."""
        bench.put("a", "b", refs=("r",))
        bench.claim(lease_ms=10)
        assert bench.store.cancel(["b"]) == [Outcome.CANCELLED]
        bench.clock.advance(10)
        assert bench.store.sweep()[0].recovered == 2
        assert bench.states("a", "b") == ["due", None]
        assert bench.store.find("r") == ["a"]
        assert bench.store.counts().happened("cancelled") == 1

    def test_a_lease_that_ran_out_too_often_is_poison(self, bench: Bench) -> None:
        """When its lease has run out `lapse_cap` times, an item is dead, with a reason. Other items can be claimed."""
        bench.put("a")
        for _ in range(3):
            assert [i.id for i in bench.claim(lease_ms=10, lapse_cap=3).items] == ["a"]
            bench.clock.advance(10)
        bench.put("b")
        assert [i.id for i in bench.claim(lapse_cap=3).items] == ["b"]
        found = bench.one("a")
        assert (found.state, found.body) == ("dead", b"a")
        assert found.reason.startswith("poison: its lease ran out 3 times")

    @pytest.mark.parametrize("way", ["settle", "cancel"])
    def test_lapses_are_forgotten_with_the_item(self, bench: Bench, way: str) -> None:
        """After an item is settled or cancelled, a new item of this id starts with no lapses (ended leases)."""
        bench.put("a")
        for _ in range(2):
            bench.claim(lease_ms=10)
            bench.clock.advance(10)
        if way == "settle":
            bench.settle_all(bench.claim())
        else:
            bench.store.sweep()
            assert bench.store.cancel(["a"]) == [Outcome.DONE]
        bench.put("a")
        for _ in range(2):
            assert [i.id for i in bench.claim(lease_ms=10, lapse_cap=3).items] == ["a"]
            bench.clock.advance(10)
        assert [i.id for i in bench.claim(lapse_cap=3).items] == ["a"]

    def test_extending_moves_the_deadline(self, bench: Bench) -> None:
        """An extended lease ends `lease_ms` after the call. The outcome for an id that is not in the claim is STALE.

        The lease of a cancelled item is extended too, with the outcome CANCELLED.
        """
        bench.put("a", "b")
        claim = bench.claim(lease_ms=1000)
        bench.store.cancel(["b"])
        bench.put("c")
        bench.claim()
        bench.clock.advance(900)
        outcomes = bench.store.extend(claim, ["a", "b", "c", "none", "a"], lease_ms=1000)
        stale = Outcome.STALE
        assert outcomes == [Outcome.DONE, Outcome.CANCELLED, stale, stale, Outcome.DONE]
        bench.clock.advance(999)
        assert bench.claim().items == []
        assert bench.one("a").score_ms == bench.now_ms + 1
        assert bench.store.settle(claim, [Done("a")]).outcomes == [Outcome.DONE]
        assert bench.store.extend(claim, []) == []

    def test_a_stale_epoch_claims_nothing(self, bench: Bench) -> None:
        """The store refuses a claim with another epoch and serves a claim with the current one.

        A caller can have an epoch above the store's when the server has lost its last writes.
        """
        bench.put("a")
        assert bench.store.report_jump(0, 1, 10) == 2
        for epoch in (1, 3):
            with pytest.raises(StaleEpoch):
                bench.store.claim(epoch=epoch)
        assert bench.states("a") == ["due"]
        claim = bench.store.claim(epoch=2)
        assert ([i.id for i in claim.items], claim.epoch) == (["a"], 2)

    @pytest.mark.parametrize("limit", [501, -1])
    def test_an_impossible_limit_is_refused(self, bench: Bench, limit: int) -> None:
        """A claim with a limit below 0 or above 500 is refused, and claims nothing."""
        bench.put("a")
        with pytest.raises(Rejected):
            bench.store.claim(limit)
        assert bench.states("a") == ["due"]
        assert bench.store.claim(0).items == []

    def test_500_are_claimed_and_settled_at_once(self, bench: Bench) -> None:
        """One call can claim, extend or settle 500 items, which is the largest batch."""
        bench.put(*(f"i{n:03d}" for n in range(600)), topic="t", refs=("r",))
        claim = bench.store.claim(500)
        assert [i.id for i in claim.items] == [f"i{n:03d}" for n in range(500)]
        assert bench.store.extend(claim, [i.id for i in claim.items]) == [Outcome.DONE] * 500
        nexts = [Next(i.id, bench.now_ms + 1, b"new", "u", ("s",)) for i in claim.items]
        assert bench.store.settle(claim, nexts).outcomes == [Outcome.DONE] * 500
        assert len(bench.store.find("s")) == 500
        bench.clock.advance(1)
        claim = bench.claim()
        assert len(claim.items) == 500
        assert bench.store.settle(claim, done(claim.items)).outcomes == [Outcome.DONE] * 500
        assert bench.store.counts().sizes["due"] == 100

    def test_shards_are_claimed_one_by_one(self, wide: Bench) -> None:
        """Each shard gives its own items; together they give every item once."""
        ids = {f"i{n}" for n in range(50)}
        wide.put(*ids)
        claims = [wide.claim(shard=shard) for shard in range(3)]
        assert [claim.shard for claim in claims] == [0, 1, 2]
        assert sorted(i.id for claim in claims for i in claim.items) == sorted(ids)
        for claim in claims:
            assert set(wide.settle_all(claim)) == {Outcome.DONE}
        with pytest.raises(Rejected):
            wide.store.claim(shard=3)
