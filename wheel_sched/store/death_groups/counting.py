"""How the dead letters of a group are counted: the row of a group, and the twin of `prelude.lua` in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from wheel_sched.store.core.items import MAX_BATCH, encode_text
from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.shard import MemoryShard

HOUR_MS = 3_600_000
HOURS = 24
MAX_GROUPS = 5_000
"""How many groups a shard keeps. The deaths of further groups are counted under `OTHER_GROUP`."""
EMPTY_FOR_MS = 30 * 86_400_000
"""How long a group without letters is kept after its last death."""
OTHER_GROUP = "(other)"

GroupKey = tuple[bytes, bytes]  # topic, group

_OWN, _OTHER = 1, 2  # marks of dead letters
_OTHER_KEY = (b"", OTHER_GROUP.encode())
_CODE = re.compile(rb"(?:[\x00-\x7f\xc2-\xf4][\x80-\xbf]*){0,64}")
_VALUE = re.compile(rb"(\d{1,16}):(\d{1,16}):(\d{1,16}):(\d{1,16}):(\d{1,16}):([\d,]{0,400}):(.*)", re.DOTALL)


@dataclass(slots=True)
class GroupRow:
    """What a shard has counted for a group. `hours[-1]` counts the deaths of the hour `hour`, counted from 1970."""

    count: int
    ever: int
    first_ms: int
    last_ms: int
    hour: int
    hours: list[int] = field(default_factory=lambda: [0] * HOURS)
    last_id: bytes = b""

    @classmethod
    def of_value(cls, value: bytes) -> GroupRow | None:
        """Read a row as the server keeps it. Returns None when it cannot be read."""
        found = _VALUE.fullmatch(value)
        if found is None:
            return None
        hours = [int(number) for number in found[6].split(b",") if number][:HOURS]
        count, ever, first_ms, last_ms, hour = (int(found[n]) for n in range(1, 6))
        hours += [0] * (HOURS - len(hours))
        return cls(count, ever, first_ms, last_ms, hour, hours, found[7])

    def copy(self) -> GroupRow:
        """A copy of the row. Later deaths do not change the copy."""
        return replace(self, hours=list(self.hours))

    def hours_until(self, hour: int) -> list[int]:
        """The deaths in each of the 24 hours that end with `hour`."""
        first = hour - self.hour
        if first == 0:
            return self.hours
        return [self.hours[at] if 0 <= at < HOURS else 0 for at in range(first, first + HOURS)]

    def count_hour(self, died_ms: int) -> None:
        """Count a death. A death in a later hour moves the 24 hours of the row, and the oldest hours are dropped."""
        hour = died_ms // HOUR_MS
        if hour > self.hour:
            self.hours, self.hour = self.hours_until(hour), hour
        at = HOURS - 1 + hour - self.hour
        if at >= 0:
            self.hours[at] += 1


def group_key(item: MemoryItem) -> GroupKey:
    """The group of a dead letter, see the module `death_groups`."""
    topic = encode_text(item.topic)
    for ref in item.refs:
        if ref.startswith("fp:") and len(ref) > len("fp:"):
            return topic, encode_text(ref.removeprefix("fp:"))
    code = item.reason.partition(b":")[0]
    found = _CODE.match(code) if len(code) > 64 else None
    return topic, found[0] if found else code


class DeathGroupsInMemory:
    """The death groups of one shard of a store in memory."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self.rows: dict[GroupKey, GroupRow] = {}
        shard.on_died.append(self.count_death)
        shard.on_dead_gone.append(self._count_gone)
        shard.on_sweep.append(self._forget_old)

    def count_death(self, item: MemoryItem, died_ms: int) -> int:
        """Count a letter that died. Returns its mark."""
        died_ms = max(0, min(died_ms, self._shard.now_ms))
        key, mark = group_key(item), _OWN
        if key not in self.rows and not self._has_room():
            key, mark = _OTHER_KEY, _OTHER
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = GroupRow(0, 0, died_ms, died_ms, died_ms // HOUR_MS, last_id=item.key)
        row.count, row.ever, row.first_ms = row.count + 1, row.ever + 1, min(row.first_ms, died_ms)
        if died_ms >= row.last_ms:
            row.last_ms, row.last_id = died_ms, item.key
        row.count_hour(died_ms)
        return mark

    def _count_gone(self, item: MemoryItem) -> None:
        if not item.mark:
            return
        row = self.rows.get(_OTHER_KEY if item.mark == _OTHER else group_key(item))
        if row is not None and row.count:
            row.count -= 1

    def _has_room(self) -> bool:
        """Make room for a new group: forget the empty group with the oldest last death. Returns whether one fits."""
        if len(self.rows) < MAX_GROUPS:
            return True
        empty = [(row.last_ms, join_key(key)) for key, row in self.rows.items() if not row.count]
        if empty:
            del self.rows[split_key(min(empty)[1])]
        return bool(empty)

    def _forget_old(self) -> None:
        until_ms = self._shard.now_ms - EMPTY_FOR_MS
        old = [
            (row.last_ms, join_key(key)) for key, row in self.rows.items() if not row.count and row.last_ms <= until_ms
        ]
        for _, place in sorted(old)[:MAX_BATCH]:
            del self.rows[split_key(place)]


def join_key(key: GroupKey) -> bytes:
    """The key of a group as the server keeps it."""
    return b"%d:%b%b" % (len(key[0]), *key)


def split_key(raw: bytes) -> GroupKey:
    """Take apart the key of a group as the server keeps it."""
    length, _, text = raw.partition(b":")
    end = int(length) if length.isdigit() else 0
    return text[:end], text[end:]
