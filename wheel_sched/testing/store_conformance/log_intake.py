"""Conformance tests of log batches: their position, dead letters and attempt counts."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected, StaleCount, StalePosition, TakenId
from wheel_sched.store.attempt_counts import ENDED
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.log_intake import Position
from wheel_sched.testing.store_conformance.bench import Bench


class LogIntakeCases:
    """Tests of log batches, which are stored completely or not at all, and of the conditions for that."""

    def test_a_log_batch_moves_its_position_with_it(self, bench: Bench) -> None:
        """One step stores items, dead letters and the new position, if the stored position is the expected one."""
        items = [Item("a", bench.now_ms, b"1", "t"), Item("b", bench.now_ms + 5, b"2", "t")]
        dead_letters = [(Item("c", bench.now_ms, b"3", "t", ("fp:x",)), "fatal: no")]
        assert bench.log_intake.positions(["s", "other"]) == [None, None]
        stored = bench.log_intake.accept(Position("s", None, 7), items, dead_letters)
        assert stored.outcomes == [Outcome.STORED] * 3
        assert bench.log_intake.positions(["s", "other"]) == [7, None]
        assert bench.states("a", "b", "c") == ["due", "due", "dead"]
        assert (bench.one("c").reason, bench.store.find("fp:x")) == ("fatal: no", ["c"])

    @pytest.mark.parametrize("expected", [None, 0, 6, 8])
    def test_a_log_batch_from_elsewhere_stores_nothing(self, bench: Bench, expected: int | None) -> None:
        """A batch that does not begin at the stored position changes nothing. The error has the stored position."""
        bench.log_intake.accept(Position("s", None, 7), [])
        with pytest.raises(StalePosition) as refused:
            bench.log_intake.accept(Position("s", expected, 9), [Item("a", bench.now_ms, b"")])
        assert refused.value.position == 7
        assert (bench.states("a"), bench.log_intake.positions(["s"])) == ([None], [7])

    def test_a_new_source_has_no_position(self, bench: Bench) -> None:
        """A source without a stored batch has no position. A batch that expects a position is refused."""
        with pytest.raises(StalePosition) as refused:
            bench.log_intake.accept(Position("s", 3, 9), [])
        assert refused.value.position is None

    def test_a_repeated_log_batch_answers_alike(self, bench: Bench) -> None:
        """A repeat under the same token after a lost reply gives the same answer."""
        batch = Position("s", None, 2), [Item("a", bench.now_ms, b"")]
        first = bench.log_intake.accept(*batch, token="token-1")
        assert bench.log_intake.accept(*batch, token="token-1").outcomes == first.outcomes
        assert bench.log_intake.positions(["s"]) == [2]

    def test_a_log_batch_raises_its_attempt_counts(self, bench: Bench) -> None:
        """A log batch raises the stored attempt counts of its keys. Of two numbers for one key, the greater counts."""
        until_ms = bench.now_ms + 60_000
        counts = [("a:0", 2, until_ms), ("a!", 0, None), ("b:0", 5, until_ms), ("b:0", 4, until_ms + 9_000)]
        bench.log_intake.accept(Position("s", None, 3), [Item("a.2", bench.now_ms, b"")], counts=counts)
        asked = [("a:0", 0, 0), ("a!", 0, 0), ("b:0", 0, 0), ("c:0", 0, 0)]
        assert bench.attempt_counts.raise_to(asked) == [2, 0, 5, 0]
        bench.log_intake.accept(Position("s", 3, 4), [Item("a.3", bench.now_ms, b"")], counts=[("a:0", 3, until_ms)])
        assert bench.attempt_counts.raise_to(asked[:1]) == [3]
        many = [(f"{n}:0", 1_500, until_ms) for n in range(3)]  # more than a count can hold
        bench.log_intake.accept(Position("s", 4, 5), [], counts=many)
        assert bench.attempt_counts.raise_to([("2:0", 0, 0)]) == [998]

    @pytest.mark.parametrize(
        "behind", [("a:0", 3, 1), ("a:0", 2, 1), ("a:0", 2, None), ("b!", 1, None), ("e", 1_500, 1)]
    )
    def test_a_log_batch_whose_counts_are_behind_stores_nothing(
        self, bench: Bench, behind: tuple[str, int, int | None]
    ) -> None:
        """A batch with an attempt count that is not above the stored count stores nothing.

        The same holds if the stored count is not the one that the batch expects.
        """
        until_ms = bench.now_ms + 60_000
        bench.attempt_counts.raise_to([("a:0", 3, until_ms), ("e", ENDED, until_ms)])
        items = [Item("x", bench.now_ms, b"")]
        with pytest.raises(StaleCount):
            bench.log_intake.accept(Position("s", None, 3), items, counts=[("c:0", 1, until_ms), behind])
        assert (bench.states("x"), bench.log_intake.positions(["s"])) == ([None], [None])
        assert bench.attempt_counts.raise_to([("c:0", 0, 0), ("a:0", 0, 0)]) == [0, 3]
        stored = bench.log_intake.accept(Position("s", None, 3), items, counts=[("a:0", 4, until_ms), ("b!", 0, None)])
        assert stored.outcomes == [Outcome.STORED]

    def test_a_stale_position_is_reported_before_stale_counts(self, bench: Bench) -> None:
        """A repeated batch fails both checks, of position and of counts. The error is `StalePosition`."""
        batch = Position("s", None, 3), [Item("a", bench.now_ms, b"")]
        counts = [("a:0", 1, bench.now_ms + 60_000)]
        bench.log_intake.accept(*batch, counts=counts)
        with pytest.raises(StalePosition):
            bench.log_intake.accept(*batch, counts=counts)

    @pytest.mark.parametrize("state", ["due", "held", "dead"])
    @pytest.mark.parametrize("dies", [False, True])
    def test_a_log_batch_with_an_id_that_exists_stores_nothing(self, bench: Bench, state: str, dies: bool) -> None:
        """The store refuses a whole log batch when one of its ids exists, and keeps the old position.

        The existing item can be due, held or dead. In the batch, an item or a dead letter has the same id.
        """
        there = Item("b", None if state == "held" else bench.now_ms, b"first")
        bench.store.bury([(there, "why")]) if state == "dead" else bench.store.schedule([there])
        until_ms = bench.now_ms + 60_000
        items, taken = [Item("a", bench.now_ms, b"1")], Item("b", bench.now_ms, b"2")
        dead_letters = [(taken, "fatal")] if dies else []
        with pytest.raises(TakenId):
            bench.log_intake.accept(
                Position("s", None, 3), items if dies else [*items, taken], dead_letters, counts=[("a:0", 1, until_ms)]
            )
        assert (bench.states("a", "b"), bench.log_intake.positions(["s"])) == ([None, state], [None])
        assert (bench.one("b").body, bench.attempt_counts.raise_to([("a:0", 0, 0)])) == (b"first", [0])
        assert bench.log_intake.accept(Position("s", None, 3), items).outcomes == [Outcome.STORED]

    def test_a_log_batch_with_an_id_twice_stores_nothing(self, bench: Bench) -> None:
        """The store refuses a batch that has an id twice: in two items, or in an item and a dead letter."""
        item = Item("a", bench.now_ms, b"")
        for items, dead_letters in (([item, item], []), ([item], [(item, "fatal")])):
            with pytest.raises(TakenId):
                bench.log_intake.accept(Position("s", None, 2), items, dead_letters)
        assert (bench.states("a"), bench.log_intake.positions(["s"])) == ([None], [None])

    def test_a_log_batch_in_two_halves(self, bench: Bench) -> None:
        """`begin_accept` sends the batch, and its caller asks for the answer later. A malformed batch is not sent."""
        answer = bench.log_intake.begin_accept(Position("s", None, 3), [Item("a", bench.now_ms, b"")], token="token-2")
        assert answer().outcomes == [Outcome.STORED]
        again = bench.log_intake.begin_accept(Position("s", None, 3), [Item("a", bench.now_ms, b"")], token="token-2")
        assert again().outcomes == [Outcome.STORED]
        stale = bench.log_intake.begin_accept(Position("s", None, 3), [])
        with pytest.raises(StalePosition):
            stale()
        with pytest.raises(Rejected):
            bench.log_intake.begin_accept(Position("s", 3, 4), [Item("", None, b"")])

    def test_attempt_counts_of_a_log_batch_lie_in_their_own_shards(self, wide: Bench) -> None:
        """A log batch also compares and raises attempt counts that are in other shards than its items."""
        until_ms = wide.now_ms + 60_000
        counts = [(f"{n}:0", 1, until_ms) for n in range(8)]
        items = [Item("a", wide.now_ms, b"", route="s")]
        answer = wide.log_intake.begin_accept(Position("s", None, 8), items, counts=counts)
        assert answer().outcomes == [Outcome.STORED]
        assert wide.attempt_counts.raise_to([(key, 0, 0) for key, _, _ in counts]) == [1] * 8
        with pytest.raises(StaleCount):
            wide.log_intake.accept(Position("s", 8, 9), [], counts=[("9:0", 1, until_ms), ("5:0", 1, until_ms)])
        assert wide.log_intake.positions(["s"]) == [8]

    def test_a_malformed_position_is_refused(self, bench: Bench) -> None:
        """A malformed position is refused before anything is sent."""
        for position in (Position("", None, 1), Position("s", -1, 1), Position("s", 0, -1)):
            with pytest.raises(Rejected):
                bench.log_intake.accept(position, [])

    def test_log_batches_lie_in_the_shard_of_their_source(self, wide: Bench) -> None:
        """The items of a log batch have its source as their route. An item in another shard is refused."""
        for source in ("s", "s2", "s3"):
            items = [Item(f"{source}-{n}", wide.now_ms, b"", route=source) for n in range(3)]
            wide.log_intake.accept(Position(source, None, 3), items)
        assert wide.log_intake.positions(["s", "s2", "s3"]) == [3, 3, 3]
        with pytest.raises(Rejected):
            wide.log_intake.accept(Position("s", 3, 4), [Item("x", wide.now_ms, b"")])

    def test_a_route_leads_to_a_position_of_another_shard(self, wide: Bench) -> None:
        """With routes, a source has a position of its own in each shard. An item of another shard is refused."""
        shards = range(wide.store.shards)
        routes = [next(f"r{n}" for n in range(1_000) if shard_of(f"r{n}", len(shards)) == shard) for shard in shards]
        for shard, route in enumerate(routes):
            items = [Item(f"x{shard}", wide.now_ms, b"", route=route)]
            wide.log_intake.accept(Position("s", None, 3 + shard, route), items)
            with pytest.raises(StalePosition) as refused:
                wide.log_intake.accept(Position("s", None, 9, route), [])
            assert refused.value.position == 3 + shard
        assert wide.log_intake.positions(["s"]) == [3 + shard_of("s", len(shards))]
        with pytest.raises(Rejected):
            wide.log_intake.accept(Position("t", None, 1, routes[0]), [Item("y", wide.now_ms, b"", route=routes[1])])
        with pytest.raises(Rejected):
            wide.log_intake.accept(Position("t", None, 1, "two\nlines"), [])
