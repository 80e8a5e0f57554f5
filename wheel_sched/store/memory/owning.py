"""Operations of a shard's owner and of readers of logs: the twins of the scripts of the same name."""

from __future__ import annotations

from wheel_sched.errors import StaleEpoch
from wheel_sched.store.items import MAX_BATCH, Ownership, Resolved
from wheel_sched.store.memory.shard import MemoryShard
from wheel_sched.store.operations import Own, Positions, Resolve


def own(shard: MemoryShard, call: Own) -> Ownership:
    mine = shard.owner == call.owner
    if not mine and (call.lease_ms == 0 or (shard.owner and shard.owned_until_ms > shard.now_ms)):
        return Ownership(False, shard.epoch, shard.owner, shard.owned_until_ms, shard.now_us, False, shard.claims)
    if call.lease_ms == 0:
        shard.owner, shard.owned_until_ms = "", 0
        return Ownership(False, shard.epoch, "", 0, shard.now_us, False, shard.claims)
    if not mine:
        shard.epoch += 1
    shard.owner, shard.owned_until_ms = call.owner, shard.now_ms + call.lease_ms
    return Ownership(True, shard.epoch, shard.owner, shard.owned_until_ms, shard.now_us, not mine, shard.claims)


def resolve(shard: MemoryShard, call: Resolve) -> Resolved:
    if call.epoch != shard.epoch:
        raise StaleEpoch(f"the epoch is {shard.epoch}, the call came with {call.epoch}: nothing was changed")
    open_keys = [key for _, key in shard.fly.by_rank(0, len(shard.fly)) if shard.items[key].claim != call.spared]
    completed = released = held = 0
    for key in open_keys[:MAX_BATCH]:
        item = shard.items[key]
        shard.fly.discard(key)
        out = call.committed is not None and item.claim <= call.committed
        if out or item.cancelled:
            shard.remove(item, "fly", "completed" if out else "cancelled")
            completed += 1
        elif call.committed is None:
            reason = b"in-doubt: nobody knows whether claim %d went out" % item.claim
            shard.moves(item.topic, "fly", shard.put_held(item, item.claimed_due_ms, reason))
            held += 1
        else:
            item.lapses += 1
            shard.event("lapsed", item.topic)
            if 0 < call.lapse_cap <= item.lapses:
                state = shard.put_dead(item, b"poison: its dispatcher ended %d times over it" % item.lapses)
            else:
                state = shard.put_waiting(item, item.claimed_due_ms)
            shard.moves(item.topic, "fly", state)
            released += 1
    shard.claims = max(shard.claims, call.committed or 0)
    more = len(open_keys) > MAX_BATCH
    return Resolved(completed, released, held, more, shard.now_us, *shard.heads())


def positions(shard: MemoryShard, call: Positions) -> list[int | None]:
    return [shard.positions.get(source) for source in call.sources]
