"""A reshard neither loses nor doubles an item, and the counters are correct afterwards.

A reshard of a namespace in use is refused. A killed reshard can be resumed.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wheel_sched.dispatcher import Dispatcher
from wheel_sched.dispatcher.publisher import PublisherTraits
from wheel_sched.errors import NamespaceMismatch, Rejected, StoreError
from wheel_sched.store import AttemptCounts, DeathGroups, DelayStore, Documents, Done, Item, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.get import Get
from wheel_sched.store.core.items import STATES
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.maintenance.backup import all_attempt_counts, all_items
from wheel_sched.store.maintenance.listeners import listeners
from wheel_sched.store.maintenance.operations import Freeze
from wheel_sched.store.maintenance.reshard import ReshardRefused, reshard
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect

HOUR = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fill(store: DelayStore, count: int = 600) -> None:
    """Store waiting, held, paused, dead and done items, with refs, routes and attempt counts."""
    now = now_ms()
    items = [
        Item(
            f"i{n}",
            None if n % 7 == 0 else now + HOUR + n,
            b"%d" % n,
            f"t{n % 3}",
            (f"r{n % 4}",),
            f"o{n}" if n % 5 == 0 else None,
        )
        for n in range(count)
    ]
    store.schedule(items)
    store.pause("t2")
    store.bury([(Item(f"d{n}", now, b"gone", "t0", ("dead",)), f"fatal: {n}") for n in range(count // 4)])
    AttemptCounts(store).raise_to([(f"k{n}", n % 9 + 1, now + HOUR) for n in range(count)])
    store.schedule([Item(f"done{n}", now, b"x", "t1") for n in range(20)])
    for shard in range(store.shards):
        claim = store.claim(100, shard=shard)
        store.settle(claim, [Done(item.id) for item in claim.items])


def everything(store: DelayStore) -> tuple[Any, ...]:
    """Return all data that a reshard must keep. The store's counters must agree with it."""
    counts = store.counts()
    assert counts.frozen is None
    for shard, part in enumerate(store.counts_by_shard()):
        assert all(part.total(state) == part.sizes[state] for state in STATES), shard
        assert part.sizes["body"] == part.sizes["due"] + part.sizes["held"]
        assert part.sizes["deadbody"] == part.sizes["dead"]
        assert part.sizes["why"] == part.sizes["held"]
        assert set(part.paused) == {"t2"}
    items = []
    for state in STATES:
        for f in all_items(store, state):
            assert f.shard == shard_of(f.route or f.id, store.shards)
            items.append((f.id, f.state, f.score_ms, f.version, f.topic, f.body, f.reason, f.refs, f.route or ""))
    records = {(r.key, r.attempts, r.expiry_ms) for s in range(store.shards) for r in all_attempt_counts(store, s)}
    refs = [sorted(store.find(ref, limit=10_000)) for ref in ("r0", "r1", "r2", "r3", "dead")]
    deaths = DeathGroups(store).groups()
    assert (deaths.dead, deaths.uncounted) == (counts.total("dead"), 0)
    groups = sorted((g.topic, g.group, g.count, g.ever, g.first_ms, g.last_ms, sum(g.by_hour)) for g in deaths.groups)
    return sorted(items), records, refs, counts.now, counts.ever, groups


@pytest.fixture
def backend(redis_url: str) -> Iterator[RedisBackend]:
    opened = RedisBackend(client_for(redis_url), Dialect("wheel"), owns_client=True)
    yield opened
    opened.close()


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3), (5, 2), (3, 3)])
def test_everything_is_where_the_new_count_says(redis_url: str, backend: RedisBackend, before: int, after: int) -> None:
    """A change of the shard count in either direction keeps all items, refs, attempt counts, pauses and counters."""
    with open_store(redis_url, shards=before) as store:
        fill(store)
        kept = everything(store)
    done = reshard(backend, after)
    assert (done.before, done.after) == (before, after)
    with open_store(redis_url, shards=after) as store:
        assert everything(store) == kept
    with pytest.raises(NamespaceMismatch), open_store(redis_url, shards=before + after):
        pass
    left = {key.split(b"}")[0] for key in backend.client.scan_iter(match="{wheel:*}:meta")}
    assert len(left) == after


