"""`Bench`, which every conformance test uses: a store with a test clock, and a check of its invariants."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from wheel_sched.store.attempt_counts import AttemptCounts
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.delay_store import Backend, DelayStore
from wheel_sched.store.core.items import STATES, Found, Item, Outcome, State, encode_text
from wheel_sched.store.core.settle import Dead, Done
from wheel_sched.store.death_groups import OTHER_GROUP, DeathGroups
from wheel_sched.store.documents import Documents
from wheel_sched.store.fair_shares import FairShares
from wheel_sched.store.history import History
from wheel_sched.store.known_ids import KnownIds
from wheel_sched.store.log_intake import LogIntake
from wheel_sched.store.members import Members
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import RateLimits
from wheel_sched.store.recurring import Recurring
from wheel_sched.store.shard_ownership import ShardOwnership
from wheel_sched.store.writer_fence import WriterFences

START_MS = 1_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000

BackendMaker = Callable[[int], Backend]
T = TypeVar("T")


class StoreMaker(Protocol):
    """Makes a store over a backend."""

    def __call__(self, backend: Backend, *, shards: int, test_clock: Callable[[], int]) -> DelayStore: ...


class ManualClock:
    """A clock in milliseconds that only a test moves."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def __repr__(self) -> str:
        return f"<ManualClock {self.now_ms} ms>"

    def advance(self, by_ms: int) -> int:
        self.now_ms += by_ms
        return self.now_ms


class Bench:
    """One store, its capabilities and its clock. `check` tests the invariants of every store.

    Args:
        backend: a backend over a fresh namespace with a test clock (the bench passes the time to each call).
        shards: number of shards of the namespace.
        make_store: makes a blocking facade over the backend. Defaults to `DelayStore`.
    """

    def __init__(self, backend: Backend, shards: int, make_store: StoreMaker = DelayStore) -> None:
        self.clock = ManualClock()
        self.store = make_store(backend, shards=shards, test_clock=self.clock).open()
        self.unreadable = False  # set by a test that damages a record: `check` then checks nothing

    def capability(self, kind: Callable[[DelayStore], T]) -> T:
        """A capability of the store. Subclasses override this when the store has another facade."""
        return kind(self.store)

    @property
    def known_ids(self) -> KnownIds:
        return self.capability(KnownIds)

    @property
    def attempt_counts(self) -> AttemptCounts:
        return self.capability(AttemptCounts)

    @property
    def log_intake(self) -> LogIntake:
        return self.capability(LogIntake)

    @property
    def writer_fences(self) -> WriterFences:
        return self.capability(WriterFences)

    @property
    def ordered_keys(self) -> OrderedKeys:
        return self.capability(OrderedKeys)

    @property
    def rate_limits(self) -> RateLimits:
        return self.capability(RateLimits)

    @property
    def shard_ownership(self) -> ShardOwnership:
        return self.capability(ShardOwnership)

    @property
    def history(self) -> History:
        return self.capability(History)

    @property
    def members(self) -> Members:
        return self.capability(Members)

    @property
    def death_groups(self) -> DeathGroups:
        return self.capability(DeathGroups)

    @property
    def recurring(self) -> Recurring:
        return self.capability(Recurring)

    @property
    def fair_shares(self) -> FairShares:
        return self.capability(FairShares)

    @property
    def documents(self) -> Documents:
        return self.capability(Documents)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    def put(self, *ids: str, in_ms: int | None = 0, topic: str = "", refs: tuple[str, ...] = ()) -> list[Outcome]:
        """Schedule items that are due `in_ms` from now (None: held without a due time). Each body is the item's id."""
        due_ms = None if in_ms is None else self.now_ms + in_ms
        return self.store.schedule([Item(i, due_ms, encode_text(i), topic, refs) for i in ids]).outcomes

    def claim(self, limit: int = 500, lease_ms: int = MINUTE_MS, shard: int = 0, lapse_cap: int = 0) -> Claim:
        return self.store.claim(limit, lease_ms=lease_ms, shard=shard, lapse_cap=lapse_cap)

    def claim_all(self, lease_ms: int = MINUTE_MS) -> list[Claimed]:
        """Claim the due items of every shard."""
        return [item for shard in range(self.store.shards) for item in self.claim(500, lease_ms, shard).items]

    def bury(self, *ids: str, reason: str = "broken", topic: str = "") -> None:
        """Schedule items, claim them, and settle them as dead."""
        self.put(*ids, topic=topic)
        claim = self.claim()
        wanted = [item.id for item in claim.items if item.id in ids]
        self.store.settle(claim, [Dead(i, reason) for i in wanted])

    def settle_all(self, claim: Claim) -> list[Outcome]:
        return self.store.settle(claim, [Done(item.id) for item in claim.items]).outcomes

    def one(self, item_id: str) -> Found:
        (found,) = self.store.get([item_id])
        assert found is not None, f"expected {item_id} to be in the store"
        return found

    def states(self, *ids: str) -> list[State | None]:
        return [found.state if found else None for found in self.store.get(ids)]

    def everything(self, state: State, limit: int = 500) -> list[Found]:
        """All items of a state, page by page."""
        found: list[Found] = []
        cursor: str | None = None
        while True:
            page = self.store.list_items(state, cursor=cursor, limit=limit)
            found += page.found
            cursor = page.cursor
            if cursor is None:
                return found

    def check(self) -> None:
        """Check that every id is in one state, that the counters fit the items, and that no accepted item was lost."""
        if self.unreadable:
            return
        counts = self.store.counts()
        sizes = counts.sizes
        assert {state: counts.total(state) for state in STATES} == {state: sizes[state] for state in STATES}
        assert sizes["body"] == sizes["due"] + sizes["leased"] + sizes["held"]
        assert (sizes["deadbody"], sizes["claim"], sizes["why"]) == (sizes["dead"], sizes["leased"], sizes["held"])
        gone = sum(counts.happened(event) for event in ("completed", "cancelled", "deleted", "trimmed", "replaced"))
        assert counts.happened("accepted") == gone + sum(sizes[state] for state in STATES)
        assert all(number > 0 for number in counts.now.values())
        listed = {state: self.everything(state) for state in STATES}
        assert {state: len(found) for state, found in listed.items()} == {state: sizes[state] for state in STATES}
        ids = [found.id for place in listed.values() for found in place]
        assert len(ids) == len(set(ids))
        per_topic = dict.fromkeys(counts.now, 0)
        for state, place in listed.items():
            for found in place:
                per_topic[state, found.topic] = per_topic.get((state, found.topic), 0) + 1
        assert per_topic == counts.now
        deaths = self.death_groups.groups()
        assert (deaths.dead, deaths.uncounted) == (sizes["dead"], 0)
        counted: dict[str, int] = {}
        for group in deaths.groups:
            assert 0 <= group.count <= group.ever
            if group.count:
                counted[group.topic] = counted.get(group.topic, 0) + group.count
        if all(group.group != OTHER_GROUP for group in deaths.groups):
            assert counted == {topic: number for (state, topic), number in counts.now.items() if state == "dead"}


def done(items: Sequence[Claimed]) -> list[Done]:
    return [Done(item.id) for item in items]


BenchMaker = Callable[[int], Bench]
