"""Conformance tests of `schedule`: which items it accepts and stores, and what it returns."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import MAX_BATCH, MAX_DUE_MS, Item, Outcome
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Dead
from wheel_sched.testing.store_conformance.bench import Bench

ALL_BYTES = bytes(range(256))


class SchedulingCases:
    """Tests of `schedule`."""

    def test_an_item_comes_back_as_it_was_stored(self, bench: Bench) -> None:
        """A stored item comes back with its topic, refs, route and due time, and every byte of its body."""
        item = Item("a", bench.now_ms + 5, ALL_BYTES, "mail", ("tag:x", "tag:y"), "route-1")
        assert bench.store.schedule([item]).outcomes == [Outcome.STORED]
        found = bench.one("a")
        assert (found.item(), found.state, found.reason) == (item, "due", "")
        assert found.version > 0

    @pytest.mark.parametrize(
        "item_id",
        ["a", "é✓", "a\nb", "1:b", "x\n1:b", " ", "{x}:y", "é" * 256, ALL_BYTES.decode("utf-8", "surrogateescape")],
        ids=["plain", "unicode", "lines", "length", "framed", "blank", "hash tag", "512 bytes", "binary"],
    )
    def test_any_text_of_up_to_512_bytes_is_an_id(self, bench: Bench, item_id: str) -> None:
        """Ids with separators, blanks, line ends or bytes outside UTF-8 can be scheduled, claimed and settled."""
        assert bench.put(item_id) == [Outcome.STORED]
        claim = bench.claim()
        assert [item.id for item in claim.items] == [item_id]
        assert bench.settle_all(claim) == [Outcome.DONE]
        assert bench.states(item_id) == [None]

    @pytest.mark.parametrize("topic", ["", ":", "a:b", "due:x", "é", "with space", "n:due:", "paused"])
    def test_any_line_is_a_topic(self, bench: Bench, topic: str) -> None:
        """Separators in a topic do not mix up counts, pauses or indexes."""
        bench.put("a", topic=topic)
        bench.put("b", topic="other")
        assert bench.store.pause(topic) == 1
        assert [item.id for item in bench.claim().items] == ["b"]
        assert bench.store.counts().now == {("held", topic): 1, ("leased", "other"): 1}
        assert list(bench.store.counts().paused) == [topic]
        assert bench.store.resume(topic) == 1
        assert bench.claim().items[0].topic == topic

    def test_the_empty_body_is_a_body(self, bench: Bench) -> None:
        """An item with an empty body is stored and claimed with this body."""
        bench.store.schedule([Item("a", bench.now_ms, b"")])
        assert bench.one("a").body == b""
        assert bench.claim().items[0].body == b""

    def test_no_due_means_parked(self, bench: Bench) -> None:
        """An item without a due time is held and is never claimed."""
        assert bench.put("a", in_ms=None) == [Outcome.HELD]
        found = bench.one("a")
        assert (found.state, found.reason, found.score_ms, found.item().due_ms) == ("held", "parked", 0, None)
        bench.clock.advance(10**9)
        assert bench.claim().items == []

    def test_the_extreme_dues_are_kept_exactly(self, bench: Bench) -> None:
        """An item with a due time in 1970 is due at once. The last millisecond of the year 9999 is kept exactly."""
        bench.store.schedule([Item("old", 0, b""), Item("far", MAX_DUE_MS, b""), Item("odd", MAX_DUE_MS - 1, b"")])
        assert [item.due_ms for item in bench.claim().items] == [0]
        assert [found.score_ms for found in bench.everything("due")] == [MAX_DUE_MS - 1, MAX_DUE_MS]

    def test_an_id_is_stored_once_wherever_it_is(self, bench: Bench) -> None:
        """An id whose item waits, is in flight, held or dead is DUPLICATE, and the first item is not changed."""
        bench.bury("dead")
        bench.put("leased")
        bench.claim()
        bench.put("due", in_ms=1000)
        bench.put("held", in_ms=None)
        ids = ["due", "leased", "held", "dead"]
        assert bench.states(*ids) == ids
        again = [Item(i, bench.now_ms, b"second") for i in [*ids, "new"]]
        assert bench.store.schedule(again).outcomes == [Outcome.DUPLICATE] * 4 + [Outcome.STORED]
        assert bench.states(*ids) == ids
        assert [bench.one(i).body for i in ids] == [i.encode() for i in ids]

    def test_one_item_without_a_token_is_stored_like_any_other(self, bench: Bench) -> None:
        """One item without a token is stored once, with its refs, and counted. In a paused topic it is held."""
        bench.bury("dead")
        item = Item("a", bench.now_ms + 5, ALL_BYTES, "mail", ("tag:x", "tag:y"), "route-1")
        outcomes = [bench.store.schedule([each], token="").outcomes for each in (item, item)]
        assert outcomes == [[Outcome.STORED], [Outcome.DUPLICATE]]
        assert bench.store.schedule([Item("dead", bench.now_ms, b"")], token="").outcomes == [Outcome.DUPLICATE]
        found = bench.one("a")
        assert (found.item(), found.state) == (item, "due")
        assert bench.store.find("tag:y") == ["a"]
        bench.put("b", topic="mail", in_ms=5)
        assert bench.one("b").version > found.version
        assert bench.store.counts().now[("due", "mail")] == bench.store.counts().ever[("accepted", "mail")] == 2
        bench.store.pause("mail")
        assert bench.store.schedule([Item("c", bench.now_ms, b"", "mail")], token="").outcomes == [Outcome.HELD]
        assert bench.store.schedule([Item("d", None, b"")], token="").outcomes == [Outcome.HELD]

    def test_one_item_without_a_token_raises_the_marker_when_it_is_the_first(self, bench: Bench) -> None:
        """Without a token, only an item that is due before all others writes the marker that wakes dispatchers."""
        marks = []
        for item_id, in_ms in (("first", 500), ("later", 900), ("as early", 500), ("earlier", 100)):
            bench.store.schedule([Item(item_id, bench.now_ms + in_ms, b"")], token="")
            (window,) = bench.store.windows(1000)
            marks.append(window.mark)
            assert window.due_head_ms == bench.now_ms + min(500, in_ms)
        assert marks[0] == marks[1] == marks[2] != marks[3]

    def test_an_id_twice_in_one_batch_is_stored_once(self, bench: Bench) -> None:
        """Of two items with one id, the store keeps the first."""
        batch = [Item("a", bench.now_ms, b"1"), Item("b", bench.now_ms, b"2"), Item("a", None, b"3")]
        assert bench.store.schedule(batch).outcomes == [Outcome.STORED, Outcome.STORED, Outcome.DUPLICATE]
        assert bench.one("a").body == b"1"

    def test_a_finished_id_may_be_used_again(self, bench: Bench) -> None:
        """After its item has left the store, an id can be used for a new item."""
        bench.put("a")
        bench.settle_all(bench.claim())
        assert bench.put("a") == [Outcome.STORED]

    def test_a_repeat_gives_the_first_answer(self, bench: Bench) -> None:
        """A repeat under the same token returns STORED again and stores nothing, also when the item has left."""
        batch = [Item("a", bench.now_ms, b""), Item("b", None, b""), Item("a", None, b"")]
        first = bench.store.schedule(batch, token="t")
        bench.settle_all(bench.claim())
        again = bench.store.schedule(batch, token="t")
        assert again.outcomes == first.outcomes == [Outcome.STORED, Outcome.HELD, Outcome.DUPLICATE]
        assert (first.accepted, bench.states("a", "b")) == (2, [None, "held"])
        assert bench.put("b") == [Outcome.DUPLICATE]

    def test_a_batch_of_mixed_topics_is_counted_per_topic(self, bench: Bench) -> None:
        """Items with and without refs and routes, in any order of topics, count under their own topic."""
        topics = ["a", "a", "b", "ab", "a", "", "b"]
        items = [
            Item(f"i{n}", bench.now_ms, b"1:0:0:a", topic, ("r",) if n % 2 else (), "x" if n % 3 else None)
            for n, topic in enumerate(topics)
        ]
        bench.store.schedule(items)
        assert bench.store.counts().now == {("due", "a"): 3, ("due", "b"): 2, ("due", "ab"): 1, ("due", ""): 1}
        assert [bench.one(item.id).item() for item in items] == items

    def test_nothing_is_a_batch_too(self, bench: Bench) -> None:
        """Scheduling no items is allowed and returns no outcomes."""
        assert bench.store.schedule([]).outcomes == []
        assert bench.store.execute([Call(0, Schedule([]))])[0].outcomes == []

    def test_more_than_500_items_are_split(self, wide: Bench) -> None:
        """The store splits a large batch into calls of at most 500 per shard and returns the answers in order."""
        items = [Item(f"i{n}", None if n % 7 == 0 else wide.now_ms, b"") for n in range(1801)]
        outcomes = wide.store.schedule(items).outcomes
        assert outcomes == [Outcome.HELD if n % 7 == 0 else Outcome.STORED for n in range(1801)]
        assert wide.store.schedule(items).accepted == 0

    def test_one_call_takes_at_most_500(self, bench: Bench) -> None:
        """A call with more than 500 items is refused, and none of them is stored."""
        items = [Item(f"i{n}", 0, b"") for n in range(MAX_BATCH + 1)]
        (answer,) = bench.store.execute([Call(0, Schedule(items))])
        assert isinstance(answer, Rejected)
        assert bench.store.counts().happened("accepted") == 0
        (answer,) = bench.store.execute([Call(0, Schedule(items[1:]))])
        assert answer.accepted == MAX_BATCH

    def test_an_earlier_head_raises_the_marker(self, bench: Bench) -> None:
        """A new item that is due before all others writes the marker that wakes dispatchers, with its due time.

        An item that is due later, or has no due time, does not write it.
        """
        backend = bench.store.backend
        start = bench.store.windows(0)[0].mark
        waiter = backend.waiter(0, 1000)
        try:
            bench.put("a", in_ms=500)
            mark = backend.wait_for_mark(waiter, {0: start}, 1000)[0]
            assert mark.due_ms == bench.now_ms + 500
            assert bench.store.windows(0)[0].mark == mark.id
            bench.put("b", in_ms=600)
            bench.put("c", in_ms=None)
            assert backend.wait_for_mark(waiter, {0: mark.id}, 20) == {}
            bench.put("e", "d", in_ms=100)
            assert backend.wait_for_mark(waiter, {0: mark.id}, 1000)[0].due_ms == bench.now_ms + 100
        finally:
            waiter.close()

    def test_a_route_keeps_items_in_one_shard(self, wide: Bench) -> None:
        """Items with the same `Item.route` are in one shard, and calls that name this route find them.

        Without a route, the id of an item chooses the shard, so many items are spread over all shards.
        """
        wide.store.schedule([Item(f"i{n}", wide.now_ms, b"", route="family") for n in range(20)])
        assert sorted(counts.sizes["due"] for counts in wide.store.counts_by_shard()) == [0, 0, 20]
        assert all(wide.store.get([f"i{n}" for n in range(20)], route="family"))
        assert wide.store.cancel(["i3"], route="family") == [Outcome.DONE]
        assert wide.store.cancel(["i3"], route="another") == [Outcome.ABSENT]
        wide.put(*(f"j{n}" for n in range(60)))
        assert all(counts.sizes["due"] > 5 for counts in wide.store.counts_by_shard())

    def test_the_dead_keep_their_id(self, bench: Bench) -> None:
        """A new item with the id of a dead item is DUPLICATE, also in a batch whose other ids are new."""
        bench.put("x", "y")
        claim = bench.claim()
        bench.store.settle(claim, [Dead("x", "no")])
        assert bench.put("x", "z") == [Outcome.DUPLICATE, Outcome.STORED]
