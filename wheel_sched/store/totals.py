"""The counters of a namespace: those of its shards added up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.store.items import Counts


def add_up(parts: Sequence[Counts]) -> Counts:
    """The counters of several shards as one."""
    total = Counts(0, {}, {}, {}, None, None, epoch=0, jumps=0, last_jump_ms=0, paused={})
    for part in parts:
        total.now_us = max(total.now_us, part.now_us)
        for mine, theirs in ((total.now, part.now), (total.ever, part.ever)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        for name, size in part.sizes.items():
            total.sizes[name] = total.sizes.get(name, 0) + size
        total.due_head_ms = _least(total.due_head_ms, part.due_head_ms)
        total.fly_head_ms = _least(total.fly_head_ms, part.fly_head_ms)
        total.epoch = max(total.epoch, part.epoch)
        total.jumps += part.jumps
        total.last_jump_ms = part.last_jump_ms or total.last_jump_ms
        total.paused.update(part.paused)
        total.unreadable += part.unreadable
        total.frozen = total.frozen or part.frozen
    return total


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
