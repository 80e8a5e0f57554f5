"""Ordering keys: a key has one head, messages are parked behind it in order, and none stays parked for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wheel_sched.store import DelayStore, Item, Outcome
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.settle import Dead, Done, Next
from wheel_sched.store.maintenance.backup import write_backup
from wheel_sched.store.maintenance.restoring import restore_backup
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.ordering import UNKNOWN_HEAD, OrderedKeys, Owner, lock_of, ref_of, route_of, scope_of
from wheel_sched.store.redis.backend import RedisBackend

if TYPE_CHECKING:
    import redis

    from wheel_sched.store.redis.round_trips import Dialect

SCOPE = scope_of("billing", "orders")
LOCK = lock_of(SCOPE, b"k")


class Parking:
    """A store on test time with one scope owned; `now_ms` is its clock."""

    def __init__(self, make: Callable[[int], object], shards: int) -> None:
        self.now_ms = 1_000_000
        self.store = DelayStore(make(shards), shards=shards, test_clock=lambda: self.now_ms).open()  # type: ignore[arg-type]
        self.keys = OrderedKeys(self.store)
        self.owner = Owner(SCOPE, "me", self.keys.acquire(SCOPE, "me", 60_000).epoch)

    def close(self, base: str, lock: str = LOCK, *, position_derived: bool = True) -> Outcome:
        return self.keys.close(self.owner, [(lock, base, position_derived, "k")])[0]

    def park(self, *bases: str, lock: str = LOCK, cap: int = 100, position_derived: bool = True) -> list[Outcome]:
        rows = [(lock, base, position_derived, item(base, 0, lock)) for base in bases]
        return self.keys.park(self.owner, cap, rows)

    def released(self) -> list[str]:
        """The items that are due now, in order of their release; they leave for good."""
        claim = [self.store.claim(100, shard=shard) for shard in range(self.store.shards)]
        out = []
        for one in claim:
            if one.items:
                self.store.settle(one, [Done(found.id) for found in one.items])
            out += [found.id for found in one.items]
        return out

    @property
    def head(self) -> str | None:
        return next((key.head for key in self.keys.closed(SCOPE)), None)


def item(base: str, attempt: int, lock: str = LOCK, due_ms: int | None = None) -> Item:
    return Item(f"{base}.{attempt}", due_ms, b"body", "orders", (ref_of(lock),), route_of(lock))


@pytest.fixture(
    params=[("memory", 3), ("fake", 1), pytest.param(("real", 3), marks=pytest.mark.real)],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
)
def parking(request: pytest.FixtureRequest) -> Iterator[Parking]:
    """A parking bench over each store."""
    kind, shards = request.param
    if kind == "memory":
        yield Parking(lambda count: MemoryBackend(count, clock="test"), shards)
        return
    client: redis.Redis = request.getfixturevalue("shared_fake" if kind == "fake" else "shared_client")
    dialect: Dialect = request.getfixturevalue("dialect")
    yield Parking(lambda count: RedisBackend(client, dialect), shards)


def test_an_open_key_parks_nothing(parking: Parking) -> None:
    """Without a failed head nothing can be parked."""
    assert parking.park("b") == [Outcome.ABSENT]
    assert parking.store.counts().total("held") == 0


def test_those_behind_a_head_come_out_one_by_one_in_order(parking: Parking) -> None:
    """Each success releases exactly the next message; after the last one the key is open."""
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


def test_other_keys_are_not_touched(parking: Parking) -> None:
    """A closed key does not affect another key."""
    other = lock_of(SCOPE, b"other")
    parking.close("a")
    assert parking.park("b", lock=other) == [Outcome.ABSENT]
    assert parking.park("b") == [Outcome.HELD]


def test_repeats_answer_alike_or_tell_that_it_was_done(parking: Parking) -> None:
    """After a crash each step may be repeated: nothing is parked, released or opened twice."""
    assert [parking.close("a"), parking.close("a")] == [Outcome.DONE, Outcome.DONE]
    assert parking.close("z") is Outcome.WRONG_STATE
    assert parking.park("a") == [Outcome.DONE], "the head that closed it is to be handled again"
    assert [parking.park("b"), parking.park("b")] == [[Outcome.HELD], [Outcome.DUPLICATE]]
    assert parking.keys.succeeded([(LOCK, "a")]) == [Outcome.DONE]
    assert parking.keys.succeeded([(LOCK, "a")]) == [Outcome.ABSENT]
    assert parking.park("a") == [Outcome.DUPLICATE], "it has succeeded"
    assert parking.park("b") == [Outcome.DUPLICATE], "it was released and is on its way"
    assert parking.keys.look([(LOCK, "a"), (LOCK, "b"), (LOCK, "x")]) == [
        Outcome.DUPLICATE,
        Outcome.DONE,
        Outcome.ABSENT,
    ]
    parking.now_ms += 90_000_000
    assert parking.keys.look([(LOCK, "a")]) == [Outcome.ABSENT], "a day is enough to remember"


def test_a_late_copy_of_one_that_has_succeeded_closes_nothing(parking: Parking) -> None:
    """Its offset was not committed, so it was read and failed again: no message waits for it or behind it."""
    parking.close("a")
    parking.park("b")
    parking.keys.succeeded([(LOCK, "a"), (LOCK, "b")])
    assert parking.close("b") is Outcome.DUPLICATE
    assert parking.head is None
    assert parking.park("c") == [Outcome.ABSENT]
    parking.close("c")
    assert parking.close("b") is Outcome.DUPLICATE
    assert parking.head == "c"


def test_a_full_line_parks_no_more(parking: Parking) -> None:
    """The outcome says that the cap is reached; parked messages are not changed."""
    parking.close("a")
    assert parking.park("b", "c", "d", cap=2) == [Outcome.HELD, Outcome.HELD, Outcome.WRONG_STATE]
    parking.keys.succeeded([(LOCK, "a")])
    assert parking.park("d", cap=2) == [Outcome.HELD]


def test_only_the_owner_closes_and_parks(parking: Parking) -> None:
    """A reader that was stopped for longer than its lease changes nothing afterwards."""
    assert parking.keys.acquire(SCOPE, "other", 1_000).epoch == 0
    parking.now_ms += 60_000
    taken = parking.keys.acquire(SCOPE, "other", 1_000)
    assert taken.epoch > parking.owner.epoch
    assert parking.close("a") is Outcome.STALE
    assert parking.park("b") == [Outcome.STALE]
    parking.keys.release(SCOPE, "other")
    assert parking.keys.acquire(SCOPE, "me", 1_000).epoch > taken.epoch, "and not under its old epoch either"
    assert parking.close("a") is Outcome.STALE


@pytest.mark.parametrize("end", ["dead", "cancelled", "cancelled in flight", "poison"])
def test_a_head_that_is_given_up_in_the_store_lets_the_next_one_follow(parking: Parking, end: str) -> None:
    """The script that ends the head releases the next message of its key, for each way to end it."""
    parking.close("a")
    parking.store.schedule([item("a", 1, due_ms=parking.now_ms)])
    parking.park("b", "c")
    if end == "cancelled":
        assert parking.store.cancel(["a.1"], route=route_of(LOCK)) == [Outcome.DONE]
    else:
        shards = range(parking.store.shards)
        claim = next(one for one in (parking.store.claim(shard=shard, lease_ms=100) for shard in shards) if one.items)
        if end == "dead":
            parking.store.settle(claim, [Dead("a.1", "the broker refused it")])
        elif end == "cancelled in flight":
            assert parking.store.cancel(["a.1"], route=route_of(LOCK)) == [Outcome.CANCELLED]
            parking.store.settle(claim, [Next("a.1", parking.now_ms)])
        else:
            parking.now_ms += 1_000
            parking.store.sweep(lapse_cap=1)
    assert parking.head == "b"
    assert parking.released() == ["b.0"]


@pytest.mark.parametrize("end", ["by the intake", "in the store", "in parking"])
def test_what_was_given_up_is_known_at_its_own_place(parking: Parking, end: str) -> None:
    """A second read after a crash neither closes its key nor parks it; a copy of its id is another message."""
    parking.close("z" if end == "in parking" else "a")
    if end == "in parking":
        parking.park("a")
        parking.store.cancel(["a.0"], route=route_of(LOCK))
    elif end == "in the store":
        parking.store.schedule([item("a", 1, due_ms=parking.now_ms)])
        parking.store.cancel(["a.1"], route=route_of(LOCK))
    else:
        parking.keys.given_up([(LOCK, "a")])
    assert parking.close("a", lock_of(SCOPE, b"other")) is Outcome.DUPLICATE
    parking.close("z")
    assert parking.park("a") == [Outcome.DUPLICATE]
    assert parking.keys.look([(LOCK, "a")]) == [Outcome.ABSENT], "a letter let out again is handled outside the order"
    assert parking.close("a", lock_of(SCOPE, b"other"), position_derived=False) is Outcome.DONE
    assert parking.park("a", position_derived=False) == [Outcome.HELD]
    parking.now_ms += 86_400_001
    assert parking.close("a", lock_of(SCOPE, b"third")) is Outcome.DONE


def test_settling_a_head_that_was_published_keeps_the_key_closed(parking: Parking) -> None:
    """The message is on its way to its handler; the key waits for the result."""
    parking.close("a")
    parking.store.schedule([item("a", 1, due_ms=parking.now_ms)])
    parking.park("b")
    assert parking.released() == ["a.1"]
    assert parking.head == "a"
    assert parking.released() == []


def test_a_parked_one_that_was_deleted_or_let_out_by_hand_is_passed_over(parking: Parking) -> None:
    """People may take out parked messages; the next message follows."""
    parking.close("a")
    parking.park("b", "c", "d")
    route = route_of(LOCK)
    assert parking.store.change([Alteration("b.0", "c"), Alteration("c.0", "u", parking.now_ms)], route=route) == [
        Outcome.DONE,
        Outcome.DONE,
    ]
    assert parking.released() == ["c.0"]
    parking.keys.succeeded([(LOCK, "a")])
    assert parking.released() == ["d.0"]


def test_a_head_that_is_rescheduled_or_paused_keeps_its_place(parking: Parking) -> None:
    """A later due is not a failure."""
    parking.close("a")
    parking.store.schedule([item("a", 1, due_ms=parking.now_ms)])
    parking.park("b")
    parking.store.reschedule(["a.1"], parking.now_ms + 10_000, route=route_of(LOCK))
    parking.store.pause("orders")
    parking.store.resume("orders")
    assert parking.head == "a"
    parking.now_ms += 10_000
    assert parking.released() == ["a.1"]


def test_a_paused_topic_keeps_the_next_one_back_as_the_head(parking: Parking) -> None:
    """A release into a paused topic waits for the resume, and so does the key."""
    parking.close("a")
    parking.park("b")
    parking.store.pause("orders")
    parking.keys.succeeded([(LOCK, "a")])
    assert (parking.head, parking.released()) == ("b", [])
    parking.store.resume("orders")
    assert parking.released() == ["b.0"]


def test_a_dead_letter_that_is_let_out_again_has_lost_its_place(parking: Parking) -> None:
    """The key went on without it; its second death releases no message."""
    parking.close("a")
    parking.keys.given_up([(LOCK, "a")])
    parking.close("b")
    parking.park("c")
    parking.store.bury([(item("a", 3, due_ms=parking.now_ms), "dead: by test")])
    parking.store.requeue([("a.3", parking.now_ms, None)], route=route_of(LOCK))
    shards = range(parking.store.shards)
    claim = next(one for one in (parking.store.claim(shard=shard) for shard in shards) if one.items)
    parking.store.settle(claim, [Dead("a.3", "again")])
    assert parking.head == "b"


def test_somebody_can_open_a_key_by_hand(parking: Parking) -> None:
    """When the head was lost outside the store, a person releases the next message."""
    parking.close("a")
    parking.park("b")
    assert parking.keys.pass_by_hand([LOCK]) == [Outcome.DONE]
    assert parking.head == "b"
    assert parking.keys.pass_by_hand([LOCK, LOCK]) == [Outcome.DONE, Outcome.ABSENT]


def test_counts_and_listings_tell_what_is_parked(parking: Parking) -> None:
    """Listings show closed keys and parked messages, with a label for people."""
    parking.close("a")
    parking.park("b", "c")
    assert parking.keys.counts(["orders", "none"]) == (1, {"orders": 2, "none": 0})
    (key,) = parking.keys.closed()
    assert (key.lock, key.label, key.head, key.parked, key.released) == (LOCK, "k", "a", 2, False)
    held = parking.store.list_items("held").found
    assert [found.id for found in held] == ["b.0", "c.0"]
    assert {found.reason for found in held} == {f"ordered: key {LOCK}"}


def test_a_backup_keeps_the_lines(parking: Parking, tmp_path: Path) -> None:
    """Parked messages are parked again. The head is unknown, so the next message to succeed counts as the head."""
    parking.close("a")
    parking.park("b", "c")
    write_backup(parking.store, tmp_path / "file", namespace="n")
    for found in parking.store.list_items("held").found:
        parking.store.cancel([found.id], route=found.route)
    parking.keys.pass_by_hand([LOCK])
    assert parking.head is None
    target = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: parking.now_ms).open()
    restore_backup(target, tmp_path / "file")
    keys = OrderedKeys(target)
    assert [(key.head, key.parked) for key in keys.closed()] == [(UNKNOWN_HEAD, 2)]
    keys.succeeded([(LOCK, "a")])
    assert [found.id for found in target.claim().items] == ["b.0"]
