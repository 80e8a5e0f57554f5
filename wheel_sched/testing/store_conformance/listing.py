"""Conformance tests of listings and scans, page by page, and of reading by id."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import MAX_DUE_MS, STATES, Item, State, encode_text
from wheel_sched.store.core.scan import Scan, Scanned
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settlement
from wheel_sched.testing.store_conformance.bench import Bench


def _fill(bench: Bench, count: int) -> None:
    """Store items in every state and shard, many of them with equal scores."""
    bench.put(*(f"d{n:02d}" for n in range(count)), in_ms=50)
    bench.put(*(f"h{n:02d}" for n in range(count)), in_ms=None)
    bench.put(*(f"f{n:02d}" for n in range(count)), *(f"x{n:02d}" for n in range(count)))
    for shard in range(bench.store.shards):
        claim = bench.claim(shard=shard)
        dead = [Dead(item.id, "x") for item in claim.items if item.id[0] == "x"]
        bench.store.settle(claim, dead)


class ListingCases:
    """Tests of listings and scans: pages, filters and order."""

    @pytest.mark.parametrize("limit", [1, 7, 500])
    def test_pages_give_everything_once_and_in_order(self, wide: Bench, limit: int) -> None:
        """Pages of any state are in order of score, then of id bytes, across shards. Each item comes once."""
        _fill(wide, 20)
        for state in STATES:
            found = wide.everything(state, limit)
            assert len(found) == 20
            keys = [(f.score_ms, encode_text(f.id)) for f in found]
            assert keys == sorted(keys)
            assert all(f.state == state and f.body == f.id.encode() for f in found)

    def test_an_item_that_stays_is_listed_once_while_others_come_and_go(self, wide: Bench) -> None:
        """An item that keeps its state is listed once, although other items leave, come, or are held between pages."""
        wide.put(*(f"i{n:03d}" for n in range(60)), in_ms=10)
        wide.put(*(f"j{n:03d}" for n in range(60)), in_ms=20)
        listed: list[str] = []
        cursor: str | None = None
        step = 0
        while True:
            page = wide.store.list_items("due", cursor=cursor, limit=9)
            listed += [found.id for found in page.found]
            cursor = page.cursor
            if cursor is None:
                break
            last = page.found[-1].id
            wide.store.cancel([last, f"i{(step * 7) % 60:03d}x"])
            wide.put(f"{last}+", f"i{step % 60:03d}-", in_ms=10)
            wide.store.hold([f"i{59 - step:03d}"], "x")
            step += 1
        assert len(listed) == len(set(listed))
        stayed = {f"i{n:03d}" for n in range(60 - step)} | {f"j{n:03d}" for n in range(60)}
        assert stayed <= set(listed) | {f"i{n:03d}" for n in range(60 - step, 60)}

    def test_equals_that_left_are_skipped_by_bytes(self, bench: Bench) -> None:
        """When the last listed item leaves before the next page is read, the page starts with the next id by bytes."""
        bench.put("A", "B", "a", "b", "é", "\udc80", in_ms=5)
        first = bench.store.list_items("due", limit=3)
        assert [f.id for f in first.found] == ["A", "B", "a"]
        bench.store.cancel(["a", "A"])
        assert [f.id for f in bench.store.list_items("due", cursor=first.cursor).found] == ["b", "\udc80", "é"]

    def test_many_equals_that_left_are_skipped(self, bench: Bench) -> None:
        """When the last listed item has left, the next page starts at its position, also among 1,500 equal scores."""
        bench.put(*(f"i{n:04d}" for n in range(1500)), in_ms=5)
        page = bench.store.list_items("due", limit=500)
        page = bench.store.list_items("due", limit=500, cursor=page.cursor)
        bench.store.cancel([page.found[-1].id])
        rest = bench.store.list_items("due", limit=500, cursor=page.cursor)
        assert [f.id for f in rest.found] == [f"i{n:04d}" for n in range(1000, 1500)]

    def test_listings_are_filtered(self, wide: Bench) -> None:
        """A listing can select by topic, by a range of scores, or by a function. A cursor leads to the next page."""
        for n in range(30):
            wide.put(f"i{n:02d}", in_ms=n, topic="t" if n % 3 == 0 else "u")
        now = wide.now_ms
        page = wide.store.list_items("due", topic="t", limit=4)
        rest = wide.store.list_items("due", topic="t", cursor=page.cursor)
        ids = [f.id for f in (*page.found, *rest.found)]
        assert ids == [f"i{n:02d}" for n in range(0, 30, 3)]
        within = wide.store.list_items("due", least_ms=now + 5, greatest_ms=now + 7)
        assert [f.id for f in within.found] == ["i05", "i06", "i07"]
        chosen = wide.store.list_items("due", matches=lambda f: f.id.endswith("9"), limit=2)
        assert [f.id for f in chosen.found] == ["i09", "i19"]

    def test_a_listing_of_one_topic_finds_the_few_among_the_many(self, wide: Bench) -> None:
        """A listing of one topic is complete and in order over the shards, even when whole pages lack the topic."""
        for n in range(4):
            wide.put(*(f"u{n}-{k:03d}" for k in range(450)), in_ms=n * 10, topic="u")
            wide.put(f"t{n}", in_ms=n * 10 + 1, topic="t")
        wide.put("parked", in_ms=None, topic="t")
        found = [wide.store.list_items("due", topic="t", limit=limit) for limit in (1, 2, 500)]
        assert [[f.id for f in page.found] for page in found] == [["t0"], ["t0", "t1"], ["t0", "t1", "t2", "t3"]]
        rest = wide.store.list_items("due", topic="t", cursor=found[1].cursor)
        assert [f.id for f in rest.found] == ["t2", "t3"]
        assert [f.id for f in wide.store.list_items("held", topic="t").found] == ["parked"]
        nothing = wide.store.list_items("due", topic="nosuch")
        assert (nothing.found, nothing.cursor) == ([], None)

    @pytest.mark.parametrize(
        "cursor", ["", "x", "[]", "{}x", '{"9": ["a", 1]}', '{"0": 1}', "null", '{"-1": ["a", 1]}']
    )
    def test_a_made_up_cursor_is_refused(self, bench: Bench, cursor: str) -> None:
        """A malformed cursor, or one that names an unknown shard, is refused with `Rejected`."""
        with pytest.raises(Rejected):
            bench.store.list_items("due", cursor=cursor)

    def test_get_answers_the_state_of_an_item(self, bench: Bench) -> None:
        """`get` returns state, score and reason for each id, in the order of the ids, also for repeated ids."""
        bench.put("a", "b", "c", "d")
        claim = bench.claim(3, lease_ms=500)
        settlements: list[Settlement] = [Dead("a", "because"), Held("b", "later")]
        bench.store.settle(claim, settlements)
        found = bench.store.get(["d", "zz", "c", "b", "a", "d"])
        shown = [(f.state, f.score_ms - bench.now_ms if f.score_ms else 0) if f else None for f in found]
        assert shown == [("due", 0), None, ("leased", 500), ("held", 0), ("dead", 0), ("due", 0)]
        assert [f.reason for f in found[3:5] if f] == ["later", "because"]
        assert bench.store.get([]) == []

    def test_counts_are_kept_for_each_topic(self, wide: Bench) -> None:
        """`counts` has the number of items in each state and of events so far, by topic, summed over the shards."""
        wide.put(*(f"a{n}" for n in range(9)), topic="t")
        wide.put("parked", in_ms=None, topic="u")
        for shard in range(3):
            claim = wide.claim(shard=shard)
            ends: list[Settlement] = [Done(i.id) if n else Next(i.id, wide.now_ms) for n, i in enumerate(claim.items)]
            wide.store.settle(claim, ends)
        counts = wide.store.counts()
        assert counts.topics == ["t", "u"]
        assert counts.ever["accepted", "t"] == 9
        assert counts.ever["completed", "t"] + counts.now["due", "t"] == 9
        assert (counts.total("held"), counts.happened("accepted")) == (1, 10)
        assert len(wide.store.counts_by_shard()) == 3

    def test_the_overdue_items_are_counted(self, wide: Bench) -> None:
        """`counts` has the number of items that are due now and not released, over all shards, however many."""
        wide.put(*(f"a{n}" for n in range(9)))
        wide.put("later", in_ms=1)
        wide.put("parked", in_ms=None)
        assert wide.store.counts().overdue == 9
        wide.clock.advance(1)
        assert wide.store.counts().overdue == 10
        claimed = sum(len(wide.claim(shard=shard).items) for shard in range(3))
        assert (claimed, wide.store.counts().overdue) == (10, 0)

    def test_an_item_may_be_large(self, bench: Bench) -> None:
        """`get` and `claim` return a body of a megabyte complete."""
        body = bytes(range(256)) * 4096
        bench.store.schedule([Item("a", bench.now_ms, body)])
        assert bench.one("a").body == body
        assert bench.claim().items[0].body == body

    @pytest.mark.parametrize("limit", [1, 7, 500])
    def test_a_scan_gives_every_item_of_a_state_with_its_record(self, bench: Bench, limit: int) -> None:
        """A scan gives pages in the order of a listing, with topic and body. Dead items also have their reason."""
        bench.bury("d", reason="broken: badly", topic="t")
        bench.put(*(f"i{n:02}" for n in range(20)), in_ms=5, topic="t", refs=("r",))
        expected: list[tuple[State, list[str]]] = [
            ("due", [f"i{n:02}" for n in range(20)]),
            ("dead", ["d"]),
        ]
        for state, ids in expected:
            seen: list[Scanned] = []
            while True:
                last = (seen[-1].id, seen[-1].score_ms) if seen else None
                (page,) = bench.store.execute([Call(0, Scan(state, 0, MAX_DUE_MS, last, limit))])
                seen += page
                if len(page) < limit:
                    break
            assert [item.id for item in seen] == ids
            for item in seen:
                assert item.record is not None
                assert (item.record.topic, item.record.body) == ("t", item.id.encode())
                assert item.reason == ("broken: badly" if state == "dead" else "")

    def test_a_scan_without_records_gives_ids_and_scores(self, bench: Bench) -> None:
        """A scan without records gives only ids and scores, which costs much less."""
        bench.put("a", in_ms=5)
        (page,) = bench.store.execute([Call(0, Scan("due", 0, MAX_DUE_MS, None, 500, records=False))])
        assert page == [Scanned("a", bench.now_ms + 5, None, "")]
