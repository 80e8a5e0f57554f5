"""Ordering keys in the store: one head a key, a line behind it in order, and nothing that can stay behind for ever."""

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
from wheel_sched.store.memory.backend import MemoryBackend
from wheel_sched.store.ordering.face import KeyGates, gate_of, ref_of, route_of, scope_of
from wheel_sched.store.ordering.values import UNKNOWN_HEAD, Owner
from wheel_sched.store.redis.backend import RedisBackend

if TYPE_CHECKING:
    import redis

    from wheel_sched.store.redis.conversation import Dialect

SCOPE = scope_of("billing", "orders")
GATE = gate_of(SCOPE, b"k")


class Line:
    """A store on test time with one scope owned; `now_ms` is its clock."""

    def __init__(self, make: Callable[[int], object], shards: int) -> None:
        self.now_ms = 1_000_000
        self.store = DelayStore(make(shards), shards=shards, test_clock=lambda: self.now_ms).open()  # type: ignore[arg-type]
        self.gates = KeyGates(self.store)
        self.owner = Owner(SCOPE, "me", self.gates.own(SCOPE, "me", 60_000).epoch)

    def close(self, stem: str, gate: str = GATE, *, placed: bool = True) -> Outcome:
        return self.gates.close(self.owner, [(gate, stem, placed, "k")])[0]

    def park(self, *stems: str, gate: str = GATE, cap: int = 100, placed: bool = True) -> list[Outcome]:
        rows = [(gate, stem, placed, item(stem, 0, gate)) for stem in stems]
        return self.gates.park(self.owner, cap, rows)

    def released(self) -> list[str]:
        """What is due now, in the order it comes out; it goes for good."""
        claim = [self.store.claim(100, shard=shard) for shard in range(self.store.shards)]
        out = []
        for one in claim:
            if one.items:
                self.store.settle(one, [Done(found.id) for found in one.items])
            out += [found.id for found in one.items]
        return out

    @property
    def head(self) -> str | None:
        return next((key.head for key in self.gates.closed(SCOPE)), None)


def item(stem: str, attempt: int, gate: str = GATE, due_ms: int | None = None) -> Item:
    return Item(f"{stem}.{attempt}", due_ms, b"body", "orders", (ref_of(gate),), route_of(gate))


@pytest.fixture(
    params=[("memory", 3), ("fake", 1), pytest.param(("real", 3), marks=pytest.mark.real)],
    ids=lambda pair: f"{pair[0]}-{pair[1]}",
)
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    """A line over each store."""
    kind, shards = request.param
    if kind == "memory":
        yield Line(lambda count: MemoryBackend(count, clock="test"), shards)
        return
    client: redis.Redis = request.getfixturevalue("shared_fake" if kind == "fake" else "shared_client")
    dialect: Dialect = request.getfixturevalue("dialect")
    yield Line(lambda count: RedisBackend(client, dialect), shards)


def test_an_open_key_parks_nothing(line: Line) -> None:
    """Without a failed head there is nothing to stand behind."""
    assert line.park("b") == [Outcome.ABSENT]
    assert line.store.counts().total("held") == 0


def test_those_behind_a_head_come_out_one_by_one_in_order(line: Line) -> None:
    """Each success releases exactly the next one; the last one opens the key."""
    assert line.close("a") is Outcome.DONE
    assert line.park("b", "c") == [Outcome.HELD, Outcome.HELD]
    assert line.park("d") == [Outcome.HELD]
    order = []
    for stem in ("a", "b", "c", "d"):
        assert line.head == stem
        assert line.gates.succeeded([(GATE, stem)]) == [Outcome.DONE]
        order += line.released()
    assert order == ["b.0", "c.0", "d.0"]
    assert line.head is None
    assert line.park("e") == [Outcome.ABSENT]
    assert line.store.counts().total("held") == 0


def test_other_keys_are_not_touched(line: Line) -> None:
    """A closed key says nothing about another one."""
    other = gate_of(SCOPE, b"other")
    line.close("a")
    assert line.park("b", gate=other) == [Outcome.ABSENT]
    assert line.park("b") == [Outcome.HELD]


