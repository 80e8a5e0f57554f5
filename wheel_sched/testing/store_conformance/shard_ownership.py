"""Conformance tests of shard ownership: a shard has one owner, who ends open claims by their number."""

# ruff: noqa: S101 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import hashlib

import pytest

from wheel_sched.errors import StaleEpoch
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import NO_LEASE_END_MS, Item, Outcome
from wheel_sched.store.ordering import Owner, lock_of, ref_of, scope_of
from wheel_sched.store.shard_ownership import Resolved
from wheel_sched.testing.store_conformance.bench import Bench


class ShardOwnershipCases:
    """Tests of owned shards, for brokers that record which claims they have published."""

    def test_a_shard_has_one_owner_at_a_time(self, bench: Bench) -> None:
        """A shard belongs to its owner until the lease ends or the owner gives it up. A new owner raises the epoch.

        An owner that acquires its shard again keeps the epoch. The step by which a new owner raises the epoch
        depends on the owner's name, so that two owners do not get the same epoch.
        """
        first = bench.shard_ownership.acquire(0, "one", 1_000)
        assert (first.mine, first.new) == (True, True)
        other = bench.shard_ownership.acquire(0, "two", 1_000)
        assert (other.mine, other.owner, other.until_ms) == (False, "one", bench.now_ms + 1_000)
        again = bench.shard_ownership.acquire(0, "one", 1_000)
        assert (again.mine, again.new, again.epoch) == (True, False, first.epoch)
        bench.clock.advance(1_000)
        taken = bench.shard_ownership.acquire(0, "two", 1_000)
        step = int(hashlib.sha1(b"two", usedforsecurity=False).hexdigest()[:5], 16) + 1
        assert (taken.mine, taken.new, taken.epoch) == (True, True, first.epoch + step)
        assert not bench.shard_ownership.acquire(0, "one", 1_000).mine
        bench.shard_ownership.acquire(0, "two", 0)
        assert bench.shard_ownership.acquire(0, "one", 1_000).new

    def test_a_predecessor_claims_nothing(self, bench: Bench) -> None:
        """After a new owner has acquired the shard, a claim with the epoch of the old owner is refused."""
        epoch = bench.shard_ownership.acquire(0, "one", 10).epoch
        bench.clock.advance(10)
        bench.shard_ownership.acquire(0, "two", 10)
        bench.put("a")
        (answer,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, epoch=epoch))])
        assert isinstance(answer, StaleEpoch)

    def test_a_claims_number_is_above_what_went_out(self, bench: Bench) -> None:
        """A claim's number is greater than `above`, even if the store has given out only smaller numbers."""
        bench.put("a", "b")
        (first,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, above=41))])
        (second,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, above=5))])
        assert (first.number, second.number) == (42, 43)
        bench.settle_all(first)
        bench.settle_all(second)

    def test_a_claim_without_a_lease_end_is_never_recovered(self, bench: Bench) -> None:
        """Neither time nor a sweep ends a claim without a lease end. Only the owner of the shard ends it."""
        bench.put("a", "b", topic="t")
        (claim,) = bench.store.execute([Call(0, ClaimDue(10, None))])
        bench.clock.advance(365 * 86_400_000)
        bench.store.sweep()
        assert bench.claim().items == []
        assert (bench.one("a").state, bench.one("a").score_ms) == ("leased", NO_LEASE_END_MS)
        assert self._resolve(bench, claim.number - 1).released == 2
        assert bench.states("a", "b") == ["due", "due"]

    def test_open_claims_end_by_their_number(self, bench: Bench) -> None:
        """`resolve` gets the last number that was published. Items of claims up to this number are completed.

        Items of later claims wait again, or leave if they were cancelled.
        """
        bench.put("a", "b", "c", "d")
        claims = [bench.claim(limit=1) for _ in range(4)]
        bench.store.cancel(["d"])
        resolved = self._resolve(bench, claims[0].number)
        assert (resolved.completed, resolved.released, resolved.held, resolved.more) == (2, 2, 0, False)
        assert bench.states("a", "b", "c", "d") == [None, "due", "due", None]
        assert bench.settle_all(claims[1]) == [Outcome.STALE]
        assert bench.store.counts().ever["lapsed", ""] == 2

    def test_the_head_of_a_key_that_ends_so_lets_the_next_one_follow(self, bench: Bench) -> None:
        """When `resolve` ends a head that was cancelled in flight, the next message of the key is released."""
        scope = scope_of("g", "t")
        lock, holder = lock_of(scope, b"k"), Owner(scope, "me", 1)
        keys = bench.ordered_keys
        keys.acquire(scope, "me", 60_000)
        keys.close(holder, [(lock, "a", True, "k")])
        bench.store.schedule([Item("a.1", bench.now_ms, b"", "t", (ref_of(lock),), scope)])
        keys.park(holder, 10, [(lock, "b", True, Item("b.0", bench.now_ms, b"", "t", (ref_of(lock),), scope))])
        bench.claim()
        bench.store.cancel(["a.1"])
        assert self._resolve(bench, 0).completed == 1
        assert bench.states("a.1", "b.0") == [None, "due"]

    def test_a_spared_claim_stays_open(self, bench: Bench) -> None:
        """`resolve` leaves the claim with the number `spared` open, because its items are still being published."""
        bench.put("a", "b")
        one, two = bench.claim(limit=1), bench.claim(limit=1)
        self._resolve(bench, 0, spared=two.number)
        assert bench.states("a", "b") == ["due", "leased"]
        assert bench.settle_all(two) == [Outcome.DONE]
        assert one.number < two.number

    def test_without_a_recorded_number_all_items_are_held(self, bench: Bench) -> None:
        """When nobody knows the last published number, the items of open claims are held, not published again."""
        bench.put("a", topic="t")
        bench.claim()
        assert self._resolve(bench, None).held == 1
        assert bench.one("a").reason.startswith("in-doubt")

    def test_only_the_present_owner_ends_claims(self, bench: Bench) -> None:
        """An owner whose shard was taken over ends no claim: its epoch is refused."""
        epoch = bench.shard_ownership.acquire(0, "one", 10).epoch
        bench.clock.advance(10)
        bench.shard_ownership.acquire(0, "two", 10)
        with pytest.raises(StaleEpoch):
            bench.shard_ownership.resolve(0, epoch, 0)

    def test_dispatchers_that_keep_dying_over_an_item_bury_it(self, bench: Bench) -> None:
        """Each claim that a dead dispatcher left open counts as a lapse. After `lapse_cap` lapses the item is dead."""
        bench.put("a", topic="t")
        for _ in range(2):
            bench.claim()
            self._resolve(bench, 0, lapse_cap=2)
        assert bench.one("a").state == "dead"
        assert bench.one("a").reason.startswith("poison")

    def _resolve(
        self, bench: Bench, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
    ) -> Resolved:
        epoch = bench.store.counts().epoch
        return bench.shard_ownership.resolve(0, epoch, committed, spared=spared, lapse_cap=lapse_cap)
