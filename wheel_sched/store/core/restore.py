"""Put items from a backup or from another shard back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.call import Argument, Operation, bounded_reason
from wheel_sched.store.core.items import Found, encode_text, make_tail
from wheel_sched.store.core.memory_item import MemoryItem, plain
from wheel_sched.store.core.shard import MemoryShard


@dataclass(slots=True)
class Restore(Operation[int]):
    """Put items back as they were, without their lapses. An id that exists is not changed.

    An item that was in flight becomes due when its lease would have ended, also if it was cancelled.
    An item of version 0 is new and gets a version. The answer is how many items were put back.
    """

    script = "restore"
    writes = True
    while_frozen = True
    found: Sequence[Found]
    token: str = ""

    def argv(self) -> list[Argument]:
        args: list[Argument] = []
        for item in self.found:
            tail = make_tail(item.topic, item.route, item.refs, item.body)
            record = b"1:%d:%s" % (item.version, tail)
            args += [encode_text(item.id), item.state, item.score_ms, record, bounded_reason(item.reason)]
        return args

    def parse(self, reply: Any, shard: int) -> int:
        return int(reply)

    def in_memory(self, shard: MemoryShard) -> int:
        put = 0
        shard.seq = max((shard.seq, *(found.version for found in self.found)))
        fresh = shard.sequence()
        for found in self.found:
            key = encode_text(found.id)
            if key in shard.items:
                continue
            route = plain(found.route) if found.route else None
            refs = tuple(map(plain, found.refs))
            version = found.version or next(fresh)
            item = MemoryItem(key, plain(found.id), version, plain(found.topic), route, refs, found.body)
            shard.items[key] = item
            shard.add_refs(item)
            if found.state == "dead":
                shard.bury(item, bounded_reason(found.reason), found.score_ms)
            elif found.state == "held":
                shard.put_held(item, found.score_ms, bounded_reason(found.reason))
                for hook in shard.on_restored:
                    hook(item, found.score_ms)
            else:  # an item in flight becomes due when its lease would have ended
                shard.put_due(item, found.score_ms)
                for put_back in shard.on_put_back:
                    put_back(item)
            shard.moves(item.topic, None, item.state)
            shard.event("accepted", item.topic)
            put += 1
        return put
