"""Conformance tests of collapse and debounce: of several items of one key, only the first or the last goes out."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from wheel_sched.store.core.call import new_token
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead
from wheel_sched.store.log_intake import Position
from wheel_sched.store.once_per_key import collapse_ref, debounce_ref, route_of
from wheel_sched.testing.store_conformance.bench import Bench

STORED, HELD, REPLACED, SUPERSEDED = Outcome.STORED, Outcome.HELD, Outcome.REPLACED, Outcome.SUPERSEDED


def first(bench: Bench, item_id: str, in_ms: int | None = 100, key: str = "k", topic: str = "mail") -> Item:
    """An item that collapses: only the first item of its key goes out."""
    return Item(item_id, None if in_ms is None else bench.now_ms + in_ms, b"", topic, (collapse_ref(key),))


def last(bench: Bench, item_id: str, in_ms: int = 100, wait_ms: int = 0, key: str = "k", topic: str = "mail") -> Item:
    """An item that debounces: only the last item of its key goes out."""
    return Item(item_id, bench.now_ms + in_ms, b"", topic, (debounce_ref(key, wait_ms),))


class OncePerKeyCases:
    """Tests of collapse and debounce."""

    def test_collapse_keeps_the_first_of_a_key(self, bench: Bench) -> None:
        """While an item of a key waits, later items of the key are not stored. Each topic has its own keys."""
        a, b, c = (first(bench, item_id) for item_id in "abc")
        stored = bench.store.schedule([a, b])
        assert (stored.outcomes, stored.others, stored.accepted) == ([STORED, SUPERSEDED], {1: "a"}, 1)
        stored = bench.store.schedule([c, first(bench, "d", key="other"), first(bench, "e", topic="post")])
        assert (stored.outcomes, stored.others) == ([SUPERSEDED, STORED, STORED], {0: "a"})
        assert bench.states("a", "b", "c") == ["due", None, None]
        assert bench.store.find(collapse_ref("other")) == ["d"]
        assert bench.store.counts().ever["dropped", "mail"] == 2
        assert bench.store.schedule([a]).outcomes == [Outcome.DUPLICATE]

    def test_debounce_keeps_the_last_of_a_key(self, bench: Bench) -> None:
        """Each new item replaces the waiting item of its key. It keeps its own due time."""
        assert bench.store.schedule([last(bench, "a", 50)]).outcomes == [STORED]
        bench.clock.advance(20)
        stored = bench.store.schedule([last(bench, "b", 50)], token="")
        assert (stored.outcomes, stored.others, stored.accepted) == ([REPLACED], {0: "a"}, 1)
        assert (bench.states("a"), bench.one("b").score_ms) == ([None], bench.now_ms + 50)
        assert bench.store.find(debounce_ref("k", 0)) == ["b"]
        bench.clock.advance(49)
        assert bench.claim().items == []
        bench.clock.advance(1)
        assert [item.id for item in bench.claim().items] == ["b"]
        counts = bench.store.counts()
        assert (counts.happened("replaced"), counts.happened("accepted")) == (1, 2)

    def test_debounce_waits_no_longer_than_its_greatest_wait(self, bench: Bench) -> None:
        """The greatest wait counts from the first item of a key. It counts anew when the key has no item left."""
        begun = bench.now_ms
        for number in range(5):
            bench.store.schedule([last(bench, f"i{number}", 100, 250)])
            bench.clock.advance(60)
        assert bench.one("i4").score_ms == begun + 250
        assert [item.id for item in bench.claim().items] == ["i4"]
        bench.store.schedule([last(bench, "anew", 100, 250)])
        assert bench.one("anew").score_ms == bench.now_ms + 100

    def test_a_batch_of_one_key_is_as_items_one_by_one(self, bench: Bench) -> None:
        """Items of one key in one call: the last (or first) goes out, and the counters are as after several calls."""
        bench.store.schedule([last(bench, "old")])
        batch = [last(bench, "a", 10), first(bench, "b", 20), last(bench, "c", 30), Item("plain", None, b"", "mail")]
        stored = bench.store.schedule([*batch, last(bench, "a", 40), last(bench, "x", 5, key="other")])
        assert stored.outcomes == [SUPERSEDED, SUPERSEDED, REPLACED, HELD, Outcome.DUPLICATE, STORED]
        assert stored.others == {0: "c", 1: "a", 2: "old"}
        assert bench.states("old", "a", "b", "c", "plain") == [None, None, None, "due", "held"]
        counts = bench.store.counts()
        assert [counts.ever[name, "mail"] for name in ("accepted", "replaced", "dropped")] == [5, 2, 1]

    def test_an_id_that_gives_way_is_not_free_within_the_call(self, bench: Bench) -> None:
        """An id that existed when the call began is a duplicate, even if the call has replaced its item."""
        bench.store.schedule([first(bench, "a")])
        stored = bench.store.schedule([last(bench, "b"), Item("a", bench.now_ms, b"", "mail")])
        assert stored.outcomes == [REPLACED, Outcome.DUPLICATE]
        assert bench.states("a", "b") == [None, "due"]

    def test_an_item_in_flight_has_left_its_key(self, bench: Bench) -> None:
        """The next item of a key is stored beside one in flight. It stays when the one in flight comes back."""
        bench.store.schedule([first(bench, "a", 0)])
        claim = bench.claim(lease_ms=10)
        assert bench.store.schedule([first(bench, "b", 1_000)]).outcomes == [STORED]
        bench.clock.advance(20)
        assert [item.id for item in bench.claim(lease_ms=10).items] == ["a"]
        assert claim.items[0].id == "a"
        assert bench.store.schedule([first(bench, "c")]).others == {0: "b"}
        bench.store.cancel(["b"])
        assert bench.store.schedule([first(bench, "d")]).outcomes == [STORED]

    def test_a_dead_item_has_left_its_key(self, bench: Bench) -> None:
        """The next item of a dead letter's key is stored. A letter that is requeued waits beside it."""
        bench.store.schedule([last(bench, "a", 0)])
        bench.store.settle(bench.claim(), [Dead("a", "broken")])
        assert bench.store.schedule([last(bench, "b")]).outcomes == [STORED]
        assert bench.store.requeue([("a", bench.now_ms + 5, None)]) == [Outcome.DONE]
        assert bench.store.schedule([last(bench, "c")]).others == {0: "b"}
        assert bench.states("a", "b", "c") == ["due", None, "due"]

    def test_an_item_of_a_paused_topic_waits(self, bench: Bench) -> None:
        """A later item still replaces an item that is held by a pause, but not an item that a person holds."""
        bench.store.schedule([last(bench, "a"), last(bench, "h", key="hand")])
        bench.store.hold(["h"], "by hand")
        bench.store.pause("mail")
        assert bench.store.schedule([last(bench, "b")]).outcomes == [REPLACED]
        assert bench.store.schedule([last(bench, "i", key="hand")]).outcomes == [HELD]
        assert bench.states("a", "b", "h", "i") == [None, "held", "held", "held"]
        assert bench.store.resume("mail") == 2
        assert bench.states("b", "h", "i") == ["due", "held", "due"]

    def test_a_repeat_answers_as_the_first_call(self, bench: Bench) -> None:
        """A repeated call gives the first answer and replaces no item again."""
        token = new_token()
        bench.store.schedule([last(bench, "a\n:1", key="k")])
        answers = [bench.store.schedule([last(bench, "b"), first(bench, "c")], token=token) for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0].others == {0: "a\n:1", 1: "b"}
        assert bench.store.counts().happened("replaced") == 1

    def test_every_way_of_storing_knows_the_keys(self, bench: Bench) -> None:
        """The other calls that store items replace and supersede items of a key, as `DelayStore.schedule` does."""
        assert bench.known_ids.schedule([last(bench, "a")], 1_000).outcomes == [STORED]
        assert bench.attempt_counts.schedule([last(bench, "b")], [("b", 1, bench.now_ms)]).others == {0: "a"}
        stored = bench.log_intake.accept(Position("log", None, 7), [last(bench, "c"), first(bench, "d")])
        assert (stored.outcomes, stored.others) == ([REPLACED, SUPERSEDED], {0: "b", 1: "c"})
        assert bench.known_ids.schedule([last(bench, "a")], 1_000).outcomes == [Outcome.DUPLICATE]  # it was stored once

    def test_one_key_of_several_shards(self, wide: Bench) -> None:
        """The route leads all items of a key into one shard."""
        items = [last(wide, item_id) for item_id in "abcd"]
        for item in items:
            item.route = route_of("mail", "k")
        assert [wide.store.schedule([item]).outcomes[0] for item in items] == [STORED, REPLACED, REPLACED, REPLACED]
        assert [found.id for found in wide.everything("due")] == ["d"]

    def test_items_that_are_put_back_wait_for_their_keys(self, bench: Bench) -> None:
        """After a restore, the next item of a key replaces the restored one."""
        bench.store.schedule([last(bench, "a", 10, 500)])
        found = bench.one("a")
        bench.store.cancel(["a"])
        assert bench.store.restore([found]) == 1
        assert bench.store.schedule([last(bench, "b", 900, 500)]).others == {0: "a"}
        assert bench.one("b").score_ms == bench.now_ms + 500

    def test_a_key_costs_nothing_when_its_item_has_left(self, bench: Bench) -> None:
        """Keys whose items have left are forgotten, and keys whose items wait are not."""
        bench.store.schedule([first(bench, f"i{n}", 0, key=f"k{n}") for n in range(50)])
        bench.store.schedule([first(bench, "later", 1_000_000, key="later")])
        bench.settle_all(bench.claim())
        bench.clock.advance(61_000)
        bench.store.sweep()
        assert bench.store.schedule([first(bench, "other", key="later")]).others == {0: "later"}
        assert bench.store.schedule([first(bench, "new", 1_000_000, key="k1")]).outcomes == [STORED]
