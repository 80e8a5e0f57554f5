"""MemoryShard: one shard of a store in memory, and the steps of its operations. It is the twin of `prelude.lua`.

Every item is one `MemoryItem` in `items`, and its id is in exactly one of `due`, `ready`, `leased`, `held` and `dead`.
Each call changes the items and the counters together, so the counters always fit the items. A key is the bytes of an
id, because Redis orders and compares bytes. A shard has no lock: `MemoryBackend` has one lock for all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from wheel_sched.errors import NamespaceMismatch
from wheel_sched.store.core.first_answers import FirstAnswers
from wheel_sched.store.core.items import Item, Marker, State, encode_text
from wheel_sched.store.core.memory_item import (
    FairTaking,
    MemoryItem,
    StoringHook,
    indexed,
    plain,
    reason_code,
)
from wheel_sched.store.core.sorted_set import SortedSet
from wheel_sched.store.core.turns import Turns

CLAMP_MS = 5_000  # a step back of up to this much counts as jitter and is ignored

R = TypeVar("R")


class RoomState(Protocol):
    """The state of a room (the code of one capability) in a shard in memory. Its constructor adds the room's hooks."""

    def __init__(self, shard: MemoryShard) -> None: ...


class MemoryShard:
    """One shard of a store in memory. `now_ms` and `now_us` are the time of the current call.

    Args:
        number: the number of the shard.
        clock: "server", or "test": then every call gives the time.
        wall_us: the process's wall clock in microseconds; the store's time when `clock` is "server".
    """

    def __init__(self, number: int, clock: str, wall_us: Callable[[], int]) -> None:
        self.number = number
        self.clock = clock
        # hooks: a room adds a function to a list, and the core calls every function of the list
        self.on_given_up: list[Callable[[MemoryItem], None]] = []  # an item died or was cancelled
        self.on_free: list[Callable[[MemoryItem], None]] = []  # an item was cancelled or deleted: its id is free
        self.on_restored: list[Callable[[MemoryItem, int], None]] = []  # a held item with this score was put back
        self.on_sweep: list[Callable[[], None]] = []
        # a call stores items, and one has a ref that starts with INSTRUCTION: answers what becomes of such items
        self.on_storing: list[StoringHook] = []
        self.on_put_back: list[Callable[[MemoryItem], None]] = []  # a waiting item was put back
        self.on_died: list[Callable[[MemoryItem, int], int]] = []  # an item died at a time (ms): answers its mark
        self.on_dead_gone: list[Callable[[MemoryItem], None]] = []  # a dead letter leaves the dead letters
        self._rooms: dict[type, Any] = {}
        self.items: dict[bytes, MemoryItem] = {}
        self.due, self.leased, self.held, self.dead = SortedSet(), SortedSet(), SortedSet(), SortedSet()
        self.ready = SortedSet()  # waiting items of fair topics, which are not in `due`
        self.shares: FairTaking | None = None  # None: no topic is fair
        self.places: dict[State, SortedSet] = {
            "due": self.due,
            "leased": self.leased,
            "held": self.held,
            "dead": self.dead,
        }
        self.held_index: dict[tuple[bytes, str], SortedSet] = {}
        self.refs: dict[str, dict[bytes, None]] = {}
        self.paused: dict[str, int] = {}
        self.now: dict[tuple[str, str], int] = {}
        self.ever: dict[tuple[str, str], int] = {}
        self.epoch, self.jumps, self.last_jump_ms = 1, 0, 0
        self.seq = self.claims = 0
        self.frozen: str | None = None
        self.others: dict[int, str] = {}  # of the last call that stored items: see `Stored.others`
        self.mark = Marker(b"0-0", -1)
        self.now_ms = self.now_us = 0
        self.turns = Turns(self.due, self.ready, self.items, self.now, self.paused)
        self.answers = FirstAnswers(wall_us)
        self._wall_us = wall_us
        self._last_ms = 0
        self._marks = 0
        self._earlier_ms: int | None = None  # the earliest due of this call, if before the head of `due`

    def add_room(self, kind: type[RoomState]) -> None:
        """Give a room its state in this shard."""
        self._rooms[kind] = kind(self)

    def room(self, kind: type[R]) -> R:
        """The state of a room in this shard."""
        state: R = self._rooms[kind]
        return state

    # A call begins and ends.

    def begin(self, now_ms: int | None, *, reading: bool) -> None:
        """Set the time of the call. If the clock stepped back by up to `CLAMP_MS`, the last time is used.

        A call that writes raises the epoch after a greater step back.

        Raises:
            NamespaceMismatch: the namespace is frozen, or `now_ms` does not fit its clock; nothing was changed.
        """
        if self.frozen is not None and not reading:
            raise NamespaceMismatch(f"the namespace is frozen: {self.frozen}: nothing was changed")
        if self.clock == "test":
            if now_ms is None:
                raise NamespaceMismatch("this namespace runs on test time and needs now: nothing was changed")
            now_us = now_ms * 1000
        else:
            if now_ms is not None:
                raise NamespaceMismatch("this namespace runs on server time and refuses now: nothing was changed")
            now_us = self._wall_us()
        now, last = now_us // 1000, self._last_ms
        if now < last:
            if last - now <= CLAMP_MS:
                now, now_us = last, last * 1000
            elif not reading:
                self.jumped(now - last)
                self._last_ms = now
        elif not reading:
            self._last_ms = now
        self.now_ms, self.now_us = now, now_us
        self._earlier_ms = None

    def jumped(self, step_ms: int) -> None:
        self.epoch += 1
        self.jumps += 1
        self.last_jump_ms = step_ms

    def forget_earlier(self) -> None:
        """Let `end` write no marker for items that this call has put back: its answer has the earliest due time."""
        self._earlier_ms = None

    def end(self) -> bool:
        """Write the marker if this call made an item due before all others. Returns whether the marker was written."""
        if self._earlier_ms is None:
            return False
        self._marks += 1
        self.mark = Marker(b"%d-0" % self._marks, self._earlier_ms)
        return True

    def wake_claimers(self, due_ms: int) -> None:
        """Let `end` write the marker with `due_ms`, or with now if `due_ms` is later. Negative: write none."""
        if due_ms >= 0:
            self._earlier_ms = min(due_ms, self.now_ms)

    def heads(self) -> tuple[int | None, int | None]:
        due, leased = self.due.first_score(), self.leased.first_score()
        if self.shares is not None:
            due = self.shares.head(due)
        return None if due < 0 else due, None if leased < 0 else leased

    # Counters, refs, records.

    def moves(self, topic: str, source: State | None, target: State | None) -> None:
        """Count that one id changes its state (None = the id is not in the shard)."""
        if source == target:
            return
        if source is not None:
            left = self.now[source, topic] - 1
            if left:
                self.now[source, topic] = left
            else:
                del self.now[source, topic]
        if target is not None:
            self.now[target, topic] = self.now.get((target, topic), 0) + 1

    def event(self, name: str, topic: str) -> None:
        self.ever[name, topic] = self.ever.get((name, topic), 0) + 1

    def add_refs(self, item: MemoryItem) -> None:
        for ref in indexed(item.refs):
            self.refs.setdefault(ref, {})[item.key] = None

    def drop_refs(self, item: MemoryItem) -> None:
        for ref in indexed(item.refs):
            ids = self.refs.get(ref)
            if ids is not None:
                ids.pop(item.key, None)
                if not ids:
                    del self.refs[ref]

    def sequence(self) -> Iterator[int]:
        """Yield the same version for ever, for all records of a call. The first use raises the sequence number."""
        self.seq += 1
        seq = self.seq
        while True:
            yield seq

    def rewrite(
        self, item: MemoryItem, version: int, topic: str, route: str | None, refs: tuple[str, ...], body: bytes
    ) -> None:
        """Give an item a new record; the caller changes the counters."""
        self.drop_refs(item)
        item.version, item.topic, item.body = version, plain(topic), body
        item.route = plain(route) if route else None
        item.refs = tuple(map(plain, refs))
        self.add_refs(item)

    # States.

    def score_of(self, item: MemoryItem) -> int | None:
        """The score of an item in the set of its state."""
        score = self.places[item.state].score(item.key)
        return self.ready.score(item.key) if score is None and item.state == "due" else score

    def drop_due(self, key: bytes) -> bool:
        """Remove an item from the waiting ones. Returns whether it waited."""
        if self.due.discard(key):
            return True
        due_ms = self.ready.score(key)
        if due_ms is None or self.shares is None:
            return False
        self.ready.discard(key)
        self.shares.dropped(self.items[key], due_ms)
        return True

    def put_held(self, item: MemoryItem, due_ms: int, reason: bytes) -> State:
        item.state, item.reason = "held", reason
        self.held.add(item.key, due_ms)
        place = (reason_code(reason), item.topic)
        index = self.held_index.get(place)
        if index is None:
            index = self.held_index[place] = SortedSet()
        index.add(item.key, due_ms)
        return "held"

    def drop_held(self, item: MemoryItem) -> bytes:
        """Remove an item from the held ones. Returns the reason why it was held."""
        place = (reason_code(item.reason), item.topic)
        index = self.held_index[place]
        index.discard(item.key)
        if not index:
            del self.held_index[place]
        self.held.discard(item.key)
        return item.reason

    def put_waiting(self, item: MemoryItem, due_ms: int, *, new: bool = False) -> State:
        """Let an item wait, or hold it when its topic is paused. Returns the new state."""
        if self.paused and item.topic in self.paused:
            return self.put_held(item, due_ms, b"paused")
        if new and self.shares is not None:
            head_ms = self.shares.head(self.due.first_score())
            if self.shares.add_waiting(item, due_ms):
                item.state = "due"
                self._came(due_ms, head_ms)
                return "due"
        return self.put_due(item, due_ms)

    def put_due(self, item: MemoryItem, due_ms: int) -> State:
        item.state = "due"
        self._came(due_ms, self.due.first_score())
        self.due.add(item.key, due_ms)
        return "due"

    def _came(self, due_ms: int, head_ms: int) -> None:
        """Note that an item waits now; `head_ms` was the earliest due time before."""
        if due_ms < head_ms or head_ms < 0:
            self._earlier_ms = due_ms if self._earlier_ms is None else min(due_ms, self._earlier_ms)

    def put_dead(self, item: MemoryItem, reason: bytes) -> State:
        item.lapses = 0
        self.bury(item, reason, self.now_ms)
        self.give_up(item)
        return "dead"

    def bury(self, item: MemoryItem, reason: bytes, died_ms: int) -> None:
        """Make an item a dead letter that died at `died_ms`, and call the hooks `on_died`."""
        item.state, item.reason, item.mark = "dead", reason, 0
        for hook in self.on_died:
            item.mark = hook(item, died_ms) or item.mark
        self.dead.add(item.key, died_ms)
        self.event("died", item.topic)

    def unearth(self, item: MemoryItem) -> None:
        """Call the hooks `on_dead_gone` for a dead letter that leaves, while it still has its record and reason."""
        for hook in self.on_dead_gone:
            hook(item)

    def remove(self, item: MemoryItem, source: State, happened: str) -> None:
        """Remove an item from the shard. The caller has removed it from its sorted set already."""
        if source == "dead":
            self.unearth(item)
        del self.items[item.key]
        self.drop_refs(item)
        self.moves(item.topic, source, None)
        self.event(happened, item.topic)
        if happened in ("cancelled", "deleted"):
            for hook in self.on_free:
                hook(item)
        if happened == "cancelled":
            self.give_up(item)

    def give_up(self, item: MemoryItem) -> None:
        """Call the hooks for an item that died or was cancelled."""
        for hook in self.on_given_up:
            hook(item)

    # Storing and recovering.

    def new_item(self, given: Item) -> MemoryItem:
        """Make an item with the version of this call, and its refs. The caller puts it into a state and counts it."""
        key, route = encode_text(given.id), plain(given.route) if given.route else None
        refs = tuple(map(plain, given.refs)) if given.refs else ()
        item = MemoryItem(key, plain(given.id), self.seq, plain(given.topic), route, refs, given.body)
        self.items[key] = item
        if refs:
            self.add_refs(item)
        return item

    def recover(self, limit: int, cap: int) -> int:
        """Recover items whose lease ran out (see `lapse`). A cancelled item leaves. Returns how many leases ran out."""
        expired = self.leased.up_to(self.now_ms, limit)
        for _, key in expired:
            item = self.items[key]
            self.leased.discard(key)
            if item.cancelled:
                self.remove(item, "leased", "cancelled")
                self.ended([key])
                continue
            self.lapse(item, cap, b"its lease ran out")
        return len(expired)

    def lapse(self, item: MemoryItem, cap: int, what: bytes) -> None:
        """End the claim of an item that nobody has settled. It waits again, or dies after `cap` lapses (0 = never)."""
        item.lapses += 1
        self.event("lapsed", item.topic)
        self.ended([item.key])
        if 0 < cap <= item.lapses:
            state = self.put_dead(item, b"poison: %s %d times" % (what, item.lapses))
        else:
            state = self.put_waiting(item, item.claimed_due_ms)
        self.moves(item.topic, "leased", state)

    def ended(self, keys: Sequence[bytes], published: Container[bytes] = ()) -> None:
        """Tell the room `fair_shares` that the claim of these items has ended. `published`: the items that are done."""
        if self.shares is not None:
            self.shares.ended(keys, published)

    def take(self, limit: int, until_ms: int) -> list[tuple[int, MemoryItem]]:
        """Remove up to `limit` items due by `until_ms` from `due`. Topics take turns while many items are overdue.

        Items of paused topics are held. Returns the other items with their due times.
        """
        if self.shares is not None:
            return self.shares.take(limit, until_ms)
        found = self.due.up_to(until_ms, limit)
        others = self.turns.overdue_of_others(found, limit, until_ms) if len(found) == limit else []
        found = found[: len(found) - len(others)]
        self.due.pop_first(len(found))
        for _, key in others:
            self.due.discard(key)
        taken = []
        for due_ms, key in found + others:
            item = self.items[key]
            if self.paused and item.topic in self.paused:
                self.moves(item.topic, "due", self.put_held(item, due_ms, b"paused"))
            else:
                taken.append((due_ms, item))
        return taken