def test_repeats_answer_alike_or_tell_that_it_was_done(line: Line) -> None:
    """After a crash each step may be taken again: nothing is parked, released or opened twice."""
    assert [line.close("a"), line.close("a")] == [Outcome.DONE, Outcome.DONE]
    assert line.close("z") is Outcome.WRONG_STATE
    assert line.park("a") == [Outcome.DONE], "the head that closed it is to be handled again"
    assert [line.park("b"), line.park("b")] == [[Outcome.HELD], [Outcome.DUPLICATE]]
    assert line.gates.succeeded([(GATE, "a")]) == [Outcome.DONE]
    assert line.gates.succeeded([(GATE, "a")]) == [Outcome.ABSENT]
    assert line.park("a") == [Outcome.DUPLICATE], "it has succeeded"
    assert line.park("b") == [Outcome.DUPLICATE], "it was released and is on its way"
    assert line.gates.look([(GATE, "a"), (GATE, "b"), (GATE, "x")]) == [
        Outcome.DUPLICATE,
        Outcome.DONE,
        Outcome.ABSENT,
    ]
    line.now_ms += 90_000_000
    assert line.gates.look([(GATE, "a")]) == [Outcome.ABSENT], "a day is enough to remember"


def test_a_late_copy_of_one_that_has_succeeded_closes_nothing(line: Line) -> None:
    """It was through before its offset was, and was read and failed again: nobody waits for it, nor behind it."""
    line.close("a")
    line.park("b")
    line.gates.succeeded([(GATE, "a"), (GATE, "b")])
    assert line.close("b") is Outcome.DUPLICATE
    assert line.head is None
    assert line.park("c") == [Outcome.ABSENT]
    line.close("c")
    assert line.close("b") is Outcome.DUPLICATE
    assert line.head == "c"


def test_a_full_line_parks_no_more(line: Line) -> None:
    """The bound is told; what stands in line stays as it is."""
    line.close("a")
    assert line.park("b", "c", "d", cap=2) == [Outcome.HELD, Outcome.HELD, Outcome.WRONG_STATE]
    line.gates.succeeded([(GATE, "a")])
    assert line.park("d", cap=2) == [Outcome.HELD]


def test_only_the_owner_closes_and_parks(line: Line) -> None:
    """A reader that was stopped for longer than its lease changes nothing when it goes on."""
    assert line.gates.own(SCOPE, "other", 1_000).epoch == 0
    line.now_ms += 60_000
    taken = line.gates.own(SCOPE, "other", 1_000)
    assert taken.epoch > line.owner.epoch
    assert line.close("a") is Outcome.STALE
    assert line.park("b") == [Outcome.STALE]
    line.gates.leave(SCOPE, "other")
    assert line.gates.own(SCOPE, "me", 1_000).epoch > taken.epoch, "and not under its old epoch either"
    assert line.close("a") is Outcome.STALE


@pytest.mark.parametrize("end", ["dead", "cancelled", "cancelled in flight", "poison"])
def test_a_head_that_is_given_up_in_the_store_lets_the_next_one_follow(line: Line, end: str) -> None:
    """Whoever ends the head, the same script releases the next of its key."""
    line.close("a")
    line.store.schedule([item("a", 1, due_ms=line.now_ms)])
    line.park("b", "c")
    if end == "cancelled":
        assert line.store.cancel(["a.1"], route=route_of(GATE)) == [Outcome.DONE]
    else:
        shards = range(line.store.shards)
        claim = next(one for one in (line.store.claim(shard=shard, lease_ms=100) for shard in shards) if one.items)
        if end == "dead":
            line.store.settle(claim, [Dead("a.1", "the broker refused it")])
        elif end == "cancelled in flight":
            assert line.store.cancel(["a.1"], route=route_of(GATE)) == [Outcome.CANCELLED]
            line.store.settle(claim, [Next("a.1", line.now_ms)])
        else:
            line.now_ms += 1_000
            line.store.sweep(lapse_cap=1)
    assert line.head == "b"
    assert line.released() == ["b.0"]


@pytest.mark.parametrize("end", ["by the intake", "in the store", "in line"])
def test_what_was_given_up_is_known_at_its_own_place(line: Line, end: str) -> None:
    """Read again after a crash it neither closes its key nor stands in line; who copied its id is another message."""
    line.close("z" if end == "in line" else "a")
    if end == "in line":
        line.park("a")
        line.store.cancel(["a.0"], route=route_of(GATE))
    elif end == "in the store":
        line.store.schedule([item("a", 1, due_ms=line.now_ms)])
        line.store.cancel(["a.1"], route=route_of(GATE))
    else:
        line.gates.given_up([(GATE, "a")])
    assert line.close("a", gate_of(SCOPE, b"other")) is Outcome.DUPLICATE
    line.close("z")
    assert line.park("a") == [Outcome.DUPLICATE]
    assert line.gates.look([(GATE, "a")]) == [Outcome.ABSENT], "a letter let out again is handled outside the order"
    assert line.close("a", gate_of(SCOPE, b"other"), placed=False) is Outcome.DONE
    assert line.park("a", placed=False) == [Outcome.HELD]
    line.now_ms += 86_400_001
    assert line.close("a", gate_of(SCOPE, b"third")) is Outcome.DONE


