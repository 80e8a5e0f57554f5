"""A process that runs while the number of shards changes cannot write with the old number."""

from __future__ import annotations

import pytest

from wheel_sched.errors import NamespaceMismatch
from wheel_sched.store import Item, open_store
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.maintenance.reshard import reshard


def test_a_process_from_before_a_reshard_is_refused(redis_url: str) -> None:
    """After a reshard, writes of a process with the old number of shards are refused, because they may go to a wrong
    shard.

    Its reads still work.
    """
    with open_store(redis_url) as before:
        before.schedule([Item("a", 1, b"x")])
        reshard(before.backend, 3)
        with pytest.raises(NamespaceMismatch, match="3 shards, this process works with 1"):
            before.schedule([Item("b", 1, b"x")])
        with pytest.raises(NamespaceMismatch, match="restart this process"):
            before.claim(10)
        assert before.counts_by_shard()[0].frozen is None
        with open_store(redis_url, shards=3) as after:
            assert after.counts().total("due") == 1
            assert after.schedule([Item("b", 1, b"x")]).accepted == 1


def test_a_reshard_loses_no_item_of_a_fair_topic(redis_url: str) -> None:
    """Items that already wait in the queue of their fair key move too, and each can be claimed once."""
    settings = FairSettings(weights={"a": 2})
    with open_store(redis_url) as before:
        FairShares(before).configure("t", settings)
        keys = ["a"] * 40 + ["b"] * 3
        items = [Item(f"{key}.{n}", n + 1, b"x", "t", refs=(fair_ref(key),)) for n, key in enumerate(keys)]
        before.schedule(items)
        before.claim(0)
        topic = FairShares(before).look("t")
        assert topic is not None
        assert topic.waiting == len(items)
        assert reshard(before.backend, 2).moved > 0
    with open_store(redis_url, shards=2) as after:
        FairShares(after).configure("t", settings)
        claimed = [item.id for shard in range(2) for item in after.claim(100, shard=shard).items]
        assert sorted(claimed) == sorted(item.id for item in items)
