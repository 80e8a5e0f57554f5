"""Parts of the memory store: its clock, waiters, remembered answers, threads, and sorted set."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.errors import ConfigError, NamespaceMismatch, StoreError
from wheel_sched.store import AttemptCounts, open_store
from wheel_sched.store.attempt_counts import AttemptCount, ListCounts
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Count
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.get import Get
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Done
from wheel_sched.store.core.sorted_set import BLOCK, SortedSet
from wheel_sched.store.maintenance.operations import Freeze
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.testing.store_conformance import Bench

WALL_US = 1_700_000_000_000_000


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.us = WALL_US

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def wall() -> Wall:
    return Wall()


def server_time_store(wall: Wall) -> DelayStore:
    return DelayStore(MemoryBackend(1, wall_us=wall)).open()


def test_server_time_is_the_wall_clock_in_microseconds(wall: Wall) -> None:
    """The store's time has microseconds. Due times are compared with whole milliseconds, rounded down."""
    store = server_time_store(wall)
    wall.us += 999
    store.schedule([Item("a", WALL_US // 1000 + 1, b"")])
    assert store.claim().items == []
    assert store.windows(0)[0].now_us == WALL_US + 999
    wall.us += 1
    assert [item.id for item in store.claim().items] == ["a"]


def test_server_time_refuses_a_given_now(wall: Wall) -> None:
    """If the memory store runs on its own clock, it refuses a call with `now_ms`, as a server does."""
    store = server_time_store(wall)
    (answer,) = store.backend.execute([Call(0, Count())], now_ms=5)
    assert isinstance(answer, NamespaceMismatch)


def test_answers_are_kept_for_a_minute(wall: Wall) -> None:
    """The store remembers the answer to a token for a minute. Later the call counts as new, so a stored id is a
    duplicate."""
    store = server_time_store(wall)
    item = Item("a", WALL_US // 1000, b"")
    store.schedule([item], token="t")
    wall.us += 59_999_999
    assert store.schedule([item], token="t").outcomes == [Outcome.STORED]
    wall.us += 1
    assert store.schedule([item], token="t").outcomes == [Outcome.DUPLICATE]


def test_one_failing_call_leaves_the_others_alone(wall: Wall) -> None:
    """If one of several calls fails, the exception is at its position in the answers. The others are answered."""
    store = server_time_store(wall)
    one, two, three = store.execute([Call(0, Get(["a"])), Call(7, Get(["a"])), Call(0, Count())])
    assert one == [None]
    assert isinstance(two, NamespaceMismatch)
    assert three.total("due") == 0


def test_a_frozen_shard_takes_no_writes() -> None:
    """During maintenance a shard is frozen. It refuses writes, but it can be read, and items can be restored into
    it."""
    backend = MemoryBackend(1, clock="test")
    bench = Bench(backend, 1)
    bench.put("a")
    found = bench.one("a")
    backend.shards[0].frozen = "reshard"
    with pytest.raises(NamespaceMismatch, match="reshard"):
        bench.put("b")
    assert bench.store.counts().frozen == "reshard"
    found.id = "b"
    assert bench.store.restore([found]) == 1


def test_attempt_counts_are_listed_by_expiry() -> None:
    """A memory store lists attempt counts by their expiry, as a server does, so that a backup can read them."""
    store = open_store("memory:")
    year_5000_ms = 95_617_584_000_000
    AttemptCounts(store).raise_to(
        [("k", 3, year_5000_ms + 9_000), ("l", 1, year_5000_ms + 5_500), ("m", 0, year_5000_ms)]
    )
    (page,) = store.execute([Call(0, ListCounts(0))])
    assert page == [AttemptCount("l", 1, year_5000_ms + 6_000), AttemptCount("k", 3, year_5000_ms + 9_000)]
    assert store.execute([Call(0, ListCounts(2))]) == [[]]


def test_an_operation_that_memory_cannot_do_is_an_error() -> None:
    """A memory store refuses operations for the maintenance of shards, because it ends with its process."""
    (answer,) = open_store("memory:").execute([Call(0, Freeze("freeze", ["why"]))])
    assert isinstance(answer, StoreError)
    assert "nothing was frozen" in str(answer)


def test_an_unknown_clock_is_refused() -> None:
    """An unknown kind of clock is refused before the store creates anything."""
    with pytest.raises(ConfigError, match="sundial"):
        MemoryBackend(1, clock="sundial")


def test_a_waiter_wakes_when_an_earlier_head_arrives() -> None:
    """A thread waits for a marker while another thread stores an earlier item. The waiter wakes and gets the item's
    due time."""
    store = open_store("memory:", shards=3)
    backend = store.backend
    marks = {window.shard: window.mark for window in store.windows(0)}
    waiter = backend.waiter(0, 5000)
    timer = threading.Timer(0.05, store.schedule, [[Item("a", 5, b"")]])
    timer.start()
    began = time.monotonic()
    (mark,) = backend.wait_for_mark(waiter, marks, 5000).values()
    assert (mark.due_ms, time.monotonic() - began < 2) == (5, True)
    timer.join()
    assert backend.wait_for_mark(waiter, marks, 5000).popitem()[1] == mark


@pytest.mark.parametrize("how", ["close", "interrupt", "close the backend"])
def test_a_blocked_wait_can_be_ended(how: str) -> None:
    """`close` or `interrupt` ends a blocked wait. It returns {}, and so does every later wait of the same waiter."""
    backend = MemoryBackend(1, clock="test")
    waiter = backend.waiter(0, 0)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(backend.wait_for_mark(waiter, {0: b"0-0"}, 0)))
    thread.start()
    {"close": waiter.close, "interrupt": lambda: backend.interrupt(waiter), "close the backend": backend.close}[how]()
    thread.join(10)
    assert answers == [{}]
    assert backend.wait_for_mark(waiter, {0: b"0-0"}, 0) == {}


def test_threads_share_a_store() -> None:
    """Eight threads schedule, claim and settle at once: each item is done once, and the counters add up."""
    store = open_store("memory:", shards=2)
    done: list[str] = []

    def work(number: int) -> None:
        store.schedule([Item(f"{number}-{n}", 0, b"") for n in range(250)])
        while True:
            claims = [store.claim(7, shard=shard) for shard in range(2)]
            if not any(claim.items for claim in claims):
                return
            for claim in claims:
                done.extend(item.id for item in claim.items)
                store.settle(claim, [Done(item.id) for item in claim.items])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(f"{number}-{n}" for number in range(8) for n in range(250))
    assert store.counts().ever == {("accepted", ""): 2000, ("completed", ""): 2000}


def test_a_repr_shows_the_state() -> None:
    """`repr` shows the implementation, the shards, the clock and the number of waiting items."""
    bench = Bench(MemoryBackend(2, clock="test"), 2)
    bench.put("a", "b")
    assert repr(bench.store.backend) == "<MemoryBackend shards=2 clock=test due=2>"


steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "discard", "pop"]), st.integers(0, 60), st.integers(0, 9)),
    max_size=80,
)


