"""Cases: logs taken in with their position, one owner of a shard, open claims ended by their number."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected, StaleCount, StaleEpoch, StalePosition, TakenId
from wheel_sched.store.core.items import ENDED, Item, Outcome, Ownership, Position, Resolved
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.key_gates import KeyGates, gate_of, ref_of, scope_of
from wheel_sched.store.operations import Call, ClaimDue, Own, Resolve
from wheel_sched.store.operations.ordering import Owner
from wheel_sched.testing.store_conformance.bench import Bench


class OwningCases:
    """What a broker needs that keeps an account of its own."""

    def test_a_slice_moves_its_position_with_it(self, bench: Bench) -> None:
        """Items, dead letters and position come in one step, and only from the position expected."""
        items = [Item("a", bench.now_ms, b"1", "t"), Item("b", bench.now_ms + 5, b"2", "t")]
        graves = [(Item("c", bench.now_ms, b"3", "t", ("fp:x",)), "fatal: no")]
        assert bench.store.positions(["s", "other"]) == [None, None]
        stored = bench.store.accept(Position("s", None, 7), items, graves)
        assert stored.outcomes == [Outcome.STORED] * 3
        assert bench.store.positions(["s", "other"]) == [7, None]
        assert bench.states("a", "b", "c") == ["due", "due", "dead"]
        assert (bench.one("c").reason, bench.store.find("fp:x")) == ("fatal: no", ["c"])

    @pytest.mark.parametrize("expected", [None, 0, 6, 8])
    def test_a_slice_from_elsewhere_stores_nothing(self, bench: Bench, expected: int | None) -> None:
        """A zombie's slice, an old one again, one with a gap before it: nothing changes, and the position is told."""
        bench.store.accept(Position("s", None, 7), [])
        with pytest.raises(StalePosition) as refused:
            bench.store.accept(Position("s", expected, 9), [Item("a", bench.now_ms, b"")])
        assert refused.value.position == 7
        assert (bench.states("a"), bench.store.positions(["s"])) == ([None], [7])

    def test_a_source_nobody_brought_begins_with_none(self, bench: Bench) -> None:
        """Whoever thinks that the store knows a position it does not know is told so."""
        with pytest.raises(StalePosition) as refused:
            bench.store.accept(Position("s", 3, 9), [])
        assert refused.value.position is None

    def test_a_repeated_slice_answers_alike(self, bench: Bench) -> None:
        """After a lost reply, under the same token."""
        slice_ = Position("s", None, 2), [Item("a", bench.now_ms, b"")]
        first = bench.store.accept(*slice_, token="token-1")
        assert bench.store.accept(*slice_, token="token-1").outcomes == first.outcomes
        assert bench.store.positions(["s"]) == [2]

    def test_a_slice_comes_with_its_attempt_records(self, bench: Bench) -> None:
        """They are raised with it, each to the greatest that is brought, and kept as long as is told."""
        until_ms = bench.now_ms + 60_000
        tries = [("a:0", 2, until_ms), ("a!", 0, None), ("b:0", 5, until_ms), ("b:0", 4, until_ms + 9_000)]
        bench.store.accept(Position("s", None, 3), [Item("a.2", bench.now_ms, b"")], tries=tries)
        asked = [("a:0", 0, 0), ("a!", 0, 0), ("b:0", 0, 0), ("c:0", 0, 0)]
        assert bench.store.remember(asked) == [2, 0, 5, 0]
        bench.store.accept(Position("s", 3, 4), [Item("a.3", bench.now_ms, b"")], tries=[("a:0", 3, until_ms)])
        assert bench.store.remember(asked[:1]) == [3]
        many = [(f"{n}:0", 1_500, until_ms) for n in range(3)]  # more than a record can say
        bench.store.accept(Position("s", 4, 5), [], tries=many)
        assert bench.store.remember([("2:0", 0, 0)]) == [998]

    @pytest.mark.parametrize(
        "behind", [("a:0", 3, 1), ("a:0", 2, 1), ("a:0", 2, None), ("b!", 1, None), ("e", 1_500, 1)]
    )
    def test_a_slice_whose_counts_are_behind_stores_nothing(
        self, bench: Bench, behind: tuple[str, int, int | None]
    ) -> None:
        """One attempt record that knows as many, or others than these: not even the other records are raised."""
        until_ms = bench.now_ms + 60_000
        bench.store.remember([("a:0", 3, until_ms), ("e", ENDED, until_ms)])
        items = [Item("x", bench.now_ms, b"")]
        with pytest.raises(StaleCount):
            bench.store.accept(Position("s", None, 3), items, tries=[("c:0", 1, until_ms), behind])
        assert (bench.states("x"), bench.store.positions(["s"])) == ([None], [None])
        assert bench.store.remember([("c:0", 0, 0), ("a:0", 0, 0)]) == [0, 3]
        stored = bench.store.accept(Position("s", None, 3), items, tries=[("a:0", 4, until_ms), ("b!", 0, None)])
        assert stored.outcomes == [Outcome.STORED]

    def test_a_slice_from_elsewhere_is_told_so_before_its_counts(self, bench: Bench) -> None:
        """Read again after a takeover, its records are all known, and its place is what is wrong with it."""
        slice_ = Position("s", None, 3), [Item("a", bench.now_ms, b"")]
        tries = [("a:0", 1, bench.now_ms + 60_000)]
        bench.store.accept(*slice_, tries=tries)
        with pytest.raises(StalePosition):
            bench.store.accept(*slice_, tries=tries)

    @pytest.mark.parametrize("state", ["due", "held", "dead"])
    @pytest.mark.parametrize("dies", [False, True])
    def test_a_slice_with_an_id_that_is_there_stores_nothing(self, bench: Bench, state: str, dies: bool) -> None:
        """Wherever it lies, and whatever the slice wants with it: neither the rest nor the position goes without it."""
        there = Item("b", None if state == "held" else bench.now_ms, b"first")
        bench.store.bury([(there, "why")]) if state == "dead" else bench.store.schedule([there])
        until_ms = bench.now_ms + 60_000
        items, taken = [Item("a", bench.now_ms, b"1")], Item("b", bench.now_ms, b"2")
        graves = [(taken, "fatal")] if dies else []
        with pytest.raises(TakenId):
            bench.store.accept(
                Position("s", None, 3), items if dies else [*items, taken], graves, tries=[("a:0", 1, until_ms)]
            )
        assert (bench.states("a", "b"), bench.store.positions(["s"])) == ([None, state], [None])
        assert (bench.one("b").body, bench.store.remember([("a:0", 0, 0)])) == (b"first", [0])
        assert bench.store.accept(Position("s", None, 3), items).outcomes == [Outcome.STORED]

    def test_a_slice_with_an_id_twice_stores_nothing(self, bench: Bench) -> None:
        """Among those that wait, or one of them among the dead."""
        item = Item("a", bench.now_ms, b"")
        for items, graves in (([item, item], []), ([item], [(item, "fatal")])):
            with pytest.raises(TakenId):
                bench.store.accept(Position("s", None, 2), items, graves)
        assert (bench.states("a"), bench.store.positions(["s"])) == ([None], [None])

    def test_a_slice_in_two_halves(self, bench: Bench) -> None:
        """What was sent is asked after later; errors come with the answer, what is malformed is not sent."""
        answer = bench.store.begin_accept(Position("s", None, 3), [Item("a", bench.now_ms, b"")], token="token-2")
        assert answer().outcomes == [Outcome.STORED]
        again = bench.store.begin_accept(Position("s", None, 3), [Item("a", bench.now_ms, b"")], token="token-2")
        assert again().outcomes == [Outcome.STORED]
        stale = bench.store.begin_accept(Position("s", None, 3), [])
        with pytest.raises(StalePosition):
            stale()
        with pytest.raises(Rejected):
            bench.store.begin_accept(Position("s", 3, 4), [Item("", None, b"")])

    def test_attempt_records_of_a_slice_lie_in_their_own_shards(self, wide: Bench) -> None:
        """They are compared and raised wherever they are."""
        until_ms = wide.now_ms + 60_000
        tries = [(f"{n}:0", 1, until_ms) for n in range(8)]
        items = [Item("a", wide.now_ms, b"", route="s")]
        answer = wide.store.begin_accept(Position("s", None, 8), items, tries=tries)
        assert answer().outcomes == [Outcome.STORED]
        assert wide.store.remember([(key, 0, 0) for key, _, _ in tries]) == [1] * 8
        with pytest.raises(StaleCount):
            wide.store.accept(Position("s", 8, 9), [], tries=[("9:0", 1, until_ms), ("5:0", 1, until_ms)])
        assert wide.store.positions(["s"]) == [8]

    def test_a_malformed_position_is_refused(self, bench: Bench) -> None:
        """Before anything is sent."""
        for position in (Position("", None, 1), Position("s", -1, 1), Position("s", 0, -1)):
            with pytest.raises(Rejected):
                bench.store.accept(position, [])

    def test_slices_lie_in_the_shard_of_their_source(self, wide: Bench) -> None:
        """With the source as their route, whichever shard that is."""
        for source in ("s", "s2", "s3"):
            items = [Item(f"{source}-{n}", wide.now_ms, b"", route=source) for n in range(3)]
            wide.store.accept(Position(source, None, 3), items)
        assert wide.store.positions(["s", "s2", "s3"]) == [3, 3, 3]
        with pytest.raises(Rejected):
            wide.store.accept(Position("s", 3, 4), [Item("x", wide.now_ms, b"")])

    def test_a_route_leads_to_a_position_of_another_shard(self, wide: Bench) -> None:
        """A source has one position in each shard that it was stored in; what lies in another one is refused."""
        shards = range(wide.store.shards)
        routes = [next(f"r{n}" for n in range(1_000) if shard_of(f"r{n}", len(shards)) == shard) for shard in shards]
        for shard, route in enumerate(routes):
            items = [Item(f"x{shard}", wide.now_ms, b"", route=route)]
            wide.store.accept(Position("s", None, 3 + shard, route), items)
            with pytest.raises(StalePosition) as refused:
                wide.store.accept(Position("s", None, 9, route), [])
            assert refused.value.position == 3 + shard
        assert wide.store.positions(["s"]) == [3 + shard_of("s", len(shards))]
        with pytest.raises(Rejected):
            wide.store.accept(Position("t", None, 1, routes[0]), [Item("y", wide.now_ms, b"", route=routes[1])])
        with pytest.raises(Rejected):
            wide.store.accept(Position("t", None, 1, "two\nlines"), [])

    def test_a_shard_has_one_owner_at_a_time(self, bench: Bench) -> None:
        """Until its time is over or it gives up; a new owner raises the epoch, the same one does not."""
        first = self._own(bench, "one", 1_000)
        assert (first.mine, first.new) == (True, True)
        other = self._own(bench, "two", 1_000)
        assert (other.mine, other.owner, other.until_ms) == (False, "one", bench.now_ms + 1_000)
        again = self._own(bench, "one", 1_000)
        assert (again.mine, again.new, again.epoch) == (True, False, first.epoch)
        bench.clock.advance(1_000)
        taken = self._own(bench, "two", 1_000)
        assert (taken.mine, taken.new, taken.epoch) == (True, True, first.epoch + 1)
        assert not self._own(bench, "one", 1_000).mine
        self._own(bench, "two", 0)
        assert self._own(bench, "one", 1_000).new

    def test_a_predecessor_claims_nothing(self, bench: Bench) -> None:
        """Its epoch is over."""
        epoch = self._own(bench, "one", 10).epoch
        bench.clock.advance(10)
        self._own(bench, "two", 10)
        bench.put("a")
        (answer,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, epoch=epoch))])
        assert isinstance(answer, StaleEpoch)

    def test_a_claims_number_is_above_what_went_out(self, bench: Bench) -> None:
        """Also when the store has forgotten that it had given it out."""
        bench.put("a", "b")
        (first,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, above=41))])
        (second,) = bench.store.execute([Call(0, ClaimDue(1, 1_000, above=5))])
        assert (first.number, second.number) == (42, 43)
        bench.settle_all(first)
        bench.settle_all(second)

    def test_open_claims_end_by_their_number(self, bench: Bench) -> None:
        """Up to it they went out, above it they wait again; one that was cancelled is gone either way."""
        bench.put("a", "b", "c", "d")
        claims = [bench.claim(limit=1) for _ in range(4)]
        bench.store.cancel(["d"])
        resolved = self._resolve(bench, claims[0].number)
        assert (resolved.completed, resolved.released, resolved.held, resolved.more) == (2, 2, 0, False)
        assert bench.states("a", "b", "c", "d") == [None, "due", "due", None]
        assert bench.settle_all(claims[1]) == [Outcome.STALE]
        assert bench.store.counts().ever["lapsed", ""] == 2

    def test_the_head_of_a_key_that_ends_so_lets_the_next_one_follow(self, bench: Bench) -> None:
        """Cancelled while its claim was open: as wherever else a head is given up."""
        scope = scope_of("g", "t")
        gate, holder = gate_of(scope, b"k"), Owner(scope, "me", 1)
        gates = KeyGates(bench.store)
        gates.own(scope, "me", 60_000)
        gates.close(holder, [(gate, "a", True, "k")])
        bench.store.schedule([Item("a.1", bench.now_ms, b"", "t", (ref_of(gate),), scope)])
        gates.park(holder, 10, [(gate, "b", True, Item("b.0", bench.now_ms, b"", "t", (ref_of(gate),), scope))])
        bench.claim()
        bench.store.cancel(["a.1"])
        assert self._resolve(bench, 0).completed == 1
        assert bench.states("a.1", "b.0") == [None, "due"]

    def test_a_claim_in_somebodys_hands_is_spared(self, bench: Bench) -> None:
        """The one that is being sent right now."""
        bench.put("a", "b")
        one, two = bench.claim(limit=1), bench.claim(limit=1)
        self._resolve(bench, 0, spared=two.number)
        assert bench.states("a", "b") == ["due", "fly"]
        assert bench.settle_all(two) == [Outcome.DONE]
        assert one.number < two.number

    def test_what_nobody_knows_is_held(self, bench: Bench) -> None:
        """In doubt: neither sent again nor forgotten."""
        bench.put("a", topic="t")
        bench.claim()
        assert self._resolve(bench, None).held == 1
        assert bench.one("a").reason.startswith("in-doubt")

    def test_only_the_present_owner_ends_claims(self, bench: Bench) -> None:
        """A predecessor that wakes up in the middle of its own take-over does nothing."""
        epoch = self._own(bench, "one", 10).epoch
        bench.clock.advance(10)
        self._own(bench, "two", 10)
        (answer,) = bench.store.execute([Call(0, Resolve(epoch, 0))])
        assert isinstance(answer, StaleEpoch)

    def test_dispatchers_that_keep_dying_over_an_item_bury_it(self, bench: Bench) -> None:
        """At the cap, as leases that run out do."""
        bench.put("a", topic="t")
        for _ in range(2):
            bench.claim()
            self._resolve(bench, 0, lapse_cap=2)
        assert bench.one("a").state == "dead"
        assert bench.one("a").reason.startswith("poison")

    def _own(self, bench: Bench, owner: str, lease_ms: int) -> Ownership:
        (answer,) = bench.store.execute([Call(0, Own(owner, lease_ms))])
        assert isinstance(answer, Ownership)
        return answer

    def _resolve(
        self, bench: Bench, committed: int | None, *, spared: int | None = None, lapse_cap: int = 0
    ) -> Resolved:
        epoch = bench.store.counts().epoch
        (answer,) = bench.store.execute([Call(0, Resolve(epoch, committed, spared, lapse_cap))])
        assert isinstance(answer, Resolved)
        return answer
