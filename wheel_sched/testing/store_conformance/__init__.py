"""What every delay store has to keep, as a test suite that anybody can run against theirs.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_backend(self):
            return lambda shards: MyBackend(shards, clock="test")

`make_backend` gives a `Backend` (see `wheel_sched.store.delay_store`) over a fresh namespace on test time; it is called
at most once a test. After each test the store's invariants are checked: every id in exactly one place, counters equal
to cardinalities, and accepted = completed + cancelled + deleted + trimmed + what is there.

`pytest.register_assert_rewrite("wheel_sched.testing.store_conformance")`, before the import, makes failures talkative.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wheel_sched.testing.store_conformance.bench import BackendMaker, Bench, ManualClock
from wheel_sched.testing.store_conformance.changing import ChangingCases
from wheel_sched.testing.store_conformance.claiming import ClaimingCases
from wheel_sched.testing.store_conformance.clocks import ClockCases
from wheel_sched.testing.store_conformance.dead_letters import DeadLetterCases
from wheel_sched.testing.store_conformance.listing import ListingCases
from wheel_sched.testing.store_conformance.logging import LogCases
from wheel_sched.testing.store_conformance.owning import OwningCases
from wheel_sched.testing.store_conformance.scheduling import SchedulingCases
from wheel_sched.testing.store_conformance.settling import SettlingCases
from wheel_sched.testing.store_conformance.topics import TopicCases

__all__ = ["BackendMaker", "Bench", "ManualClock", "StoreConformance"]


class StoreConformance(
    SchedulingCases,
    ClaimingCases,
    SettlingCases,
    ChangingCases,
    TopicCases,
    LogCases,
    DeadLetterCases,
    ListingCases,
    ClockCases,
    OwningCases,
):
    """Subclass it, give it a `make_backend` fixture, and let pytest collect it."""

    @pytest.fixture
    def make_backend(self) -> BackendMaker:
        """Overridden by the subclass."""
        raise NotImplementedError("a subclass of StoreConformance needs a `make_backend` fixture")

    @pytest.fixture
    def bench(self, make_backend: BackendMaker) -> Iterator[Bench]:
        """A store of one shard."""
        yield from _bench(make_backend, 1)

    @pytest.fixture
    def wide(self, make_backend: BackendMaker) -> Iterator[Bench]:
        """A store of three shards."""
        yield from _bench(make_backend, 3)


def _bench(make_backend: BackendMaker, shards: int) -> Iterator[Bench]:
    bench = Bench(make_backend(shards), shards)
    try:
        yield bench
        bench.check()
    finally:
        bench.store.close()