@given(steps, st.integers(0, 9), st.integers(0, 20), st.integers(0, 60))
def test_a_sorted_set_is_a_sorted_dict(steps: list[tuple[str, int, int]], score: int, limit: int, last: int) -> None:
    """After any additions and removals, every read of the sorted set gives what sorting all entries gives."""
    tree, plain = SortedSet(), dict[bytes, int]()
    for verb, number, at in steps:
        member = b"%d" % number
        if verb == "add":
            tree.add(member, at)
            plain[member] = at
        elif verb == "discard":
            assert tree.discard(member) == (plain.pop(member, None) is not None)
        else:
            tree.pop_first(at)
            for _, gone in sorted((s, m) for m, s in plain.items())[:at]:
                del plain[gone]
    entries = sorted((s, m) for m, s in plain.items())
    assert (len(tree), tree.first_score()) == (len(plain), entries[0][0] if entries else -1)
    assert tree.up_to(score, limit) == [e for e in entries if e[0] <= score][:limit]
    assert tree.between(score, 7, limit) == [e for e in entries if score <= e[0] <= 7][:limit]
    place = (score, b"%d" % last)
    assert tree.behind(*place, 8, limit) == [e for e in entries if e > place and e[0] <= 8][:limit]
    assert tree.by_rank(score, limit) == entries[score : score + limit]
    assert all(tree.score(m) == s and m in tree for m, s in plain.items())


def test_a_sorted_set_of_many_blocks_keeps_its_order() -> None:
    """The entries stay sorted while the set's blocks are split and emptied."""
    tree = SortedSet()
    count = 8 * BLOCK
    for n in range(count):
        tree.add(b"%d" % n, (n * 7919) % count)
    assert [score for score, _ in tree.by_rank(0, count)] == list(range(count))
    assert [score for score, _ in tree.by_rank(count // 2, 3)] == [count // 2 + n for n in range(3)]
    for n in range(0, count, 2):
        assert tree.discard(b"%d" % n)
    tree.pop_first(BLOCK + 3)
    rest = tree.by_rank(0, count)
    assert (len(rest), rest) == (count // 2 - BLOCK - 3, sorted(rest))
    assert tree.between(rest[100][0], count, 5) == rest[100:105]
    tree.pop_first(count)
    assert (len(tree), tree.first_score(), tree.by_rank(0, 1)) == (0, -1, [])
