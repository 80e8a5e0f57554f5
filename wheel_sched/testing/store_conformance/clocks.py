"""Conformance tests of steps of the store's clock, and of the epoch, which rises with each large step."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.errors import NamespaceMismatch, StaleEpoch
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Outcome
from wheel_sched.testing.store_conformance.bench import DAY_MS, HOUR_MS, Bench


class ClockCases:
    """Tests of steps of the store's clock: small ones are ignored, large ones are accepted and reported."""

    @pytest.mark.parametrize("back_ms", [1, 3000, 5000])
    def test_a_small_step_back_is_clamped(self, bench: Bench, back_ms: int) -> None:
        """After a small step back the store keeps its last time: due items stay due, the epoch does not change."""
        bench.put("a", in_ms=100)
        bench.clock.advance(100)
        bench.store.sweep()
        was_ms = bench.now_ms
        bench.clock.advance(-back_ms)
        assert bench.store.windows(0)[0].now_us == was_ms * 1000
        claim = bench.claim(lease_ms=1000)
        assert ([i.id for i in claim.items], claim.now_us, claim.epoch) == (["a"], was_ms * 1000, 1)
        assert claim.lease_head_ms == was_ms + 1000
        assert bench.store.counts().jumps == 0

    @pytest.mark.parametrize("back_ms", [5001, HOUR_MS])
    def test_a_large_step_back_is_accepted_and_recorded(self, bench: Bench, back_ms: int) -> None:
        """A large step back raises the epoch by one and is counted once. Then the new time decides what is due."""
        bench.put("a", in_ms=100)
        bench.clock.advance(-back_ms)
        claim = bench.claim()
        assert (claim.items, claim.epoch, claim.now_us) == ([], 2, bench.now_ms * 1000)
        bench.claim()
        counts = bench.store.counts()
        assert (counts.epoch, counts.jumps, counts.last_jump_ms) == (2, 1, -back_ms)
        with pytest.raises(StaleEpoch):
            bench.store.claim(epoch=1)

    def test_reading_does_not_move_the_clock(self, bench: Bench) -> None:
        """After a large step back, a read returns the new time and the old epoch. The first write raises the epoch."""
        bench.put("a")
        bench.clock.advance(-HOUR_MS)
        window = bench.store.windows(0)[0]
        assert (window.now_us, window.epoch, window.dues) == (bench.now_ms * 1000, 1, [])
        assert bench.store.sweep()[0].epoch == 2
        assert bench.store.windows(0)[0].epoch == 2

    def test_a_day_forward_and_back(self, bench: Bench) -> None:
        """The clock steps a day forward and back. Items can be claimed and settled at each time, and none is lost."""
        bench.put("today")
        bench.put("tomorrow", in_ms=HOUR_MS)
        bench.clock.advance(DAY_MS)
        assert bench.store.report_jump(0, 1, DAY_MS) == 2
        early = bench.claim(1, lease_ms=1000)
        assert [i.id for i in early.items] == ["today"]
        bench.clock.advance(-DAY_MS)
        assert bench.claim().items == []
        counts = bench.store.counts()
        assert (counts.epoch, counts.jumps, counts.last_jump_ms) == (3, 2, -DAY_MS)
        assert bench.settle_all(early) == [Outcome.DONE]
        bench.clock.advance(HOUR_MS)
        assert [i.id for i in bench.claim().items] == ["tomorrow"]

    def test_a_jump_is_reported_once_for_all(self, bench: Bench) -> None:
        """Several dispatchers report the same step in the same epoch: the epoch rises by one."""
        assert [bench.store.report_jump(0, 1, 9000) for _ in range(3)] == [2, 2, 2]
        assert bench.store.report_jump(0, 2, -9000) == 3
        counts = bench.store.counts()
        assert (counts.epoch, counts.jumps, counts.last_jump_ms) == (3, 2, -9000)

    def test_each_shard_has_its_own_epoch(self, wide: Bench) -> None:
        """A jump reported on one shard does not change the epoch of another shard."""
        wide.store.report_jump(1, 1, 1)
        assert [window.epoch for window in wide.store.windows(0)] == [1, 2, 1]

    def test_a_namespace_of_test_time_needs_now(self, bench: Bench) -> None:
        """A namespace with a test clock refuses calls that do not carry the time, so clocks cannot be mixed up."""
        real = DelayStore(bench.store.backend)
        with pytest.raises(NamespaceMismatch):
            real.open()
        for call in (real.claim, real.counts, real.sweep, lambda: real.get(["a"]), lambda: real.cancel(["a"])):
            with pytest.raises(NamespaceMismatch):
                call()
