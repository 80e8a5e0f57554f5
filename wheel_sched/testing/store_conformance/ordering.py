"""Conformance tests of ordering keys: messages are parked behind the head of a key and released in order."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead, Next
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.ordering import Owner, lock_of, ref_of, route_of, scope_of
from wheel_sched.testing.store_conformance.bench import Bench, done

SCOPE = scope_of("billing", "orders")
LOCK = lock_of(SCOPE, b"k")


class Parking:
    """A store, and a scope of ordering keys that the test owns."""

    def __init__(self, bench: Bench) -> None:
        self.clock, self.store, self.keys = bench.clock, bench.store, bench.ordered_keys
        self.owner = Owner(SCOPE, "me", self.keys.acquire(SCOPE, "me", 60_000).epoch)

    def close(self, base: str, lock: str = LOCK, *, position_derived: bool = True) -> Outcome:
        return self.keys.close(self.owner, [(lock, base, position_derived, "k")])[0]

    def park(self, *bases: str, lock: str = LOCK, cap: int = 100, position_derived: bool = True) -> list[Outcome]:
        rows = [(lock, base, position_derived, item(base, 0, lock)) for base in bases]
        return self.keys.park(self.owner, cap, rows)

    def released(self) -> list[str]:
        """Claim the items that are due now, settle them as done, and return them in order of their release."""
        claim = [self.store.claim(100, shard=shard) for shard in range(self.store.shards)]
        out = []
        for one in claim:
            if one.items:
                self.store.settle(one, done(one.items))
            out += [found.id for found in one.items]
        return out

    @property
    def head(self) -> str | None:
        return next((key.head for key in self.keys.closed(SCOPE)), None)


def item(base: str, attempt: int, lock: str = LOCK, due_ms: int | None = None) -> Item:
    return Item(f"{base}.{attempt}", due_ms, b"body", "orders", (ref_of(lock),), route_of(lock))


class OrderingCases:
    """Tests of ordering keys: closing, parking, releasing, giving up, and owning a scope (a set of keys)."""

    @pytest.fixture
    def parking(self, wide: Bench) -> Parking:
        return Parking(wide)

    def test_an_open_key_parks_nothing(self, parking: Parking) -> None:
        """While a key is open, no message of the key is parked."""
        assert parking.park("b") == [Outcome.ABSENT]
        assert parking.store.counts().total("held") == 0

    def test_parked_messages_are_released_one_by_one_in_order(self, parking: Parking) -> None:
        """Each success of a head releases the next parked message. After the last message the key is open."""
        assert parking.close("a") is Outcome.DONE
        assert parking.park("b", "c") == [Outcome.HELD, Outcome.HELD]
        assert parking.park("d") == [Outcome.HELD]
        order = []
        for base in ("a", "b", "c", "d"):
            assert parking.head == base
            assert parking.keys.succeeded([(LOCK, base)]) == [Outcome.DONE]
            order += parking.released()
        assert order == ["b.0", "c.0", "d.0"]
        assert parking.head is None
        assert parking.park("e") == [Outcome.ABSENT]
        assert parking.store.counts().total("held") == 0

    def test_a_parked_item_keeps_its_fair_key(self, parking: Parking) -> None:
        """A parked item that is released waits until its fair key has a free place (a slot of `max_in_flight`)."""
        shares = FairShares(parking.store)
        shares.configure("orders", FairSettings(max_in_flight=1, ends="reported"))
        fair = (fair_ref("tenant"),)
        parking.close("a")
        parked = item("b", 0)
        parked.refs = (*fair, *parked.refs)
        assert parking.keys.park(parking.owner, 9, [(LOCK, "b", True, parked)]) == [Outcome.HELD]
        parking.store.schedule([Item("x", parking.clock.now_ms, b"", "orders", fair, route_of(LOCK))])
        assert parking.released() == ["x"]
        assert parking.keys.succeeded([(LOCK, "a")]) == [Outcome.DONE]
        assert parking.released() == []
        assert shares.finish(["x"]) == 1
        assert parking.released() == ["b.0"]

    def test_other_keys_are_not_touched(self, parking: Parking) -> None:
        """A closed key does not affect another key."""
        other = lock_of(SCOPE, b"other")
        parking.close("a")
        assert parking.park("b", lock=other) == [Outcome.ABSENT]
        assert parking.park("b") == [Outcome.HELD]

    def test_a_repeat_gets_the_same_answer_or_learns_that_the_message_has_ended(self, parking: Parking) -> None:
        """Each step may be repeated, as after a crash: no message is parked or released twice."""
        assert [parking.close("a"), parking.close("a")] == [Outcome.DONE, Outcome.DONE]
        assert parking.close("z") is Outcome.WRONG_STATE
        assert parking.park("a") == [Outcome.DONE], "the head closed the key itself: its consumer handles it again"
        assert [parking.park("b"), parking.park("b")] == [[Outcome.HELD], [Outcome.DUPLICATE]]
        assert parking.keys.succeeded([(LOCK, "a")]) == [Outcome.DONE]
        assert parking.keys.succeeded([(LOCK, "a")]) == [Outcome.ABSENT]
        assert parking.park("a") == [Outcome.DUPLICATE], "it has succeeded"
        assert parking.park("b") == [Outcome.DUPLICATE], "it was released before"
        assert parking.keys.look([(LOCK, "a"), (LOCK, "b"), (LOCK, "x")]) == [
            Outcome.DUPLICATE,
            Outcome.DONE,
            Outcome.ABSENT,
        ]
        parking.clock.now_ms += 90_000_000
        assert parking.keys.look([(LOCK, "a")]) == [Outcome.ABSENT], "the store remembers it for a day"

    def test_a_late_copy_of_a_message_that_has_succeeded_closes_nothing(self, parking: Parking) -> None:
        """When a message that has succeeded is read again and fails, it closes no key."""
        parking.close("a")
        parking.park("b")
        parking.keys.succeeded([(LOCK, "a"), (LOCK, "b")])
        assert parking.close("b") is Outcome.DUPLICATE
        assert parking.head is None
        assert parking.park("c") == [Outcome.ABSENT]
        parking.close("c")
        assert parking.close("b") is Outcome.DUPLICATE
        assert parking.head == "c"

    def test_a_full_key_queue_parks_no_more(self, parking: Parking) -> None:
        """When `cap` messages of a key are parked, a further one is refused as WRONG_STATE."""
        parking.close("a")
        assert parking.park("b", "c", "d", cap=2) == [Outcome.HELD, Outcome.HELD, Outcome.WRONG_STATE]
        parking.keys.succeeded([(LOCK, "a")])
        assert parking.park("d", cap=2) == [Outcome.HELD]

    def test_only_the_owner_closes_and_parks(self, parking: Parking) -> None:
        """When another owner has taken over a scope, the old owner cannot close a key or park a message."""
        assert parking.keys.acquire(SCOPE, "other", 1_000).epoch == 0
        parking.clock.now_ms += 60_000
        taken = parking.keys.acquire(SCOPE, "other", 1_000)
        assert taken.epoch > parking.owner.epoch
        assert parking.close("a") is Outcome.STALE
        assert parking.park("b") == [Outcome.STALE]
        parking.keys.release(SCOPE, "other")
        assert parking.keys.acquire(SCOPE, "me", 1_000).epoch > taken.epoch, "its old epoch is over"
        assert parking.close("a") is Outcome.STALE

    def test_a_holder_keeps_a_lapsed_scope_that_nobody_has_taken(self, parking: Parking) -> None:
        """An owner whose lease has ended keeps its epoch as long as nobody else acquires the scope."""
        parking.clock.now_ms += 120_000
        again = parking.keys.acquire(SCOPE, "me", 60_000)
        assert (again.epoch, again.released) == (parking.owner.epoch, False)
        assert parking.close("a") is Outcome.DONE

    def test_a_new_owner_learns_whether_the_scope_was_released(self, parking: Parking) -> None:
        """`acquire` says whether the last owner released the scope, or its lease ended, as after a crash."""
        assert not parking.keys.acquire("never owned", "one", 1_000).released
        parking.clock.now_ms += 60_000
        assert not parking.keys.acquire(SCOPE, "other", 1_000).released
        parking.keys.release(SCOPE, "other")
        assert parking.keys.acquire(SCOPE, "third", 1_000).released

    @pytest.mark.parametrize("end", ["dead", "cancelled", "cancelled in flight", "poison"])
    def test_after_a_head_that_the_store_gives_up_the_next_message_follows(self, parking: Parking, end: str) -> None:
        """Whenever a head dies or is cancelled, the script that ends it releases the next message of its key."""
        parking.close("a")
        parking.store.schedule([item("a", 1, due_ms=parking.clock.now_ms)])
        parking.park("b", "c")
        if end == "cancelled":
            assert parking.store.cancel(["a.1"], route=route_of(LOCK)) == [Outcome.DONE]
        else:
            shards = range(parking.store.shards)
            claim = next(
                one for one in (parking.store.claim(shard=shard, lease_ms=100) for shard in shards) if one.items
            )
            if end == "dead":
                parking.store.settle(claim, [Dead("a.1", "the broker refused it")])
            elif end == "cancelled in flight":
                assert parking.store.cancel(["a.1"], route=route_of(LOCK)) == [Outcome.CANCELLED]
                parking.store.settle(claim, [Next("a.1", parking.clock.now_ms)])
            else:
                parking.clock.now_ms += 1_000
                parking.store.sweep(lapse_cap=1)
        assert parking.head == "b"
        assert parking.released() == ["b.0"]

    @pytest.mark.parametrize("end", ["by the intake", "in the store", "in parking"])
    def test_a_message_that_was_given_up_is_known_by_its_position(self, parking: Parking, end: str) -> None:
        """The store recognises a message that was given up, for a day, if its id base is position-derived.

        A message with another id base counts as new.
        """
        parking.close("z" if end == "in parking" else "a")
        if end == "in parking":
            parking.park("a")
            parking.store.cancel(["a.0"], route=route_of(LOCK))
        elif end == "in the store":
            parking.store.schedule([item("a", 1, due_ms=parking.clock.now_ms)])
            parking.store.cancel(["a.1"], route=route_of(LOCK))
        else:
            parking.keys.given_up([(LOCK, "a")])
        assert parking.close("a", lock_of(SCOPE, b"other")) is Outcome.DUPLICATE
        parking.close("z")
        assert parking.park("a") == [Outcome.DUPLICATE]
        assert parking.keys.look([(LOCK, "a")]) == [Outcome.ABSENT], (
            "a dead letter that was released again is handled outside the order"
        )
        assert parking.close("a", lock_of(SCOPE, b"other"), position_derived=False) is Outcome.DONE
        assert parking.park("a", position_derived=False) == [Outcome.HELD]
        parking.clock.now_ms += 86_400_001
        assert parking.close("a", lock_of(SCOPE, b"third")) is Outcome.DONE

    def test_settling_a_head_that_was_published_keeps_the_key_closed(self, parking: Parking) -> None:
        """After a head is published and settled, its key stays closed until the result of its handler is known."""
        parking.close("a")
        parking.store.schedule([item("a", 1, due_ms=parking.clock.now_ms)])
        parking.park("b")
        assert parking.released() == ["a.1"]
        assert parking.head == "a"
        assert parking.released() == []

    def test_a_parked_message_that_a_person_deleted_or_released_is_skipped(self, parking: Parking) -> None:
        """A person may cancel or release a parked message. Then the key continues with the next message."""
        parking.close("a")
        parking.park("b", "c", "d")
        route = route_of(LOCK)
        assert parking.store.change(
            [Alteration("b.0", "c"), Alteration("c.0", "u", parking.clock.now_ms)], route=route
        ) == [
            Outcome.DONE,
            Outcome.DONE,
        ]
        assert parking.released() == ["c.0"]
        parking.keys.succeeded([(LOCK, "a")])
        assert parking.released() == ["d.0"]

    def test_a_head_that_is_rescheduled_or_paused_keeps_its_place(self, parking: Parking) -> None:
        """A head that gets a later due time, or whose topic is paused, is still the head of its key."""
        parking.close("a")
        parking.store.schedule([item("a", 1, due_ms=parking.clock.now_ms)])
        parking.park("b")
        parking.store.reschedule(["a.1"], parking.clock.now_ms + 10_000, route=route_of(LOCK))
        parking.store.pause("orders")
        parking.store.resume("orders")
        assert parking.head == "a"
        parking.clock.now_ms += 10_000
        assert parking.released() == ["a.1"]

    def test_a_paused_topic_holds_the_next_head(self, parking: Parking) -> None:
        """The next head of a key in a paused topic is held until the topic is resumed."""
        parking.close("a")
        parking.park("b")
        parking.store.pause("orders")
        parking.keys.succeeded([(LOCK, "a")])
        assert (parking.head, parking.released()) == ("b", [])
        parking.store.resume("orders")
        assert parking.released() == ["b.0"]

    def test_a_dead_letter_that_is_released_again_has_lost_its_place(self, parking: Parking) -> None:
        """The key of a dead letter has continued without it, so a second death of the letter releases no message."""
        parking.close("a")
        parking.keys.given_up([(LOCK, "a")])
        parking.close("b")
        parking.park("c")
        parking.store.bury([(item("a", 3, due_ms=parking.clock.now_ms), "dead: by test")])
        parking.store.requeue([("a.3", parking.clock.now_ms, None)], route=route_of(LOCK))
        shards = range(parking.store.shards)
        claim = next(one for one in (parking.store.claim(shard=shard) for shard in shards) if one.items)
        parking.store.settle(claim, [Dead("a.3", "again")])
        assert parking.head == "b"

    def test_a_person_can_open_a_key(self, parking: Parking) -> None:
        """A person can release the next message by hand when the head of a key was lost."""
        parking.close("a")
        parking.park("b")
        assert parking.keys.pass_by_hand([LOCK]) == [Outcome.DONE]
        assert parking.head == "b"
        assert parking.keys.pass_by_hand([LOCK, LOCK]) == [Outcome.DONE, Outcome.ABSENT]

    def test_counts_and_listings_show_what_is_parked(self, parking: Parking) -> None:
        """Counts name the closed keys and the parked messages. Listings show each key with a label for people."""
        parking.close("a")
        parking.park("b", "c")
        assert parking.keys.counts(["orders", "none"]) == (1, {"orders": 2, "none": 0})
        (key,) = parking.keys.closed()
        assert (key.lock, key.label, key.head, key.parked, key.released) == (LOCK, "k", "a", 2, False)
        held = parking.store.list_items("held").found
        assert [found.id for found in held] == ["b.0", "c.0"]
        assert {found.reason for found in held} == {f"ordered: key {LOCK}"}
