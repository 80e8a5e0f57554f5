"""The contract of every delay store, as a test suite that anybody can run against another implementation.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_backend(self):
            return lambda shards: MyBackend(shards, clock="test")

`make_backend` gives a function that makes a `Backend` (see `wheel_sched.store.core.delay_store`) over a fresh namespace
with a test clock: the suite passes the time to each call. A test calls the function once at most. After each test the
suite checks the store's invariants: every id is in one state, the counters equal the sizes of the sets, and
accepted = completed + cancelled + deleted + trimmed + replaced + items in the store.

Call `pytest.register_assert_rewrite("wheel_sched.testing.store_conformance")` before the import: then a failed test
shows the compared values.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wheel_sched.testing.store_conformance.attempt_counts import AttemptCountCases
from wheel_sched.testing.store_conformance.bench import BackendMaker, Bench, BenchMaker, ManualClock
from wheel_sched.testing.store_conformance.changing import ChangingCases
from wheel_sched.testing.store_conformance.claiming import ClaimingCases
from wheel_sched.testing.store_conformance.clocks import ClockCases
from wheel_sched.testing.store_conformance.dead_letters import DeadLetterCases
from wheel_sched.testing.store_conformance.death_groups import DeathGroupCases
from wheel_sched.testing.store_conformance.documents import DocumentCases
from wheel_sched.testing.store_conformance.fair_shares import FairShareCases
from wheel_sched.testing.store_conformance.history import HistoryCases
from wheel_sched.testing.store_conformance.known_ids import KnownIdCases
from wheel_sched.testing.store_conformance.listing import ListingCases
from wheel_sched.testing.store_conformance.log_intake import LogIntakeCases
from wheel_sched.testing.store_conformance.members import MemberCases
from wheel_sched.testing.store_conformance.once_per_key import OncePerKeyCases
from wheel_sched.testing.store_conformance.ordering import OrderingCases
from wheel_sched.testing.store_conformance.rate_limits import RateLimitCases
from wheel_sched.testing.store_conformance.recurring import RecurringCases
from wheel_sched.testing.store_conformance.scheduling import SchedulingCases
from wheel_sched.testing.store_conformance.settling import SettlingCases
from wheel_sched.testing.store_conformance.shard_ownership import ShardOwnershipCases
from wheel_sched.testing.store_conformance.topics import TopicCases
from wheel_sched.testing.store_conformance.writer_fence import WriterFenceCases

__all__ = ["BackendMaker", "Bench", "BenchMaker", "Benches", "ManualClock", "StoreConformance"]


class Benches:
    """The fixtures of all cases.

    To run only some cases, inherit from this class and from theirs: `class TestMine(Benches, ClaimingCases)`.
    """

    @pytest.fixture
    def make_backend(self) -> BackendMaker:
        """A function that takes a number of shards and makes the backend to test. Subclasses override this fixture."""
        raise NotImplementedError("a subclass needs a `make_backend` fixture")

    @pytest.fixture
    def make_bench(self, make_backend: BackendMaker) -> BenchMaker:
        """A function that makes a `Bench`. Subclasses override it for a store with another facade than `DelayStore`."""
        return lambda shards: Bench(make_backend(shards), shards)

    @pytest.fixture
    def bench(self, make_bench: BenchMaker) -> Iterator[Bench]:
        """A store with one shard, in a `Bench`. The invariants are checked when the test has ended."""
        yield from _checked(make_bench(1))

    @pytest.fixture
    def wide(self, make_bench: BenchMaker) -> Iterator[Bench]:
        """A store with three shards, in a `Bench`. The invariants are checked when the test has ended."""
        yield from _checked(make_bench(3))


class StoreConformance(
    Benches,
    SchedulingCases,
    ClaimingCases,
    SettlingCases,
    ChangingCases,
    TopicCases,
    DeadLetterCases,
    ListingCases,
    ClockCases,
    KnownIdCases,
    OncePerKeyCases,
    AttemptCountCases,
    LogIntakeCases,
    WriterFenceCases,
    OrderingCases,
    RecurringCases,
    RateLimitCases,
    ShardOwnershipCases,
    HistoryCases,
    MemberCases,
    DocumentCases,
    DeathGroupCases,
    FairShareCases,
):
    """The tests of all capabilities of a store. Subclass it, and give the subclass a `make_backend` fixture."""


def _checked(bench: Bench) -> Iterator[Bench]:
    try:
        yield bench
        bench.check()
    finally:
        bench.store.close()