def test_paused_topics_stay_paused_in_new_shards(redis_url: str, backend: RedisBackend) -> None:
    """Items of a paused topic that are stored after the reshard are held, in every shard."""
    with open_store(redis_url, shards=1) as store:
        store.pause("t")
    reshard(backend, 4)
    with open_store(redis_url, shards=4) as store:
        store.schedule([Item(f"i{n}", 0, b"", "t") for n in range(40)])
        assert store.counts().total("held") == 40
        store.resume("t")
        assert store.counts().total("due") == 40


def test_documents_stay_in_shard_0(redis_url: str, backend: RedisBackend) -> None:
    """A reshard keeps all documents with their versions. A document that is stored later has a higher version."""
    with open_store(redis_url, shards=2) as store:
        version = Documents(store).put("notes", "a", b"kept", ttl_ms=HOUR)
        before = Documents(store).get("notes", ["a"])
    for count in (5, 1):
        reshard(backend, count)
        with open_store(redis_url, shards=count) as store:
            assert Documents(store).get("notes", ["a"]) == before
    with open_store(redis_url, shards=1) as store:
        assert (Documents(store).put("notes", "b", b"") or 0) > (version or 0)


def test_it_refuses_while_something_is_in_flight(redis_url: str, backend: RedisBackend) -> None:
    """While an item is in flight, a reshard is refused and changes nothing, and writers continue.

    An item whose lease has ended does not prevent a reshard.
    """
    with open_store(redis_url, shards=2) as store:
        store.schedule([Item("a", 0, b"")])
        shard = shard_of("a", 2)
        claim = store.claim(1, shard=shard, lease_ms=60_000)
        with pytest.raises(ReshardRefused, match="1 items are in flight: nothing was changed"):
            reshard(backend, 4)
        assert store.counts().frozen is None
        store.schedule([Item("b", 0, b"")])
        store.extend(claim, ["a"], 1)
        time.sleep(0.05)  # the lease of 1 ms runs out by the server's clock
    assert reshard(backend, 4).after == 4


class Sink:
    """A publisher that accepts every item."""

    traits = PublisherTraits()

    def publish(self, batch: Any) -> None:
        batch.answers[:] = [Done(item.id) for item in batch.items]


def test_it_refuses_while_a_dispatcher_runs(redis_url: str, backend: RedisBackend) -> None:
    """A running dispatcher prevents a reshard, even if it has no claim.

    A dispatcher of another namespace does not prevent it.
    """
    with open_store(redis_url, shards=2) as store, open_store(redis_url, namespace="other") as other:
        neighbour = Dispatcher(other, Sink())
        neighbour.start()
        mine = Dispatcher(store, Sink())
        mine.start()
        wait_until(lambda: listeners(backend, 2) == 1)
        with pytest.raises(ReshardRefused, match="1 dispatcher is running"):
            reshard(backend, 3)
        mine.stop()
        wait_until(lambda: listeners(backend, 2) == 0)
        assert reshard(backend, 3).after == 3
        neighbour.stop()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)  # polls until another thread has opened or closed its connection


def test_a_claim_in_the_last_moment_is_found_by_the_freeze(redis_url: str, backend: RedisBackend) -> None:
    """A claim is made after the check and before the last shard is frozen. The reshard is refused, and no shard stays
    frozen."""
    with open_store(redis_url, shards=3) as store:
        store.schedule([Item(f"i{n}", 0, b"") for n in range(30)])

        def claim_late(step: str, moved: int) -> None:
            if step == "freeze":
                store.claim(1, shard=2)

        with pytest.raises(ReshardRefused, match="at work again: nothing was changed"):
            reshard(backend, 5, progress=claim_late)
        assert [part.frozen for part in store.counts_by_shard()] == [None] * 3
        store.schedule([Item("after", 0, b"")])


def test_writers_are_fenced_out_while_it_runs(redis_url: str, backend: RedisBackend) -> None:
    """A write during a reshard raises an error and stores nothing."""
    refusals: list[str] = []
    with open_store(redis_url, shards=2) as store:
        fill(store, 100)

        def intrude(step: str, moved: int) -> None:
            if step in ("open", "copied", "lifted", "attempt counts"):
                for change in (
                    lambda: store.schedule([Item("intruder", 0, b"")]),
                    lambda: store.cancel(["i1"]),
                    lambda: store.claim(5),
                ):
                    with pytest.raises(StoreError, match="frozen: resharding 2 to 4") as caught:
                        change()
                    refusals.append(str(caught.value))

        reshard(backend, 4, progress=intrude)
    assert refusals
    with open_store(redis_url, shards=4) as store:
        assert store.get(["intruder"]) == [None]


