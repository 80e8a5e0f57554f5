"""Conformance tests of writer fences: an epoch that a writer repeats is stored once."""

# ruff: noqa: S101 - assertions are what a test-suite is made of; a token is no password

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.writer_fence import Fence
from wheel_sched.testing.store_conformance.bench import Bench


class WriterFenceCases:
    """Tests of writer fences: repeated, closed and malformed epochs."""

    def test_an_id_is_stored_once_in_an_epoch(self, wide: Bench) -> None:
        """An id that a writer repeats in an open epoch is not stored again, even when its item has left."""
        fence = Fence("query", 3)
        items = [Item(f"i{n}", wide.now_ms, b"") for n in range(20)]
        assert wide.writer_fences.schedule(items[:12], fence).accepted == 12
        for shard in range(wide.store.shards):
            wide.settle_all(wide.claim(shard=shard))
        assert wide.writer_fences.schedule(items, fence).accepted == 8
        assert wide.writer_fences.schedule(items, fence).accepted == 0
        assert wide.writer_fences.schedule(items[:1], Fence("other", 3)).accepted == 1

    def test_a_closed_epoch_stores_nothing(self, wide: Bench) -> None:
        """After an epoch is closed, it and earlier epochs store nothing. The next epoch can store items.

        An epoch can be closed twice.
        """
        assert wide.writer_fences.schedule([Item("a", wide.now_ms, b"")], Fence("query", 3)).accepted == 1
        for _ in range(2):
            wide.writer_fences.close_epoch(Fence("query", 3))
        for epoch in (2, 3):
            late = wide.writer_fences.schedule([Item("b", wide.now_ms, b"")], Fence("query", epoch))
            assert late.outcomes == [Outcome.DUPLICATE]
        assert wide.writer_fences.schedule([Item("b", wide.now_ms, b"")], Fence("query", 4)).accepted == 1

    @pytest.mark.parametrize("fence", [Fence(""), Fence("x" * 250), Fence("x", -1), Fence("a\nb")])
    def test_a_fence_needs_a_name_and_an_epoch(self, bench: Bench, fence: Fence) -> None:
        """A malformed fence is refused before anything is stored."""
        with pytest.raises(Rejected):
            bench.writer_fences.schedule([Item("a", bench.now_ms, b"")], fence)
        assert bench.states("a") == [None]
