"""Removes old dead letters from a shard in memory: the twin of `trim_dead` and `trim_dead_above` in Lua."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store.core.shard import MemoryShard


def trim_dead(shard: MemoryShard, keys: Sequence[bytes]) -> None:
    """Remove these dead letters."""
    for key in keys:
        shard.dead.discard(key)
        shard.remove(shard.items[key], "dead", "trimmed")


def trim_dead_above(shard: MemoryShard, cap: int, batch: int) -> None:
    """Remove the oldest dead letters above `cap`, at most `batch` of them; cap 0 = unlimited."""
    over = len(shard.dead) - cap
    if cap > 0 and over > 0:
        trim_dead(shard, [key for _, key in shard.dead.by_rank(0, min(over, batch))])
