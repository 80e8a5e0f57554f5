"""A process that was running while the number of shards changed cannot write by the old number."""

from __future__ import annotations

import pytest

from wheel_sched.errors import NamespaceMismatch
from wheel_sched.store import Item, open_store
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
