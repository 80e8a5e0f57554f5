"""Taking: how a claim in memory decides which items of fair topics it takes.

The twin of `prelude_finding.lua` and `prelude_taking.lua`; their comments explain the rules.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from wheel_sched.store.core.items import encode_text
from wheel_sched.store.core.memory_item import MemoryItem
from wheel_sched.store.core.sorted_set import Entry
from wheel_sched.store.core.turns import LEAST, shares_of
from wheel_sched.store.fair_shares.rings_in_memory import NONE, Rings, StoredShares, key_of, name_of

STEP, NEWEST, BYTES, PART, OTHERS = 120, 60, 131_072, 60, 100  # as in prelude_finding.lua
ROUNDS, KEYS_OF_A_CLAIM = 4, 10  # as in prelude_taking.lua


@dataclass(slots=True, eq=False)
class RingEntry:
    """A key on a page of a ring, with what its limits allow (`left`), and what was read of its queue."""

    key: bytes
    name: bytes
    time: int
    cost: int
    left: int
    tat: int = 0
    free: int = 0
    read: int = 0
    taken: int = 0
    over: bool = False
    held: bool = False
    future: int | None = None
    members: list[tuple[int, bytes, bytes]] = field(default_factory=list)  # due, id, member of the queue
    stale: list[bytes] = field(default_factory=list)


class Picked(NamedTuple):
    """An item that was picked, with its due time and the name of the key in whose queue it was."""

    due_ms: int
    id: bytes
    name: bytes


def own_name(item: MemoryItem) -> bytes:
    """The name of the key that an item has now."""
    return name_of(item.topic, key_of(item.refs))


def allowed(tat: int | None, now_us: int, interval: int, burst: int, most: int) -> tuple[int, int]:
    """How many items a rate allows now, and the state `tat` of the rate."""
    tat = max(tat or 0, now_us)
    return min(most, max(0, (now_us + burst * interval - tat) // interval)), tat


def open_at(now_ms: int, tat: int, interval: int, burst: int, count: int) -> int:
    """When a rate allows `count` items again (ms)."""
    return max(now_ms + 1, -(-(tat - (burst - count) * interval) // 1000))


class Taking:
    """Takes due items for the claims of one shard.

    Args:
        room: the fair topics of the shard.

    Attributes:
        at: where the search for overdue items of fair topics goes on. None: at the front.
    """

    def __init__(self, room: Rings) -> None:
        self.room = room
        self.at: Entry | None = None

    def take(self, limit: int, until_ms: int) -> list[tuple[int, MemoryItem]]:
        """Take up to `limit` items that may go now out of `due` and `ready`, with their due times."""
        shard = self.room.shard
        self.prepare(until_ms)
        if limit == 0:
            return []
        plain, picked = self._share_out(limit, until_ms)
        taken = []
        for due_ms, key in plain:
            shard.due.discard(key)
            taken += self._taken(due_ms, shard.items[key], fair=False)
        rows = [(shard.items[key], due_ms, name) for due_ms, key, name in picked]
        for item, due_ms, name in rows:
            if own_name(item) == name:
                taken += self._taken(due_ms, item, fair=True)
        self._make_ready([(due_ms, item.key) for item, due_ms, name in rows if own_name(item) != name])
        for item, _, name in rows:
            if own_name(item) == name:  # last: an item with a new key may be in the queues of both keys
                shard.ready.discard(item.key)
        return taken

    def _taken(self, due_ms: int, item: MemoryItem, *, fair: bool) -> list[tuple[int, MemoryItem]]:
        shard = self.room.shard
        if item.topic in shard.paused:
            shard.moves(item.topic, "due", shard.put_held(item, due_ms, b"paused"))
            return []
        if fair:
            self.room.occupy(item)
        return [(due_ms, item)]

    # Overdue items of fair topics.

    def prepare(self, until_ms: int) -> bool:
        """Find overdue items of fair topics. Returns whether the next call is likely to find more."""
        due = self.room.shard.due
        behind = self.at
        found = due.between(0, until_ms, STEP) if behind is None else due.behind(*behind, until_ms, STEP)
        looked, others, rows = self._look(found)
        if looked < len(found) or looked == STEP:
            overdue = due.rank_behind(until_ms + 1, b"")
            newest = [entry for entry in due.by_rank(max(0, overdue - NEWEST), NEWEST) if entry[0] <= until_ms]
            rows += self._look([entry for entry in reversed(newest) if entry > found[looked - 1]])[2]
            if self.at is not None or others:
                self.at = found[looked - 1]
            more = bool(rows)
        else:
            self.at = None
            more = False
        self._make_ready(rows)
        return more

    def _look(self, found: list[Entry]) -> tuple[int, int, list[Entry]]:
        """Look at items of `found`. Returns how many it looked at, how many have no fair topic, and the others."""
        looked = size = others = 0
        rows = []
        while looked < len(found) and size < BYTES and others < OTHERS:
            for entry in found[looked : looked + PART]:
                looked += 1
                item = self.room.shard.items[entry[1]]
                size += len(item.body)
                if item.topic in self.room.settings:
                    rows.append(entry)
                else:
                    others += 1
        return looked, others, rows

    def _make_ready(self, rows: list[Entry]) -> None:
        room, keys = self.room, dict[str, dict[bytes, None]]()
        for due_ms, key in rows:
            item = room.shard.items[key]
            room.shard.due.discard(key)
            keys.setdefault(item.topic, {})[room.enqueue(item, due_ms)] = None
        for topic, fair_keys in keys.items():
            room.join(topic, fair_keys)

    # What a claim takes.

    def _front(self, limit: int, until_ms: int) -> list[Entry]:
        """The items at the front of `due` that are of no fair topic."""
        shard = self.room.shard
        found = shard.due.up_to(until_ms, limit)
        if limit >= LEAST and len(found) == limit:
            others = shard.turns.overdue_of_others(found, limit, until_ms)
            found = found[: limit - len(others)] + others
        fair = [entry for entry in found if shard.items[entry[1]].topic in self.room.settings]
        plain = [entry for entry in found if shard.items[entry[1]].topic not in self.room.settings]
        self._make_ready(fair)
        return plain

    def _share_out(self, limit: int, until_ms: int) -> tuple[list[Entry], list[Picked]]:
        """Decide how many items each topic gives. Returns items of other topics, and picked items of fair topics."""
        room = self.room
        plain = self._front(limit, until_ms)
        rings = room.turns.by_rank(0, limit)
        if not rings:
            return plain, []
        topics = {encode_text(topic): topic for topic in room.rings}
        wants: dict[tuple[str, str], int] = {}
        others: dict[tuple[str, str], int] = {}
        for _, key in plain:
            name = "u", room.shard.items[key].topic
            others[name] = others.get(name, 0) + 1
        for turn, raw in rings:
            if turn > room.rest:
                wants.update(others)
                others = {}
            wants["f", topics[raw]] = limit
        wants.update(others)
        picked: list[Picked] = []
        served: set[str] = set()
        front, left = 0, limit
        for _ in range(ROUNDS):
            before, places = left, _shares(wants, left)
            for name, share in places.items():
                if not share:
                    continue
                count = share
                if name[0] == "f":
                    found = self._pick(name[1], share, until_ms)
                    picked += found
                    count = len(found)
                    if count:
                        served.add(name[1])
                else:
                    front += share
                wants[name] = wants[name] - count if count == share else 0
                left -= count
            if left in (0, before):
                break
        room.turn += 1
        if front:
            room.rest = room.turn
        for topic in served:
            if (raw := encode_text(topic)) in room.turns:
                room.turns.add(raw, room.turn)
        return plain[:front], picked

    def _pick(self, topic: str, limit: int, until_ms: int) -> list[Picked]:
        """Take up to `limit` items of a fair topic by the shares of its keys."""
        room, now_us, raw = self.room, self.room.shard.now_us, encode_text(topic)
        settings, ring = room.settings.get(topic, NONE), room.rings[topic]
        interval, burst = settings.topic_interval_us, settings.topic_burst
        need, tat, limited = limit, 0, False
        if interval:
            need, tat = allowed(room.tats.score(raw), now_us, interval, burst, limit)
            limited = need < limit
        out: list[Picked] = []
        skip, quantum = 0, -(-limit // KEYS_OF_A_CLAIM)
        for number in range(ROUNDS):
            if len(out) >= need:
                break
            page = ring.by_rank(skip, need - len(out) if number else -(-need // quantum) + 1)
            if not page:
                break
            entries = [self._entry(topic, time, key, settings, need - len(out)) for time, key in page]
            ends = len(ring) == skip + len(entries)
            whole = skip == 0 and ends
            last = None if ends else entries[-1].time
            more = self._pick_from(topic, entries, quantum, need - len(out), last, until_ms, out)
            skip += sum(self._write_back(topic, entry, settings) for entry in entries)
            more = more or any(entry.future is not None for entry in entries)
            if whole and not more and skip == 0:
                while len(ring):
                    ring.pop_first(len(ring))
                break
        if interval and out:
            tat += len(out) * interval
            room.tats.add(raw, tat)
        if not len(ring):
            del room.rings[topic]
            room.turns.discard(raw)
        elif limited and len(out) >= need:
            count = max(1, min(burst, 10_000 // interval))
            room.turns.discard(raw)
            room.wait.add(raw, open_at(room.shard.now_ms, tat, interval, burst, count))
        if topic in room.queues and not room.queues[topic]:
            del room.queues[topic]
        return out

    def _entry(self, topic: str, time: int, key: bytes, settings: StoredShares, need: int) -> RingEntry:
        room, name = self.room, encode_text(topic) + b"\0" + key
        entry = RingEntry(key, name, time, room.costs.get(topic, {}).get(key, settings.cost), need)
        if settings.cap:
            entry.left = min(entry.left, settings.cap - room.busy.get(name, 0))
        if settings.interval_us:
            now_us = room.shard.now_us
            entry.free, entry.tat = allowed(room.tats.score(name), now_us, settings.interval_us, settings.burst, need)
            entry.left = min(entry.left, entry.free)
        return entry

    def _pick_from(
        self,
        topic: str,
        entries: list[RingEntry],
        quantum: int,
        need: int,
        last: int | None,
        until_ms: int,
        out: list[Picked],
    ) -> bool:
        """Pick up to `need` items from the keys on a page of the ring. Returns whether a key may have more.

        A key's time grows with each picked item, and the key with the least time is next. A key whose time is greater
        than `last` gives none, because a key of a later page may come before it. On the last page `last` is None.
        """
        order, chunk, count = list(entries), max(4, quantum, -(-need // len(entries))), 0
        while count < need and order and (last is None or order[0].time <= last):
            entry = order.pop(0)
            if entry.left <= 0:
                entry.held = True
            elif len(entry.members) > entry.taken or self._load(topic, entry, chunk, until_ms):
                turn = min(need - count, quantum, max(1, quantum * 10_000 // entry.cost), entry.left)
                members = entry.members[entry.taken : entry.taken + turn]
                out += [Picked(due_ms, key, entry.name) for due_ms, key, _ in members]
                taken = len(members)
                entry.taken, entry.left, count = entry.taken + taken, entry.left - taken, count + taken
                entry.time += taken * entry.cost
                order.insert(bisect_right(order, entry.time, key=lambda other: other.time), entry)
        return bool(order)

    def _load(self, topic: str, entry: RingEntry, count: int, until_ms: int) -> bool:
        """Read more of a key's queue: the items that are ready, up to the first that is not due."""
        while len(entry.members) <= entry.taken and not entry.over:
            found = self.room.queue_page(topic, entry.key, entry.read, count)
            entry.over = len(found) < count
            for member in found:
                at = len(entry.key) + 1
                due_ms, key = int(member[at : at + 16]), member[at + 16 :]
                if self.room.shard.ready.score(key) != due_ms:
                    entry.stale.append(member)
                elif due_ms > until_ms:
                    entry.over, entry.future = True, due_ms
                    break
                else:
                    entry.members.append((due_ms, key, member))
            entry.read += len(found)
        return len(entry.members) > entry.taken

    def _write_back(self, topic: str, entry: RingEntry, settings: StoredShares) -> int:
        """Write what was taken from a key on a page of the ring. Returns 1 if its virtual time stays the same."""
        room, ring, interval = self.room, self.room.rings[topic], settings.interval_us
        for member in (*entry.stale, *(member for _, _, member in entry.members[: entry.taken])):
            room.queues[topic].discard(member)
        if interval and entry.taken:
            entry.tat += entry.taken * interval
            room.tats.add(entry.name, entry.tat)
        waits_ms: int | None = None
        if entry.left <= 0 and entry.held:
            if interval and entry.free <= entry.taken:
                waits_ms = open_at(room.shard.now_ms, entry.tat, interval, settings.burst, 1)
        elif entry.future is not None and not entry.taken and entry.future > room.shard.now_ms:
            room.wakes_at(entry.name, entry.future)
        elif entry.taken or entry.future is not None or not entry.over:
            if entry.taken:
                ring.add(entry.key, entry.time)
            return 0 if entry.taken else 1
        ring.discard(entry.key)
        if waits_ms is not None:
            room.wait.add(entry.name, waits_ms)
        return 0


def _shares(wants: dict[tuple[str, str], int], places: int) -> dict[tuple[str, str], int]:
    names = {f"{kind}{topic}": (kind, topic) for kind, topic in wants}
    shares = shares_of({name: wants[of] for name, of in names.items()}, places)
    return {names[name]: share for name, share in shares.items()}
