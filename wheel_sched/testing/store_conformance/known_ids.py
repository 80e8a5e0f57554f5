"""Conformance tests of known ids: ids that the store remembers after their items have left."""

# ruff: noqa: S101 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

from dataclasses import replace

from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead, Next
from wheel_sched.testing.store_conformance.bench import Bench


class KnownIdCases:
    """Tests of known ids: repeats, lookups, and ids that are free again."""

    def test_a_given_id_stays_known_for_a_time_after_its_due(self, bench: Bench) -> None:
        """While an id is known, no item is stored under it, also after its item has left. Topics have separate ids."""
        item, other = Item("a", bench.now_ms + 50, b"", "mail"), Item("b", bench.now_ms, b"", "mail")
        assert not bench.known_ids.known("a", "mail")
        assert bench.known_ids.schedule([item, other], 1_000).outcomes == [Outcome.STORED] * 2
        assert bench.known_ids.known("a", "mail")
        bench.clock.advance(50)
        assert bench.settle_all(bench.claim()) == [Outcome.DONE] * 2
        assert bench.known_ids.schedule([item, other], 1_000).outcomes == [Outcome.DUPLICATE] * 2
        assert [bench.known_ids.known("a", topic) for topic in ("mail", "post")] == [True, False]
        assert bench.known_ids.schedule([replace(item, topic="post")], 1_000).outcomes == [Outcome.STORED]
        bench.settle_all(bench.claim())
        bench.clock.advance(1_000)
        assert not bench.known_ids.known("a", "mail")
        assert bench.known_ids.schedule([item], 1_000).outcomes == [Outcome.STORED]

    def test_an_id_is_known_wherever_its_item_lies(self, wide: Bench) -> None:
        """A lookup names no route, so it asks all shards."""
        items = [Item(f"i{n}", wide.now_ms, b"", "mail", route="family") for n in range(9)]
        wide.known_ids.schedule(items, 1_000)
        assert all(wide.known_ids.known(item.id, "mail") for item in items)
        assert not wide.known_ids.known("i9", "mail")

    def test_a_waiting_item_is_known(self, bench: Bench) -> None:
        """The id of a waiting, held or in-flight item is known in the item's topic. The id of a dead item is not."""
        for item_id, in_ms in (("due", 9), ("held", None), ("leased", 0)):
            bench.put(item_id, in_ms=in_ms, topic="mail")
        bench.bury("dead", topic="mail")
        bench.claim()
        ids = ("due", "held", "leased", "dead")
        assert [bench.known_ids.known(item_id, "mail") for item_id in ids] == [True, True, True, False]
        assert not bench.known_ids.known("due", "post")

    def test_a_given_id_that_was_cancelled_is_free(self, bench: Bench) -> None:
        """Cancelling frees the id of a waiting item or an item in flight, and so does deleting a dead item."""
        items = [Item(item_id, bench.now_ms, b"", "mail") for item_id in ("a", "b", "c", "d")]

        def stored_anew() -> bool:
            return bench.known_ids.schedule(items, 10**7).outcomes == [Outcome.STORED] * 4

        assert stored_anew()
        assert bench.store.cancel(["a", "b"]) == [Outcome.DONE] * 2
        claim = bench.claim(lease_ms=1)
        bench.store.settle(claim, [Dead("d", "broken")])
        assert bench.store.delete_dead(["d"]) == [Outcome.DONE]
        assert bench.store.cancel(["c"]) == [Outcome.CANCELLED]
        bench.clock.advance(2)
        bench.claim()  # recovers c, whose lease ran out
        assert stored_anew()
        claim = bench.claim()
        ids = [item.id for item in claim.items]
        bench.store.cancel(ids)
        bench.store.settle(claim, [Next(item_id, bench.now_ms) for item_id in ids])
        assert stored_anew()