def test_settling_a_head_that_was_published_keeps_the_key_closed(line: Line) -> None:
    """It is on its way to its handler; the key waits for what the handler says."""
    line.close("a")
    line.store.schedule([item("a", 1, due_ms=line.now_ms)])
    line.park("b")
    assert line.released() == ["a.1"]
    assert line.head == "a"
    assert line.released() == []


def test_a_parked_one_that_was_deleted_or_let_out_by_hand_is_passed_over(line: Line) -> None:
    """People may reach into the line; it goes on behind the gap."""
    line.close("a")
    line.park("b", "c", "d")
    route = route_of(GATE)
    assert line.store.change([Alteration("b.0", "c"), Alteration("c.0", "u", line.now_ms)], route=route) == [
        Outcome.DONE,
        Outcome.DONE,
    ]
    assert line.released() == ["c.0"]
    line.gates.succeeded([(GATE, "a")])
    assert line.released() == ["d.0"]


def test_a_head_that_is_rescheduled_or_paused_keeps_its_place(line: Line) -> None:
    """Later is not given up."""
    line.close("a")
    line.store.schedule([item("a", 1, due_ms=line.now_ms)])
    line.park("b")
    line.store.reschedule(["a.1"], line.now_ms + 10_000, route=route_of(GATE))
    line.store.pause("orders")
    line.store.resume("orders")
    assert line.head == "a"
    line.now_ms += 10_000
    assert line.released() == ["a.1"]


def test_a_paused_topic_keeps_the_next_one_back_as_the_head(line: Line) -> None:
    """A release into a paused topic waits for its resume, and the key with it."""
    line.close("a")
    line.park("b")
    line.store.pause("orders")
    line.gates.succeeded([(GATE, "a")])
    assert (line.head, line.released()) == ("b", [])
    line.store.resume("orders")
    assert line.released() == ["b.0"]


def test_a_dead_letter_that_is_let_out_again_has_lost_its_place(line: Line) -> None:
    """The key went on without it; its second death lets nobody follow."""
    line.close("a")
    line.gates.given_up([(GATE, "a")])
    line.close("b")
    line.park("c")
    line.store.bury([(item("a", 3, due_ms=line.now_ms), "dead: by test")])
    line.store.requeue([("a.3", line.now_ms, None)], route=route_of(GATE))
    shards = range(line.store.shards)
    claim = next(one for one in (line.store.claim(shard=shard) for shard in shards) if one.items)
    line.store.settle(claim, [Dead("a.3", "again")])
    assert line.head == "b"


def test_somebody_can_open_a_key_by_hand(line: Line) -> None:
    """When the head was lost outside the store, a person lets the next one follow."""
    line.close("a")
    line.park("b")
    assert line.gates.pass_by_hand([GATE]) == [Outcome.DONE]
    assert line.head == "b"
    assert line.gates.pass_by_hand([GATE, GATE]) == [Outcome.DONE, Outcome.ABSENT]


def test_counts_and_listings_tell_what_is_parked(line: Line) -> None:
    """Closed keys and lines are visible, with the key for people."""
    line.close("a")
    line.park("b", "c")
    assert line.gates.counts(["orders", "none"]) == (1, {"orders": 2, "none": 0})
    (key,) = line.gates.closed()
    assert (key.gate, key.label, key.head, key.parked, key.released) == (GATE, "k", "a", 2, False)
    held = line.store.list_items("held").found
    assert [found.id for found in held] == ["b.0", "c.0"]
    assert {found.reason for found in held} == {f"ordered: key {GATE}"}


def test_a_backup_keeps_the_lines(line: Line, tmp_path: Path) -> None:
    """What was parked stands in line again; who its head was is not known, so the next to succeed is."""
    line.close("a")
    line.park("b", "c")
    write_backup(line.store, tmp_path / "file", namespace="n")
    for found in line.store.list_items("held").found:
        line.store.cancel([found.id], route=found.route)
    line.gates.pass_by_hand([GATE])
    assert line.head is None
    target = DelayStore(MemoryBackend(1, clock="test"), test_clock=lambda: line.now_ms).open()
    restore_backup(target, tmp_path / "file")
    gates = KeyGates(target)
    assert [(key.head, key.parked) for key in gates.closed()] == [(UNKNOWN_HEAD, 2)]
    gates.succeeded([(GATE, "a")])
    assert [found.id for found in target.claim().items] == ["b.0"]
