"""An idle dispatcher sends no commands, does not wake for paused topics, and sweeps a bounded number of times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Semaphore
from typing import TYPE_CHECKING

import pytest
import redis

from tests.servers.valkey import temporary_server
from wheel_sched.dispatcher import Batch, Dispatcher, PublisherTraits
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Dead, Done, Next

if TYPE_CHECKING:
    from conftest import FailingCalls, World

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
PAUSED = 200_000
ROUNDS = 15

Watch = Callable[["DelayStore"], "FailingCalls"]


class Quick:
    """A publisher that answers `Done` for every item before `publish` returns."""

    traits = PublisherTraits()

    def publish(self, batch: Batch) -> None:
        batch.answers = [Done(item.id) for item in batch.items]

    def refuse(self, item: Claimed, reason: str) -> Done:
        raise NotImplementedError


def test_an_empty_store_gets_no_calls(world: World, watch: Watch) -> None:
    """Over an empty store a dispatcher sends no call in thirty days, because it sweeps only while items wait."""
    calls = watch(world.store)
    world.dispatcher()
    asked = len(calls.calls)
    for _ in range(30):
        world.advance(DAY_MS)
    assert len(calls.calls) == asked


def test_an_item_in_the_far_future_costs_a_sweep_a_minute(world: World, watch: Watch) -> None:
    """If the only item is due in a day, the dispatcher sends one sweep a minute and no other call."""
    calls = watch(world.store)
    world.put("far", in_ms=DAY_MS)
    dispatcher = world.dispatcher(sweep_ms=MINUTE_MS)
    asked = len(calls.calls)
    for _ in range(600):
        world.advance(SECOND_MS)
    assert len(calls.calls) - asked == calls.count("sweep") == dispatcher.stats.sweeps == 10


def test_a_busy_shard_is_swept_too(world: World) -> None:
    """A shard with an item due every second is also swept, about once in each sweep interval of 10 s."""
    world.receiver.answer = lambda item: Next(item.id, item.due_ms + SECOND_MS)
    world.put("tick", in_ms=SECOND_MS)
    dispatcher = world.dispatcher(sweep_ms=10 * SECOND_MS)
    for n in range(1, 61):
        world.advance(SECOND_MS)
        world.received(n)
    assert 5 <= dispatcher.stats.sweeps <= 7


def test_sweeps_trim_dead_letters_by_age(world: World) -> None:
    """A sweep removes dead letters that are older than the setting, and keeps younger ones."""
    world.receiver.answer = lambda item: Dead(item.id, "no use")
    world.put("far", in_ms=30 * DAY_MS)
    world.dispatcher(dead_age_ms=2 * HOUR_MS, sweep_ms=MINUTE_MS)
    world.put("old")
    world.received(1)
    world.advance(HOUR_MS)
    world.put("young")
    world.received(2)
    for _ in range(62):
        world.advance(MINUTE_MS)
    assert [world.state(i) for i in ("old", "young", "far")] == [None, "dead", "due"]
    assert world.store.counts().happened("trimmed") == 1


def test_dead_letters_above_the_cap_are_trimmed_oldest_first(world: World) -> None:
    """With `dead_cap=3`, ten dead letters are trimmed to the last three. So a topic whose items always fail does
    not fill the memory."""
    world.receiver.answer = lambda item: Dead(item.id, "no use")
    dispatcher = world.dispatcher(dead_cap=3)
    for n in range(10):
        world.put(f"m{n}")
        world.received(n + 1)
        world.advance(1)
    assert [world.state(f"m{n}") for n in range(10)] == [None] * 7 + ["dead"] * 3
    assert dispatcher.stats.dead == 10


def test_sweeps_find_leases_of_other_dispatchers(world: World) -> None:
    """Another dispatcher died with an item under lease. The first sweep after the lease's end finds and publishes
    the item."""
    world.deafen()
    world.put("later", in_ms=DAY_MS)
    dispatcher = world.dispatcher(sweep_ms=10 * SECOND_MS)
    world.put("m")
    world.handle().claim(1, lease_ms=3 * SECOND_MS)
    world.advance(10 * SECOND_MS - 1)
    assert world.receiver.received == []
    world.advance(1)
    assert [item.id for item in world.received(1)] == ["m"]
    assert dispatcher.stats.recovered == 1


def test_every_shard_is_woken_for_itself(wide: World) -> None:
    """100 messages over eight shards become due, one each millisecond. The dispatcher claims only from the shard
    whose message is due."""
    wide.put(*(f"m{n}" for n in range(64)), in_ms=HOUR_MS)
    dispatcher = wide.dispatcher(sweep_ms=2 * HOUR_MS)
    for n in range(100):
        wide.put(f"s{n}", in_ms=n + 1)
    wide.until(lambda: dispatcher.stats.marks >= 8)
    claims = dispatcher.stats.claims
    for n in range(100):
        wide.advance(1)
        wide.received(n + 1)
    assert {item.at_ms - item.due_ms for item in wide.receiver.received} == {0}
    assert dispatcher.stats.claims - claims == 100
    assert dispatcher.stats.empty_claims == 0
    wide.advance(HOUR_MS - 101)
    wide.received(100)
    wide.advance(1)
    wide.received(164)


def test_items_of_the_last_claim_are_not_claimed_again(world: World) -> None:
    """The dispatcher sends a settlement together with the next claim, so the settlement's reply still shows the
    claimed item as due. The dispatcher makes no empty claim because of this."""
    go = Semaphore(0)
    world.receiver.before = lambda batch: go.acquire(timeout=30) and None
    dispatcher = world.dispatcher(workers=1)
    for n in range(20):
        world.put(f"m{n}", in_ms=n + 1)
    for n in range(1, 21):
        world.advance(1)  # the next item is due while the only worker publishes the item before it
        if n > 1:
            go.release()
        world.until(lambda: len(world.receiver.batches) == n, "the next one")  # noqa: B023  # done at once
    go.release()
    world.received(20)
    assert (dispatcher.stats.claims, dispatcher.stats.empty_claims) == (20, 0)


def test_a_pause_wakes_no_dispatcher_and_a_resume_does(world: World) -> None:
    """Items of a paused topic that become due wake no dispatcher. After a resume they are published."""
    for n in range(50):
        world.put(f"p{n}", in_ms=SECOND_MS + n, topic="paused")
    world.put("other", in_ms=2 * SECOND_MS, topic="other")
    dispatcher = world.dispatcher()
    world.handle().pause("paused")
    world.put("late", in_ms=SECOND_MS, topic="paused")
    wake_ups = dispatcher.stats.wake_ups
    for _ in range(30):
        world.advance(100)
    world.received(1)
    assert world.receiver.ids == ["other"]
    assert dispatcher.stats.wake_ups - wake_ups <= 2  # one wake-up was planned before the pause
    world.handle().resume("paused")
    world.received(52)


@pytest.fixture
def two_stores(redis_url: str) -> Iterator[tuple[DelayStore, DelayStore]]:
    """A store with 200,000 due messages of a paused topic, and an empty store."""
    with open_store(redis_url, namespace="full") as full, open_store(redis_url, namespace="empty") as empty:
        for at in range(0, PAUSED, 20_000):
            full.schedule([Item(f"p{n}", 1_000 + n, b"x" * 50, "paused") for n in range(at, at + 20_000)])
        full.pause("paused")
        assert full.counts().now == {("held", "paused"): PAUSED}
        yield full, empty


@pytest.mark.slow
def test_a_paused_topic_costs_the_others_nothing(two_stores: tuple[DelayStore, DelayStore]) -> None:
    """If a paused topic holds 200,000 messages, a claim takes at most twice its time in an empty store, and no claim
    is empty.

    The test compares the quickest of the interleaved rounds, so a busy machine does not distort the result.
    """
    full, empty = two_stores

    def claim_s(store: DelayStore, round_: int) -> float:
        store.schedule([Item(f"m{round_}-{n}", 0, b"x" * 50, "other") for n in range(100)])
        began_s = time.perf_counter()
        claim = store.claim(100)
        took_s = time.perf_counter() - began_s
        assert len(claim.items) == 100
        store.settle(claim, [Done(item.id) for item in claim.items])
        return took_s

    rounds = [(claim_s(full, n), claim_s(empty, n)) for n in range(ROUNDS)]
    ratio = min(one for one, _ in rounds) / min(other for _, other in rounds)
    assert ratio <= 2, f"{ratio:.2f} times an empty store's time"

    with Dispatcher(full, Quick()) as dispatcher:
        now_ms = full.counts().now_us // 1000
        full.schedule([Item(f"d{n}", now_ms + 100 + 20 * n, b"", "other") for n in range(20)])
        until_s = time.monotonic() + 40
        while dispatcher.stats.published < 20 and time.monotonic() < until_s:
            time.sleep(0.005)  # until all due items are out
        assert (dispatcher.stats.published, dispatcher.stats.empty_claims) == (20, 0)
        assert dispatcher.stats.wake_ups <= 20
    assert full.counts().now == {("held", "paused"): PAUSED}


def commands(client: redis.Redis) -> dict[str, int]:
    """How often the server has executed each command, without the command that reads these numbers."""
    stats = client.info("commandstats")
    return {name: entry["calls"] for name, entry in stats.items() if name != "cmdstat_info"}


@pytest.mark.real
@pytest.mark.slow
def test_idle_dispatchers_send_nothing_for_ten_seconds() -> None:
    """The server's own command counters do not change for 10 s while two dispatchers are idle.

    One runs over an empty store, the other over 1,000 messages that are due in an hour. Afterwards both still publish.
    """
    with ExitStack() as stack:
        server = stack.enter_context(temporary_server())
        client = stack.enter_context(redis.Redis.from_url(server.url))
        empty = stack.enter_context(open_store(server.url, namespace="empty"))
        filled = stack.enter_context(open_store(server.url, namespace="filled"))
        now_ms = filled.counts().now_us // 1000
        filled.schedule([Item(f"m{n}", now_ms + HOUR_MS + n, b"x") for n in range(1_000)])
        dispatchers = [stack.enter_context(Dispatcher(store, Quick())) for store in (empty, filled)]
        until_s = time.monotonic() + 40
        while client.info("clients")["blocked_clients"] < 2:
            assert time.monotonic() < until_s, "the listeners never came to rest"
            time.sleep(0.01)  # until both listeners block on their markers

        before = commands(client)
        time.sleep(10)  # the ten seconds of the test's name
        assert commands(client) == before

        for store, dispatcher in zip((empty, filled), dispatchers, strict=True):
            store.schedule([Item("now", 0, b"")])
            while dispatcher.stats.published == 0:
                assert time.monotonic() < until_s + 20, "an idle dispatcher did not wake up"
                time.sleep(0.001)  # until the marker has been heard
