"""Death groups: how many dead letters have the same topic and the same error, without a look at the letters.

The scripts count each death, and each letter that leaves, in the same step. So a list of all groups costs a few small
reads per shard, whatever the number of letters.

The group of a letter is the topic of its item, and the fingerprint X of its first ref `fp:X`. Without such a ref, it is
the part of its reason before the first colon, 64 characters at most.

A group without letters stays listed until 30 days after its last death. So people can tell an error that has ended from
one that never occurred. A shard keeps 5,000 groups. When it needs one more, it forgets the empty group whose last death
is the oldest. If no group is empty, the death is counted under the topic "" and the group "(other)".

A letter that a release without death groups has buried is in no group: `DeathGroups.groups` says how many there are,
and `recount` counts them. While an older release deletes or requeues letters, the counts become too high.

A reshard moves the counts together with the letters. When it removes a shard, the counts of letters that had left the
shard before are lost. A backup has no counts: a restored letter counts as one death at its time of death.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Argument, Call, Operation, Plan
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking
from wheel_sched.store.core.items import decode_text, encode_text
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.shard import MemoryShard
from wheel_sched.store.death_groups.counting import (
    EMPTY_FOR_MS,
    HOUR_MS,
    HOURS,
    MAX_GROUPS,
    OTHER_GROUP,
    DeathGroupsInMemory,
    GroupKey,
    GroupRow,
    join_key,
    split_key,
)

__all__ = [
    "EMPTY_FOR_MS",
    "HOURS",
    "HOUR_MS",
    "MAX_GROUPS",
    "OTHER_GROUP",
    "AsyncDeathGroups",
    "CountedDeaths",
    "DeathGroup",
    "DeathGroups",
    "GroupPage",
    "ListGroups",
    "OneGroup",
    "Recount",
    "Recounted",
]

_STEPS = 200  # how many steps a listing takes in one shard: a server whose cursor never ends must not hold the caller


@dataclass(frozen=True, slots=True)
class DeathGroup:
    """The dead letters of one topic with one error. All times are epoch ms of the store's clock.

    Args:
        topic: the topic of the items.
        group: the fingerprint of the error, or the code of the reason, see the module's docstring.
        count: the number of letters now.
        ever: the number of deaths, including those of letters that have left.
        first_ms: when the first letter died.
        last_ms: when the last letter died.
        last_id: the id of that letter. It may have left.
        by_hour: the deaths in each of 24 whole hours. The last is the present hour, which has not ended yet.
    """

    topic: str
    group: str
    count: int
    ever: int
    first_ms: int
    last_ms: int
    last_id: str
    by_hour: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountedDeaths:
    """The death groups of a namespace.

    Args:
        groups: the groups, in order of their number of letters, greatest first.
        dead: the number of dead letters.
        uncounted: how many dead letters are in no group. While letters come and go, this is only about right.
        now_ms: the time of the store.
    """

    groups: list[DeathGroup]
    dead: int
    uncounted: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Recounted:
    """One step of `recount`: how many letters it has counted, and the cursor of the next step (None: finished)."""

    counted: int
    cursor: str | None


def list_death_groups(plans: Plans) -> Plan[CountedDeaths]:
    """All death groups, added up over the shards."""
    rows: list[dict[GroupKey, GroupRow]] = [{} for _ in range(plans.shards)]
    dead, now_ms = [0] * plans.shards, 0
    cursors = dict.fromkeys(range(plans.shards), "0")
    for _ in range(_STEPS):
        pages: list[GroupPage] = yield [Call(shard, ListGroups(cursor)) for shard, cursor in cursors.items()]
        for shard, page in zip(list(cursors), pages, strict=True):
            rows[shard].update(page.rows)
            dead[shard], now_ms = page.dead, max(now_ms, page.now_ms)
            cursors[shard] = page.cursor
            if page.cursor == "0":
                del cursors[shard]
        if not cursors:
            break
    merged: dict[GroupKey, list[GroupRow]] = {}
    for part in rows:
        for key, row in part.items():
            merged.setdefault(key, []).append(row)
    groups = [_merge(key, parts, now_ms) for key, parts in merged.items()]
    groups.sort(key=lambda group: (-group.count, -group.last_ms, group.topic, group.group))
    uncounted = sum(
        max(0, number - sum(row.count for row in part.values())) for number, part in zip(dead, rows, strict=True)
    )
    return CountedDeaths(groups, sum(dead), uncounted, now_ms)


def one_death_group(plans: Plans, topic: str, group: str) -> Plan[tuple[DeathGroup | None, int]]:
    """One death group, added up over the shards (None when there is no such group), and the time of the store."""
    key = encode_text(topic), encode_text(group)
    found: list[tuple[GroupRow | None, int]] = yield plans.everywhere(lambda: OneGroup(key))
    now_ms = max(at_ms for _, at_ms in found)
    rows = [row for row, _ in found if row is not None]
    return (_merge(key, rows, now_ms) if rows else None), now_ms


def _merge(key: GroupKey, parts: list[GroupRow], now_ms: int) -> DeathGroup:
    last = max(parts, key=lambda row: (row.last_ms, row.last_id))
    hours = [row.hours_until(now_ms // HOUR_MS) for row in parts]
    return DeathGroup(
        decode_text(key[0]),
        decode_text(key[1]),
        sum(row.count for row in parts),
        sum(row.ever for row in parts),
        min(row.first_ms for row in parts),
        last.last_ms,
        decode_text(last.last_id),
        tuple(hours[0] if len(hours) == 1 else map(sum, zip(*hours, strict=True))),
    )


def recount_deaths(plans: Plans, shard: int, cursor: str | None = None) -> Plan[Recounted]:
    """Count dead letters of a shard that are in no group. One step looks at 250 letters at most.

    Call it again with the cursor that it returns until this is None. A repeat counts no letter twice.

    Args:
        shard: the number of the shard.
        cursor: from the step before. Defaults to None: from the letter that died first.

    Raises:
        Rejected: the shard or the cursor is malformed; nothing was counted.
    """
    last, last_ms = _read_cursor(cursor) if cursor is not None else ("", 0)
    last, last_ms, counted = yield from plans.one(shard, Recount(last, last_ms))
    return Recounted(counted, json.dumps([last, last_ms]) if last else None)


def _read_cursor(cursor: str) -> tuple[str, int]:
    try:
        last, last_ms = json.loads(cursor)
        if type(last) is str and last and type(last_ms) is int and last_ms >= 0:
            encode_text(last)
            return last, last_ms
    except (ValueError, TypeError, RecursionError):
        pass
    raise Rejected(f"expected the cursor of a step before, got: {cursor!r:.80}; nothing was counted")


class DeathGroups(Capability):
    """The death groups of a namespace: lists them, and counts letters of older releases. See the module's docstring."""

    groups = blocking(list_death_groups)
    group = blocking(one_death_group)
    recount = blocking(recount_deaths)


