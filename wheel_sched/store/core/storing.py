"""Storing new items in a shard in memory, for the operations of several rooms. The twin of `prelude_storing.lua`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheel_sched.store.core.items import INSTRUCTION, Item, Outcome, encode_text
from wheel_sched.store.core.memory_item import StoringVerdict, verdicts_of
from wheel_sched.store.core.shard import MemoryShard


def store_new(
    shard: MemoryShard, items: Sequence[Item], is_known: Callable[[bytes, Item], bool] | None = None
) -> list[Outcome]:
    """Store items whose ids are absent and not known."""
    shard.seq += 1
    shard.others = {}
    outcomes: list[Outcome] = []
    verdicts: dict[int, StoringVerdict] | None = None
    gone: set[bytes] = set()  # ids that this call has not stored, or has replaced

    def exists(key: bytes, given: Item) -> bool:
        return key in shard.items or key in gone or (is_known is not None and is_known(key, given))

    for at, given in enumerate(items):
        key = encode_text(given.id)
        if exists(key, given):
            outcomes.append(Outcome.DUPLICATE)
            continue
        if verdicts is None and any(INSTRUCTION in ref for ref in given.refs):
            verdicts = verdicts_of(shard.on_storing, items, at, exists)
            shard.others = {n: one.other for n, one in verdicts.items() if one.other is not None}
            gone.update(encode_text(one.other) for one in verdicts.values() if one.stores and one.other is not None)
        verdict = verdicts.get(at) if verdicts else None
        if verdict is not None and not verdict.stores:
            gone.add(key)
            outcomes.append(Outcome.SUPERSEDED)
            continue
        item = shard.new_item(given)
        due_ms = given.due_ms if verdict is None else verdict.due_ms
        state = shard.put_held(item, 0, b"parked") if due_ms is None else shard.put_waiting(item, due_ms, new=True)
        shard.moves(item.topic, None, state)
        shard.event("accepted", item.topic)
        kept = Outcome.STORED if state == "due" else Outcome.HELD
        outcomes.append(Outcome.REPLACED if at in shard.others else kept)
    return outcomes
