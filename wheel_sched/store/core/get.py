"""Read items by id, and find the ids of items by a ref, a name that `Item.refs` gives an item for this purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wheel_sched.errors import StoreError
from wheel_sched.store.core.call import Argument, Call, Operation, Plan
from wheel_sched.store.core.items import Found, decode_text, encode_text, read_record
from wheel_sched.store.core.memory_item import MemoryItem, indexed
from wheel_sched.store.core.shard import MemoryShard

STEP_IDS = 25
"""How many items one round trip reads. While a server reads them from cold memory, it serves nobody else."""

FOUND_IDS = 200
"""About how many ids one round trip finds in each shard."""


@dataclass(slots=True)
class Get(Operation[list[Found | None]]):
    """Read items by id, in any state. The answer has None for an absent id."""

    script = "get"
    reads = True
    writes = False
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Found | None]:
        return [
            _found(item_id, *reply[at : at + 4]) for item_id, at in zip(self.ids, range(1, len(reply), 4), strict=True)
        ]

    def in_memory(self, shard: MemoryShard) -> list[Found | None]:
        return [_found_in(shard, item_id) for item_id in self.ids]


def _found(item_id: str, raw_state: bytes, score_ms: int, raw: bytes, raw_reason: bytes) -> Found | None:
    if not raw_state:
        return None
    state: Any = raw_state.decode()
    if state == "dead":
        raw_reason, raw = reason_and_record(raw)
    reason = raw_reason.decode("utf-8", "replace")
    try:
        record = read_record(raw)
    except StoreError:
        return Found(item_id, state, score_ms, 0, "", raw, reason or "unreadable record")
    return Found(item_id, state, score_ms, record.version, record.topic, record.body, reason, record.refs, record.route)


def reason_and_record(letter: bytes) -> tuple[bytes, bytes]:
    """The reason and the record of a dead letter, from `<length of reason>:<reason><record>`."""
    length, _, rest = letter.partition(b":")
    if not length.isdigit():
        return b"", letter
    end = int(length)
    return rest[:end], rest[end:]


def _found_in(shard: MemoryShard, item_id: str) -> Found | None:
    item = shard.items.get(encode_text(item_id))
    if item is None:
        return None
    score_ms = shard.score_of(item)
    assert score_ms is not None, item  # noqa: S101  # an id has a score in the set of its state
    return Found(
        item_id, item.state, score_ms, item.version, item.topic, item.body, reason_of(item), item.refs, item.route
    )


def reason_of(item: MemoryItem) -> str:
    if item.state == "due":
        return ""
    if item.state == "leased":
        cut, refs = "!" if item.cancelled else "", "r" if indexed(item.refs) else "-"
        return f"{cut}{item.claim}:{item.claimed_due_ms}:{refs}:{item.topic}"
    return item.reason.decode("utf-8", "replace")


class FoundIds(NamedTuple):
    """Some ids that have a ref, and the cursor for the next ones ("0": there are no more)."""

    ids: list[str]
    cursor: str


@dataclass(slots=True)
class Find(Operation[FoundIds]):
    """Find some of the ids of items that have a ref (a name in `Item.refs`), in no particular order.

    The answer has at least `count` ids, if there are so many; an id may come in two answers. In memory it has all.
    """

    script = "find"
    reads = True
    writes = False
    ref: str
    count: int
    cursor: str = "0"
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.ref), self.cursor, self.count]

    def parse(self, reply: Any, shard: int) -> FoundIds:
        cursor, *ids = reply
        return FoundIds([decode_text(raw) for raw in ids], decode_text(cursor))

    def in_memory(self, shard: MemoryShard) -> FoundIds:
        keys = shard.refs.get(decode_text(encode_text(self.ref)), ())
        return FoundIds([shard.items[key].id for key in keys], "0")


def find_ids(shards: int, ref: str, limit: int) -> Plan[list[str]]:
    """The ids of items that have a ref, over all shards; at most `limit`."""
    found: dict[str, None] = {}
    cursors = dict.fromkeys(range(shards), "0")
    while cursors and len(found) < limit:
        count = min(limit - len(found), FOUND_IDS)
        replies: list[FoundIds] = yield [Call(shard, Find(ref, count, at)) for shard, at in cursors.items()]
        found.update(dict.fromkeys(item_id for reply in replies for item_id in reply.ids))
        going_on = zip(cursors, replies, strict=True)
        cursors = {shard: reply.cursor for shard, reply in going_on if reply.cursor != "0"}
    return list(found)[:limit]