STEPS_UP = ("freeze", "open", "copied", "lifted", "attempt counts", "thaw")
STEPS_DOWN = ("freeze", "copied", "lifted", "attempt counts", "adopted", "dropped", "thaw")
KILLED_AT = """
import os, signal, sys
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.store.maintenance.reshard import reshard
url, target, step, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def progress(at, moved):
    global number
    if at == step:
        number -= 1
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
reshard(RedisBackend(client_for(url), Dialect("wheel")), target, progress=progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "step", "number"),
    [(2, 4, step, number) for step in STEPS_UP for number in (1, 2)]
    + [(4, 2, step, number) for step in STEPS_DOWN for number in (1, 2)],
)
def test_a_kill_at_any_step_loses_nothing(
    redis_url: str, backend: RedisBackend, before: int, after: int, step: str, number: int
) -> None:
    """The test kills the reshard after the first or second step of each kind. Then `resume` finishes it, and nothing is
    lost."""
    with open_store(redis_url, shards=before) as store:
        fill(store, 300)
        kept = everything(store)
    command = [sys.executable, "-c", KILLED_AT, redis_url, str(after), step, str(number)]
    killed = subprocess.run(command, capture_output=True, timeout=50)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    if not (step == "thaw" and number == after):
        with pytest.raises(ReshardRefused, match="continue with --resume"):
            reshard(backend, after)
        with pytest.raises(ReshardRefused, match="only be resumed to"):
            reshard(backend, after + 1, resume=True)
        assert reshard(backend, None, resume=True).after == after
    with open_store(redis_url, shards=after) as store:
        assert everything(store) == kept


@pytest.mark.slow
def test_killed_at_every_step_it_ends_too(redis_url: str, backend: RedisBackend) -> None:
    """Each run is interrupted one step later than the run before, and the next run resumes the reshard. At last the
    reshard is complete."""
    with open_store(redis_url, shards=2) as store:
        fill(store, 300)
        kept = everything(store)
    stops = itertools.count(1)
    while backend.execute([Call(0, Freeze("look"))])[0].shards == 2:
        left = left_at_first = next(stops)

        def count_down(step: str, moved: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Interrupted

        with contextlib.suppress(Interrupted):
            reshard(backend, 5, resume=left_at_first > 1, progress=count_down)
    assert next(stops) > 10
    with open_store(redis_url, shards=5) as store:
        assert everything(store) == kept


class Interrupted(Exception):
    """Raised to end a reshard at a step, as a kill would."""


def test_an_id_in_two_shards_with_two_contents_stops_it(redis_url: str, backend: RedisBackend) -> None:
    """Two items with different routes have the same id. The reshard refuses to put them into one shard and drops
    neither."""
    routes = [next(f"x{n}" for n in range(100) if shard_of(f"x{n}", 2) == shard) for shard in (0, 1)]
    with open_store(redis_url, shards=2) as store:
        for route in routes:
            store.schedule([Item("twice", now_ms() + HOUR, route.encode(), route=route)])
    with pytest.raises(ReshardRefused, match="'twice' lies in shard 1 and, with other content, in shard 0"):
        reshard(backend, 1)
    (mine,), (other,) = backend.execute([Call(shard, Get(["twice"])) for shard in (0, 1)])
    assert [mine.body, other.body] == [route.encode() for route in routes]


@pytest.mark.parametrize("target", [0, 1_025, True])
def test_a_count_that_cannot_be_is_refused(backend: RedisBackend, target: int) -> None:
    """The number of shards must be from 1 to 1024."""
    with pytest.raises(Rejected, match="nothing was changed"):
        reshard(backend, target)


def test_a_namespace_that_is_not_there_cannot_be_resharded(backend: RedisBackend) -> None:
    """A reshard of an unknown namespace fails and creates nothing."""
    with pytest.raises(NamespaceMismatch):
        reshard(backend, 2)
    assert backend.client.dbsize() == 0


def test_there_must_be_something_to_resume(redis_url: str, backend: RedisBackend) -> None:
    """Resuming without an interrupted reshard is refused."""
    open_store(redis_url).close()
    with pytest.raises(ReshardRefused, match="nothing to resume"):
        reshard(backend, None, resume=True)


def test_a_memory_store_says_that_it_cannot(tmp_path: Any) -> None:
    """A memory store refuses a reshard, because it ends with its process."""
    with pytest.raises(StoreError, match="memory store"):
        reshard(MemoryBackend(2), 3)