class AsyncDeathGroups(AsyncCapability):
    """The asyncio twin of `DeathGroups`."""

    groups = awaited(list_death_groups)
    group = awaited(one_death_group)
    recount = awaited(recount_deaths)


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some groups of a shard: their rows, its number of dead letters, its time, and the next cursor ("0": finished)."""

    now_ms: int
    cursor: str
    dead: int
    rows: dict[GroupKey, GroupRow]


@dataclass(slots=True)
class ListGroups(Operation[GroupPage]):
    """Read some groups of a shard, from the cursor of the step before ("0" = from the start)."""

    script = "list_death_groups"
    reads = True
    writes = False
    cursor: str = "0"
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.cursor]

    def parse(self, reply: Any, shard: int) -> GroupPage:
        now_us, cursor, dead, *found = reply
        rows = {split_key(key): GroupRow.of_value(value) for key, value in zip(found[::2], found[1::2], strict=True)}
        readable = {key: row for key, row in rows.items() if row is not None}
        return GroupPage(int(now_us) // 1000, decode_text(cursor), int(dead), readable)

    def in_memory(self, shard: MemoryShard) -> GroupPage:
        rows = {key: row.copy() for key, row in shard.room(DeathGroupsInMemory).rows.items()}
        return GroupPage(shard.now_ms, "0", len(shard.dead), rows)


@dataclass(slots=True)
class OneGroup(Operation[tuple[GroupRow | None, int]]):
    """Read one group of a shard. The answer is its row, None when there is none, and the time of the store in ms."""

    script = "one_death_group"
    reads = True
    writes = False
    key: GroupKey
    token: str = ""

    def argv(self) -> list[Argument]:
        return [join_key(self.key)]

    def parse(self, reply: Any, shard: int) -> tuple[GroupRow | None, int]:
        now_us, value = reply
        return GroupRow.of_value(value), int(now_us) // 1000

    def in_memory(self, shard: MemoryShard) -> tuple[GroupRow | None, int]:
        row = shard.room(DeathGroupsInMemory).rows.get(self.key)
        return None if row is None else row.copy(), shard.now_ms


@dataclass(slots=True)
class Recount(Operation[tuple[str, int, int]]):
    """Count letters that are in no group, behind the letter `last` that died at `last_ms`.

    The answer is the last letter that was looked at ("" = finished), its time of death, and how many were counted.
    """

    script = "recount"
    writes = True
    repeatable = True
    last: str = ""
    last_ms: int = 0
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.last), self.last_ms]

    def parse(self, reply: Any, shard: int) -> tuple[str, int, int]:
        last, last_ms, counted = reply
        return decode_text(last), int(last_ms), int(counted)

    def in_memory(self, shard: MemoryShard) -> tuple[str, int, int]:
        return "", 0, 0  # a store in memory has no letters of an older release
