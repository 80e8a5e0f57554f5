"""Conformance tests of fair shares: shares by weight, limits of keys, and what else happens to items of fair topics."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from collections import Counter

import pytest

from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead, Done, Next
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_key_of, fair_ref
from wheel_sched.testing.store_conformance.bench import MINUTE_MS, START_MS, Bench


class FairBench:
    """A bench with the fair topic "t". Items are named `<fair key>.<number>`."""

    def __init__(self, bench: Bench, settings: FairSettings | None = None) -> None:
        self.bench, self.clock, self.store = bench, bench.clock, bench.store
        self.shares: FairShares = bench.fair_shares
        self.configure(settings or FairSettings())

    def configure(self, settings: FairSettings | None, topic: str = "t") -> None:
        self.shares.configure(topic, settings)

    def put(self, key: str, *numbers: int, in_ms: int = 0, topic: str = "t") -> None:
        for at in range(0, len(numbers), 500):
            ids = [f"{key}.{number}" for number in numbers[at : at + 500]]
            self.bench.put(*ids, in_ms=in_ms, topic=topic, refs=(fair_ref(key),))

    def claim(self, limit: int = 500) -> list[str]:
        """Claim and complete items. Returns their ids."""
        claim = self.bench.claim(limit)
        self.bench.settle_all(claim)
        return [item.id for item in claim.items]

    def shares_of(self, limit: int) -> Counter[str]:
        return Counter(item_id.partition(".")[0] for item_id in self.claim(limit))

    def head_ms(self) -> int | None:
        (window,) = self.store.windows(0, 0)
        return window.due_head_ms


class FairShareCases:
    """Tests of fair shares."""

    @pytest.fixture
    def fair(self, bench: Bench) -> FairBench:
        return FairBench(bench)

    def test_others_overtake_the_backlog_of_one_key(self, fair: FairBench) -> None:
        """20 keys whose items are due last are served at once, although 1,500 items of another key are due before."""
        fair.put("big", *range(1500), in_ms=-10_000)
        for number in range(20):
            fair.put(f"k{number}", 0)
        claimed = [fair.shares_of(40) for _ in range(2)]
        assert sum((shares for shares in claimed), Counter[str]()).keys() == {"big", *(f"k{n}" for n in range(20))}

    def test_keys_share_by_their_weights(self, fair: FairBench) -> None:
        fair.configure(FairSettings(weights={"gold": 4, "iron": 0.5}, default_weight=1))
        for key in ("gold", "a", "iron"):
            fair.put(key, *range(100))
        shares = sum((fair.shares_of(11) for _ in range(10)), Counter[str]())
        assert shares == {"gold": 80, "a": 20, "iron": 10}

    def test_items_of_a_key_go_by_due_time(self, fair: FairBench) -> None:
        for number, ago in enumerate((30, 10, 20)):
            fair.put("a", number, in_ms=-ago)
        fair.put("b", 0, in_ms=-40)
        assert [i for i in fair.claim() if i.startswith("a")] == ["a.0", "a.2", "a.1"]

    def test_a_key_that_waited_idle_saves_no_credit(self, fair: FairBench) -> None:
        fair.put("a", *range(100))
        fair.claim(50)
        fair.put("b", *range(100))
        assert fair.shares_of(20) == {"a": 10, "b": 10}

    def test_a_key_that_comes_back_at_once_gets_no_more_than_its_share(self, fair: FairBench) -> None:
        """A key that gets a new item as soon as its last one is claimed does not starve other keys."""
        fair.put("a", *range(100))
        served = Counter[str]()
        for number in range(20):
            fair.put("b", number)
            served += fair.shares_of(1)
        assert 8 <= served["a"] <= 12

    def test_topics_take_turns(self, fair: FairBench) -> None:
        """A fair topic takes turns with other topics as one topic, however many keys it has."""
        for key in range(5):
            fair.put(f"k{key}", *range(100))
        fair.bench.put(*[f"u.{n}" for n in range(200)], topic="plain", in_ms=-5000)
        fair.configure(FairSettings(), "other")
        fair.put("o", *range(200), topic="other")
        fair.claim(0)
        shares = fair.shares_of(90)
        assert (shares["u"], shares["o"]) == (30, 30)
        assert {fair.claim(1)[0][0] for _ in range(3)} == {"k", "u", "o"}

    def test_a_full_share_is_used_by_others(self, fair: FairBench) -> None:
        fair.put("a", *range(3))
        fair.bench.put(*[f"u.{n}" for n in range(100)], topic="plain")
        assert fair.shares_of(50) == {"a": 3, "u": 47}

    def test_waiting_items_are_found_as_always(self, fair: FairBench) -> None:
        """Items in the queue of a key can be listed by due time, counted, read, changed and cancelled."""
        for number in range(6):
            fair.put("a", number, in_ms=number * 10 - 100)
        fair.put("a", 9, in_ms=MINUTE_MS)
        fair.claim(0)
        bench, store = fair.bench, fair.store
        assert store.counts().now == {("due", "t"): 7}
        assert [found.id for found in bench.everything("due", limit=2)] == [f"a.{n}" for n in (0, 1, 2, 3, 4, 5, 9)]
        assert bench.one("a.1").score_ms == START_MS - 90
        assert fair_key_of(bench.one("a.1").refs) == "a"
        assert store.find("fair:a") == []
        assert store.reschedule(["a.0"], START_MS + 500) == [Outcome.DONE]
        assert store.cancel(["a.1"]) == [Outcome.DONE]
        assert store.hold(["a.2"], "because") == [Outcome.DONE]
        assert store.change([Alteration("a.3", "p", "=", None, Item("a.3", 0, b"new", "t"))]) == [Outcome.DONE]
        assert bench.one("a.3").score_ms == START_MS - 70
        assert bench.put("a.4") == [Outcome.DUPLICATE]
        assert sorted(fair.claim()) == ["a.3", "a.4", "a.5"]
        store.release(["a.2"])
        fair.clock.advance(500)
        assert sorted(fair.claim()) == ["a.0", "a.2"]

    def test_pause_and_resume(self, fair: FairBench) -> None:
        fair.put("a", *range(10))
        fair.claim(0)
        fair.put("a", 10)
        assert fair.store.pause("t") == 11
        fair.put("a", 11)
        assert fair.claim() == []
        assert fair.store.resume("t") == 12
        assert len(fair.claim()) == 12

    def test_an_item_of_a_resumed_topic_is_found_by_the_claim_after_an_empty_one(self, fair: FairBench) -> None:
        """A topic is paused and resumed, and a claim of no items runs. The next claim gets the topic's item."""
        fair.put("a", 0)
        fair.store.pause("t")
        fair.store.resume("t")
        fair.claim(0)
        assert fair.claim() == ["a.0"]

    def test_an_item_whose_lease_ends_waits_again(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=1))
        fair.put("a", 0, 1)
        assert [item.id for item in fair.bench.claim(lease_ms=1000).items] == ["a.0"]
        assert fair.claim() == []
        fair.clock.advance(1001)
        assert fair.claim() == ["a.0"]
        assert fair.claim() == ["a.1"]

    def test_no_key_has_more_in_flight_than_its_cap(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=2))
        for key in ("a", "b"):
            fair.put(key, *range(5))
        claims = [fair.bench.claim() for _ in range(2)]
        assert sorted(item.id for item in claims[0].items) == ["a.0", "a.1", "b.0", "b.1"]
        assert claims[1].items == []
        assert claims[1].due_head_ms is not None
        assert claims[1].due_head_ms > fair.clock.now_ms
        fair.store.settle(claims[0], [Done("a.0"), Next("b.0", START_MS - 1)])
        assert fair.head_ms() == START_MS - 1
        assert fair.claim() == ["a.2", "b.0"]
        assert fair.claim() == ["a.3", "b.2"]

    def test_a_reported_end_frees_the_place(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=1, ends="reported"))
        fair.put("a", 0, 1, 2)
        assert fair.claim() == ["a.0"]
        assert fair.claim() == []
        assert fair.shares.finish(["a.0", "unknown"]) == 1
        assert fair.shares.finish(["a.0"]) == 0
        assert fair.claim() == ["a.1"]
        assert fair.shares.finish(["a.1"]) == 1
        claim = fair.bench.claim()
        fair.store.settle(claim, [Next("a.2", START_MS)])  # not published: no consumer will report it
        assert fair.claim() == ["a.2"]

    def test_a_place_goes_on_under_another_id(self, fair: FairBench) -> None:
        """A place that was carried over to another id is freed by the end of that id, not by the end of the item."""
        fair.configure(FairSettings(max_in_flight=1))
        fair.put("a", 0, 1)
        claim = fair.bench.claim()
        assert fair.shares.carry(0, [("a.0", "run"), ("unknown", "x")]) == 1
        assert fair.shares.carry(0, [("a.0", "run")]) == 0
        fair.bench.settle_all(claim)
        assert fair.claim() == []
        assert fair.shares.finish(["run"]) == 1
        assert [item.id for item in fair.bench.claim().items] == ["a.1"]

    def test_an_id_takes_no_second_place(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=2))
        fair.put("a", 0, 1, 2)
        claim = fair.bench.claim()
        assert fair.shares.carry(0, [("a.0", "a.1")]) == 0
        fair.bench.settle_all(claim)
        assert fair.claim() == ["a.2"]

    def test_a_place_is_kept_for_longer(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=1, in_flight_ms=5000))
        fair.put("a", 0, 1)
        fair.bench.claim(lease_ms=60_000)
        fair.clock.advance(4000)
        assert fair.shares.carry(0, [("a.0", "a.0")]) == 1
        fair.clock.advance(4999)
        assert fair.claim() == []
        fair.clock.advance(1)
        assert fair.claim() == ["a.1"]

    def test_a_place_that_nobody_frees_is_free_after_its_time(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=1, ends="reported", in_flight_ms=5000))
        fair.put("a", 0, 1)
        assert fair.claim() == ["a.0"]
        assert fair.head_ms() == START_MS + 5000
        fair.clock.advance(4999)
        assert fair.claim() == []
        fair.clock.advance(1)
        assert fair.claim() == ["a.1"]

    def test_a_rate_of_each_key(self, fair: FairBench) -> None:
        fair.configure(FairSettings(key_interval_us=100_000, key_burst=2))
        for key in ("a", "b"):
            fair.put(key, *range(10))
        assert fair.shares_of(500) == {"a": 2, "b": 2}
        assert fair.head_ms() == START_MS + 100
        fair.clock.advance(99)
        assert fair.claim() == []
        fair.clock.advance(1)
        assert fair.shares_of(500) == {"a": 1, "b": 1}
        fair.clock.advance(1000)
        assert fair.shares_of(500) == {"a": 2, "b": 2}

    def test_a_rate_of_the_topic_is_shared(self, fair: FairBench) -> None:
        fair.configure(FairSettings(interval_us=1000, burst=20))
        fair.put("a", *range(200), in_ms=-1000)
        fair.put("b", *range(50))
        assert sum(fair.shares_of(500).values()) == 20
        assert fair.head_ms() == START_MS + 10
        out = Counter[str]()
        for _ in range(10):
            fair.clock.advance(10)
            out += fair.shares_of(500)
        assert out == {"a": 50, "b": 50} or abs(out["a"] - out["b"]) <= 20
        assert sum(out.values()) == 100

    def test_dead_letters_keep_their_fair_key(self, fair: FairBench) -> None:
        fair.put("a", 0)
        claim = fair.bench.claim()
        fair.store.settle(claim, [Dead("a.0", "broken")])
        assert fair_key_of(fair.bench.one("a.0").refs) == "a"
        assert fair.store.requeue([("a.0", START_MS, None)]) == [Outcome.DONE]
        assert fair.claim() == ["a.0"]

    def test_a_clock_that_is_set_back(self, fair: FairBench) -> None:
        """Items that were due before the clock steps back wait until their due time comes again."""
        fair.put("a", 0, 1)
        fair.put("b", 0)
        fair.claim(0)
        fair.clock.advance(-MINUTE_MS)
        assert fair.claim() == []
        assert fair.head_ms() == START_MS
        fair.clock.advance(MINUTE_MS)
        assert len(fair.claim()) == 3

    def test_a_topic_that_is_fair_no_more(self, fair: FairBench) -> None:
        fair.put("a", *range(5))
        fair.claim(0)
        fair.put("a", *range(5, 8), in_ms=-5)
        fair.configure(None)
        assert fair.shares.look("t") is None
        assert len(fair.claim()) == 8
        fair.configure(None)
        assert fair.shares.topics() == []

    def test_an_item_goes_when_it_is_due(self, fair: FairBench) -> None:
        fair.put("a", 0, in_ms=1_000)
        assert (fair.claim(), fair.head_ms()) == ([], START_MS + 1_000)
        fair.clock.advance(999)
        assert (fair.claim(), fair.head_ms()) == ([], START_MS + 1_000)
        fair.clock.advance(1)
        assert (fair.claim(), fair.head_ms()) == (["a.0"], None)

    @pytest.mark.parametrize("plain_ms", [None, 4_000])
    def test_an_item_that_is_due_first_wakes_dispatchers(self, fair: FairBench, plain_ms: int | None) -> None:
        if plain_ms:
            fair.put("a", 9, in_ms=plain_ms, topic="plain")
        marks = []
        for number, in_ms in enumerate((3_000, 1_000, 2_000)):
            fair.put("a", number, in_ms=in_ms)
            marks.append(fair.store.windows(0, 0)[0].mark)
        assert marks[0] < marks[1] == marks[2]
        assert fair.head_ms() == START_MS + 1_000

    @pytest.mark.parametrize("in_ms", [50_000, 60_000, 60_001, 200_000])
    def test_items_share_however_far_ahead_they_were_stored(self, fair: FairBench, in_ms: int) -> None:
        fair.put("a", *range(30), in_ms=in_ms - 1)
        fair.put("b", *range(30), in_ms=in_ms)
        fair.clock.advance(in_ms)
        assert fair.shares_of(20) == {"a": 10, "b": 10}
        assert sum(fair.shares_of(500).values()) == 40

    def test_items_that_change_before_they_are_due(self, fair: FairBench) -> None:
        fair.put("a", *range(5), in_ms=1_000)
        assert fair.store.cancel(["a.0", "a.1"]) == [Outcome.DONE] * 2
        assert fair.store.reschedule(["a.2"], START_MS + 500) == [Outcome.DONE]
        fair.clock.advance(500)
        assert fair.claim() == ["a.2"]
        fair.clock.advance(500)
        assert fair.claim() == ["a.3", "a.4"]

    def test_an_item_with_a_new_key_waits_under_it(self, fair: FairBench) -> None:
        """An item that gets another fair key during a pause waits under that key when its topic is resumed."""
        fair.put("a", *range(4), in_ms=1_000)
        fair.store.pause("t")
        item = Item("a.0", None, b"", "t", (fair_ref("b"),))
        assert fair.store.replace(item, keep_due=True) == Outcome.DONE
        fair.store.resume("t")
        fair.clock.advance(1_000)
        fair.claim(0)
        topic = fair.shares.look("t")
        assert topic is not None
        assert "b" in {key.key for key in topic.keys}
        assert sorted(fair.claim() + fair.claim()) == [f"a.{n}" for n in range(4)]

    def test_an_old_item_without_a_key_has_the_empty_key(self, fair: FairBench) -> None:
        fair.bench.put(*[f"-.{n}" for n in range(10)], topic="t", in_ms=-10)
        fair.put("a", *range(10))
        assert fair.shares_of(10) == {"-": 5, "a": 5}

    def test_keys_that_wait_are_shown(self, fair: FairBench) -> None:
        fair.configure(FairSettings(max_in_flight=3))
        fair.put("a", *range(5))
        fair.put("b", 0)
        fair.claim(0)
        claim = fair.bench.claim(1)
        topic = fair.shares.look("t")
        assert topic is not None
        assert (topic.waiting, topic.active) == (5, 2)
        assert {key.key: (key.waiting, key.in_flight) for key in topic.keys} == {"a": (4, 1), "b": (1, 0)}
        assert fair.shares.topics() == ["t"]
        fair.bench.settle_all(claim)

    def test_a_claim_until_an_earlier_time(self, fair: FairBench) -> None:
        for number in range(3):
            fair.put("a", number, in_ms=10 * number - 100)
        fair.claim(0)
        claim = fair.store.claim(10, until_ms=START_MS - 90)
        assert [item.id for item in claim.items] == ["a.0", "a.1"]
        assert [item.id for item in fair.bench.claim().items] == ["a.2"]

    def test_every_shard_shares(self, wide: Bench) -> None:
        fair = FairBench(wide)
        for key in range(3):
            fair.put(f"k{key}", *range(30))
        assert len(wide.claim_all()) == 90
        assert fair.shares.look("t") is not None

    def test_hostile_keys(self, fair: FairBench) -> None:
        """Any text can be a key: a long one, one with line breaks, and one with bytes that are no UTF-8."""
        keys: list[str | bytes] = ["", "x" * 5000, "x" * 4999, "a\nb", "a\0b", b"\xff\xfe", "~", "lock:a", "é" * 300]
        assert len({fair_ref(key) for key in keys}) == len(keys)
        for number, key in enumerate(keys):
            fair.bench.put(f"{number}.0", f"{number}.1", topic="t", refs=(fair_ref(key),))
        assert fair.shares_of(len(keys)) == {str(number): 1 for number in range(len(keys))}
