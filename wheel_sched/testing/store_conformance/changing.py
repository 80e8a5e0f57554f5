"""Conformance tests of changes to items in each state, and of versions and refs."""

# ruff: noqa: S101, S106 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Done, Next, Settlement
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, Bench

ABSENT, DONE, IN_FLIGHT = Outcome.ABSENT, Outcome.DONE, Outcome.IN_FLIGHT
OTHER_VERSION, WRONG_STATE = Outcome.OTHER_VERSION, Outcome.WRONG_STATE


class ChangingCases:
    """Tests of reschedule, replace, cancel, hold and release."""

    def _one_of_each(self, bench: Bench) -> list[str]:
        bench.bury("dead")
        bench.put("leased")
        bench.claim()
        bench.put("due", in_ms=1000)
        bench.put("held", in_ms=None)
        assert bench.states("due", "leased", "held", "dead", "none") == ["due", "leased", "held", "dead", None]
        return ["due", "leased", "held", "dead", "none"]

    def test_reschedule_moves_waiting_and_held_items(self, bench: Bench) -> None:
        """`reschedule` changes waiting and held items. For any other id the outcome says why nothing changed."""
        ids = self._one_of_each(bench)
        then = bench.now_ms + 77
        assert bench.store.reschedule(ids, then) == [DONE, IN_FLIGHT, DONE, WRONG_STATE, ABSENT]
        assert bench.states(*ids) == ["due", "leased", "due", "dead", None]
        assert [found.score_ms for found in bench.everything("due")] == [then, then]

    def test_cancel_removes_waiting_and_held_items(self, bench: Bench) -> None:
        """A cancel removes waiting and held items. For an item in flight it answers CANCELLED each time."""
        ids = self._one_of_each(bench)
        assert bench.store.cancel(ids) == [DONE, Outcome.CANCELLED, DONE, WRONG_STATE, ABSENT]
        assert bench.states(*ids) == [None, "leased", None, "dead", None]
        assert bench.store.cancel(["leased"]) == [Outcome.CANCELLED]

    def test_hold_and_release_are_for_their_states(self, bench: Bench) -> None:
        """Only waiting items can be held, and only held items can be released."""
        ids = self._one_of_each(bench)
        assert bench.store.hold(ids, "why not") == [DONE, IN_FLIGHT, WRONG_STATE, WRONG_STATE, ABSENT]
        assert bench.states(*ids) == ["held", "leased", "held", "dead", None]
        assert bench.store.release(ids) == [DONE, IN_FLIGHT, DONE, WRONG_STATE, ABSENT]
        assert bench.states(*ids) == ["due", "leased", "due", "dead", None]

    def test_release_keeps_the_due_unless_one_is_given(self, bench: Bench) -> None:
        """A release without a due time keeps the due time that the item had when it was held."""
        bench.put("a", "b", in_ms=500)
        bench.store.hold(["a", "b"], "maintenance: tonight")
        assert (bench.one("a").reason, bench.one("a").score_ms) == ("maintenance: tonight", bench.now_ms + 500)
        assert bench.store.release(["a"]) == bench.store.release(["b"], bench.now_ms + 9) == [DONE]
        assert [(f.id, f.score_ms - bench.now_ms) for f in bench.everything("due")] == [("b", 9), ("a", 500)]

    def test_a_reason_of_several_lines_is_one_line(self, bench: Bench) -> None:
        """The store keeps a reason of several lines as one line. The item can still be read and released."""
        bench.put("a", topic="t")
        bench.store.hold(["a"], "one\ntwo")
        assert (bench.one("a").reason, bench.one("a").topic) == ("one two", "t")
        assert bench.store.release(["a"]) == [DONE]

    def test_replace_gives_a_new_record_and_due(self, bench: Bench) -> None:
        """`replace` gives waiting and held items a new record and due time. Other items do not change."""
        ids = self._one_of_each(bench)
        version = bench.one("due").version
        outcomes = [bench.store.replace(Item(i, bench.now_ms + 5, b"new", "u", ("r",))) for i in ids]
        assert outcomes == [DONE, IN_FLIGHT, DONE, WRONG_STATE, ABSENT]
        found = bench.one("due")
        assert (found.body, found.topic, found.score_ms) == (b"new", "u", bench.now_ms + 5)
        assert found.version > version
        assert sorted(bench.store.find("r")) == ["due", "held"]

    def test_replace_can_keep_the_due(self, bench: Bench) -> None:
        """With `keep_due`, a waiting item keeps its due time, and a held item keeps its reason too."""
        bench.put("a", "b", in_ms=500)
        bench.store.hold(["b"], "mine")
        for i in "ab":
            assert bench.store.replace(Item(i, None, b"new", "t"), keep_due=True) == DONE
        a, b = bench.one("a"), bench.one("b")
        assert (a.state, a.score_ms, a.body) == ("due", bench.now_ms + 500, b"new")
        assert (b.state, b.score_ms, b.reason, b.topic) == ("held", bench.now_ms + 500, "mine", "t")

    def test_replace_without_a_due_parks(self, bench: Bench) -> None:
        """An item that is replaced without a due time is held. Such an item is, for example, a paused job."""
        bench.put("a", in_ms=500)
        assert bench.store.replace(Item("a", None, b"new")) == DONE
        assert (bench.one("a").state, bench.one("a").reason) == ("held", "parked")

    def test_replace_can_create_an_item(self, bench: Bench) -> None:
        """With `create`, `replace` stores an absent item, with or without a due time. A dead item's id is refused."""
        assert bench.store.replace(Item("a", bench.now_ms, b"1", "t", ("r",)), create=True) == DONE
        assert bench.store.replace(Item("b", None, b"2"), create=True) == DONE
        assert bench.store.replace(Item("c", None, b"3"), create=True, keep_due=True) == DONE
        assert bench.states("a", "b", "c") == ["due", "held", "held"]
        assert bench.store.find("r") == ["a"]
        assert bench.store.counts().happened("accepted") == 3
        bench.bury("d")
        assert bench.store.replace(Item("d", bench.now_ms, b""), create=True) == WRONG_STATE

    def test_if_version_guards_a_replacement(self, bench: Bench) -> None:
        """A caller with an older version than the stored one changes nothing. An absent item matches no version."""
        bench.put("a")
        seen = bench.one("a").version
        assert bench.store.replace(Item("a", bench.now_ms, b"mine"), if_version=seen) == DONE
        assert bench.store.replace(Item("a", bench.now_ms, b"theirs"), if_version=seen) == OTHER_VERSION
        assert bench.one("a").body == b"mine"
        assert bench.store.replace(Item("b", None, b""), if_version=1, create=True) == OTHER_VERSION
        assert bench.store.replace(Item("b", None, b""), if_version=1) == ABSENT

    def test_a_claim_has_the_versions_of_its_items(self, bench: Bench) -> None:
        """A claimed item has the version of its record. When a new record is written, the version is greater."""
        bench.put("a")
        version = bench.one("a").version
        claim = bench.claim()
        assert claim.items[0].version == version
        bench.store.settle(claim, [Next("a", bench.now_ms, b"n")])
        assert bench.claim().items[0].version > version

    def test_a_repeat_gives_the_first_answer(self, bench: Bench) -> None:
        """A cancel repeated under the same token changes nothing and gives the first answer: DONE, not ABSENT."""
        bench.put("a")
        assert bench.store.cancel(["a", "b"], token="t") == [DONE, ABSENT]
        bench.put("b")
        assert bench.store.cancel(["a", "b"], token="t") == [DONE, ABSENT]
        assert bench.states("b") == ["due"]

    def test_an_id_twice_in_one_call_is_changed_in_order(self, bench: Bench) -> None:
        """Of two changes of one id in a call, the second sees the result of the first, in the same or another topic."""
        bench.put("a", in_ms=500, topic="t")
        item = Item("b", bench.now_ms + 1, b"", "u")
        changes = [
            Alteration("a", "h", "x"),
            Alteration("a", "u", "="),
            Alteration("a", "r", bench.now_ms + 10),
            Alteration("b", "P", bench.now_ms + 1, None, item),
            Alteration("b", "h", "y"),
            Alteration("a", "c"),
            Alteration("a", "c"),
            Alteration("b", "r", ""),
        ]
        (outcomes,) = bench.store.execute([Call(0, Change(changes))])
        assert outcomes == [DONE, DONE, DONE, DONE, DONE, DONE, ABSENT, DONE]
        assert bench.states("a", "b") == [None, "held"]
        assert bench.one("b").reason == "parked"

    def test_counters_are_right_after_many_changes_of_one_call(self, bench: Bench) -> None:
        """After each call that changes several items, the counts of states and events include all of them."""
        ids = ["a", "b", "c", "d"]
        bench.bury(*ids)
        assert bench.store.requeue([(one, bench.now_ms + MINUTE_MS, None) for one in ids]) == [DONE] * 4
        counts = bench.store.counts()
        assert (counts.total("due"), counts.total("dead"), counts.happened("requeued")) == (4, 0, 4)
        bench.store.hold(ids[:2], "why not")
        bench.store.release(ids[:1])
        bench.store.cancel(ids[2:])
        counts = bench.store.counts()
        assert (counts.total("due"), counts.total("held"), counts.happened("cancelled")) == (1, 1, 2)
        assert (counts.sizes["due"], counts.sizes["held"], counts.sizes["dead"]) == (1, 1, 0)

    def test_find_gives_the_items_that_carry_a_ref(self, wide: Bench) -> None:
        """`find` returns ids from every shard and state, each once, up to the limit."""
        ids = [f"i{n}" for n in range(450)]
        wide.put(*ids, refs=("all", "é"))
        wide.put("other", refs=("all2",))
        wide.claim(shard=0)
        wide.store.hold(ids, "x")
        assert sorted(wide.store.find("all")) == sorted(ids)
        assert sorted(wide.store.find("é")) == sorted(ids)
        assert len(set(wide.store.find("all", limit=7))) == 7
        assert wide.store.find("nothing") == []

    def test_refs_follow_their_item(self, bench: Bench) -> None:
        """Replaced, cancelled and deleted items are no longer found by their old refs."""
        bench.put("a", "b", refs=("r",))
        bench.store.replace(Item("a", bench.now_ms, b"", refs=("s",)))
        assert (bench.store.find("r"), bench.store.find("s")) == (["b"], ["a"])
        bench.store.cancel(["a", "b"])
        assert (bench.store.find("r"), bench.store.find("s")) == ([], [])

    def test_a_released_item_can_be_claimed_and_settled(self, bench: Bench) -> None:
        """An item that was held and released can be claimed and settled as any other item."""
        bench.put("a")
        bench.store.hold(["a"], "x")
        bench.store.release(["a"])
        assert bench.store.settle(bench.claim(), [Done("a")]).outcomes == [DONE]

    def test_an_earlier_due_raises_the_marker(self, bench: Bench) -> None:
        """A reschedule writes the marker that wakes dispatchers only if the item is then due before all others."""
        bench.put("a", in_ms=1000)
        bench.put("b", in_ms=2000)
        mark = bench.store.windows(0)[0].mark
        bench.store.reschedule(["b"], bench.now_ms + 1500)
        assert bench.store.windows(0)[0].mark == mark
        bench.store.reschedule(["b"], bench.now_ms + 500)
        assert bench.store.windows(0)[0].mark != mark

    def test_an_item_in_flight_can_be_replaced(self, bench: Bench) -> None:
        """An item replaced in flight stays claimed. When its lease ends, the new record waits at the old due time."""
        bench.put("a", "b", in_ms=0, refs=("r",))
        bench.put("c", in_ms=None)
        due_ms = bench.now_ms
        claim = bench.claim()
        new = [Item(i, None, b"new", "t", ("s",)) for i in "abc"]
        assert [bench.store.replace(item, in_flight=True) for item in new] == [DONE, DONE, DONE]
        assert bench.states("a", "b", "c") == ["leased", "leased", "held"]
        assert (sorted(bench.store.find("r")), sorted(bench.store.find("s"))) == ([], ["a", "b", "c"])
        assert bench.store.settle(claim, [Done("a")]).outcomes == [DONE]
        bench.clock.advance(MINUTE_MS)
        (again,) = bench.claim().items
        assert (again.id, again.body, again.topic, again.refs, again.due_ms) == ("b", b"new", "t", ("s",), due_ms)
        bench.store.cancel(["b"])
        assert bench.store.replace(new[1], in_flight=True) == ABSENT

    def test_a_settlement_of_an_older_record_changes_nothing(self, bench: Bench) -> None:
        """After an item is replaced in flight, a settlement with the old version of its record is refused.

        A settlement with the new version succeeds.
        """
        bench.put("a", "b", "c")
        claim = bench.claim()
        claimed = {item.id: item.version for item in claim.items}
        for i in "ab":
            assert bench.store.replace(Item(i, None, b"changed"), in_flight=True) == DONE
        then = bench.now_ms + 5
        made = [Next(i, then, b"old", version=claimed[i]) for i in "ac"]
        assert bench.store.settle(claim, [*made, Done("b", claimed["b"])]).outcomes == [
            OTHER_VERSION,
            DONE,
            OTHER_VERSION,
        ]
        assert [bench.one(i).body for i in "ab"] == [b"changed", b"changed"]
        assert bench.states("a", "b", "c") == ["leased", "leased", "due"]
        again: list[Settlement] = [Next("a", then, b"both", version=bench.one("a").version)]
        again.append(Done("b", bench.one("b").version))
        assert bench.store.settle(claim, again).outcomes == [DONE, DONE]
        assert bench.one("a").body == b"both"
        assert bench.states("b") == [None]

    def test_an_item_in_flight_can_get_another_id(self, bench: Bench) -> None:
        """An item in flight that gets another id keeps claim, lease and cancel mark. Its old id is free at once."""
        bench.put("a", "b", "c", refs=("r",))
        bench.put("d", in_ms=1000)
        claim = bench.claim()
        bench.store.cancel(["b"])
        moved = [Alteration(i, "m", f"{i}2", None, Item(f"{i}2", None, b"moved", "t", ("s",))) for i in "abd"]
        assert bench.store.change(moved) == [DONE, DONE, WRONG_STATE]
        taken = Alteration("c", "m", "a2", None, Item("a2", None, b"", "t"))
        stale = Alteration("c", "m", "c2", bench.one("c").version + 9, Item("c2", None, b"", "t"))
        assert bench.store.change([taken, stale]) == [Outcome.DUPLICATE, OTHER_VERSION]
        assert bench.states("a", "b", "a2", "b2", "c") == [None, None, "leased", "leased", "leased"]
        assert bench.put("a", "b") == [Outcome.STORED, Outcome.STORED]
        assert (sorted(bench.store.find("r")), sorted(bench.store.find("s"))) == (["c"], ["a2", "b2"])
        outcomes = bench.store.settle(claim, [Done("a"), Done("a2"), Next("b2", bench.now_ms)]).outcomes
        assert outcomes == [Outcome.STALE, DONE, Outcome.CANCELLED]
        assert bench.states("a", "b") == ["due", "due"]

    def test_an_item_under_another_id_comes_back_when_its_lease_ends(self, bench: Bench) -> None:
        """When its lease ends, an item that got another id waits under the new id. A cancelled one leaves the store."""
        bench.put("a", "b")
        due_ms = bench.now_ms
        bench.claim()
        bench.store.cancel(["b"])
        bench.store.change([Alteration(i, "m", f"{i}2", None, Item(f"{i}2", None, b"moved")) for i in "ab"])
        bench.clock.advance(MINUTE_MS)
        assert [(item.id, item.due_ms, item.lapses) for item in bench.claim().items] == [("a2", due_ms, 1)]
        assert bench.states("b2") == [None]

    def test_items_are_changed_wherever_a_route_has_led_them(self, wide: Bench) -> None:
        """A change by id finds an item in the shard of its route. A repeat with the same token gets the same answer."""
        ids = [f"i{n}" for n in range(9)]
        wide.store.schedule([Item(item_id, wide.now_ms + 1000, b"", route="family") for item_id in ids])
        assert wide.store.reschedule(ids, wide.now_ms + 77) == [DONE] * 9
        assert {found.score_ms for found in wide.everything("due")} == {wide.now_ms + 77}
        assert wide.store.hold(ids[:2], "odd") == [DONE] * 2
        assert wide.store.release(ids[:2]) == [DONE] * 2
        assert wide.store.change([Alteration(ids[0], "c", version=99)]) == [OTHER_VERSION]
        for _ in range(2):
            assert wide.store.cancel([*ids, "none"], token="t") == [*[DONE] * 9, ABSENT]
        assert wide.everything("due") == []
