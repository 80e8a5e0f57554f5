"""The memory in which the compiled core keeps entries: slabs, which are blocks of memory for many entries each."""

from __future__ import annotations

import gc
import random
import weakref
from itertools import pairwise
from typing import Any

import pytest

from wheel_sched.wheel import CORES, EntryState

pytestmark = pytest.mark.skipif("compiled" not in CORES, reason="this installation had no compiler")

LINE = 64  # bytes of a cache line
HEAD = 16  # bytes the collector keeps before an object
SLAB = 4096  # about as many entries as a slab holds


class Marker:
    """An object that supports weak references."""


def compiled() -> Any:
    return CORES["compiled"]()


def test_an_entry_takes_one_cache_line() -> None:
    """An entry, with the garbage collector's header, starts at a cache line. Python's allocator would use two lines for
    most entries."""
    wheel = compiled()
    entries = [wheel.schedule(None, 1000) for _ in range(3 * SLAB)]
    assert {(id(entry) - HEAD) % LINE for entry in entries} == {0}
    assert len({id(entry) for entry in entries}) == len(entries)


def test_memory_is_taken_in_the_order_of_its_addresses_though_given_up_in_any() -> None:
    """Entries are freed in random order. New entries are still placed by rising address, so that the processor
    prefetches them."""
    wheel = compiled()
    entries = [wheel.schedule(None, 1000) for _ in range(2 * SLAB)]
    rng = random.Random(3)
    rng.shuffle(entries)
    while entries:
        entries.pop().cancel()
    places = [id(entry) for entry in [wheel.schedule(None, 1000) for _ in range(2 * SLAB)]]
    upwards = sum(before < after for before, after in pairwise(places))
    assert upwards > 0.95 * len(places)


def test_slabs_come_and_go_without_an_entry_lost() -> None:
    """Many rounds fill the slabs and free a part of the entries. The others keep their tasks and deadlines."""
    wheel, rng = compiled(), random.Random(5)
    live: dict[int, Any] = {}
    number = 0
    for turn in range(40):
        for _ in range(rng.randrange(SLAB)):
            live[number] = wheel.schedule(number, 10**6 + number)
            number += 1
        gone = rng.sample(sorted(live), len(live) if turn % 9 == 8 else rng.randrange(len(live) + 1))
        for one in gone:
            assert live.pop(one).cancel() is EntryState.CANCELLED
        assert [(entry.task, entry.deadline_ms) for entry in live.values()] == [(n, 10**6 + n) for n in live]
    assert [entry.task for entry in wheel.advance(10**8)] == sorted(live)


def test_the_collector_knows_entries_as_it_knows_all_objects() -> None:
    """The garbage collector finds an unreachable cycle through an entry."""
    wheel, marker = compiled(), Marker()
    found = weakref.ref(marker)
    entry = wheel.schedule([marker], 5)
    assert gc.is_tracked(entry)
    assert entry in gc.get_referrers(wheel)
    wheel.advance(5)
    entry.task.append(entry)
    del entry, marker
    gc.collect()
    assert found() is None
