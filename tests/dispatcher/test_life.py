"""Dispatchers are started and stopped from any thread, in any order, any number of times. No thread remains."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from wheel_sched.clock import SystemClock
from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, PublisherTraits
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Done

if TYPE_CHECKING:
    from conftest import World

THREADS, ROUNDS = 10, 50
DAY_MS = 86_400_000

Threads = Callable[[], list[threading.Thread]]


class Publisher:
    """Counts published items by id."""

    traits = PublisherTraits()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, int] = {}
        self.pause_s = 0.0

    def publish(self, batch: Batch) -> None:
        time.sleep(self.pause_s)  # a broker that takes its time
        for place, item in enumerate(batch.items):
            with self.lock:
                self.counts[item.id] = self.counts.get(item.id, 0) + 1
            batch.answers[place] = Done(item.id)

    def refuse(self, item: Claimed, reason: str) -> Done:
        raise NotImplementedError


def gone(threads: Threads) -> bool:
    """Wait up to 30 s until `threads()` is empty. Return False if it is not."""
    until_s = time.monotonic() + 30
    while threads():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.001)  # the threads end without a signal
    return True


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work` in several threads at once. Raises the first error of any thread."""
    errors: list[BaseException] = []
    together = threading.Barrier(THREADS)

    def run(n: int) -> None:
        try:
            together.wait(20)
            work(n)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def test_ten_threads_start_and_stop_fifty_dispatchers_each(threads: Threads) -> None:
    """Ten threads start and stop dispatchers on one store while they add items to it.

    No item is doubled or lost, and no thread remains.
    """
    publisher = Publisher()
    with open_store("memory:") as store:

        def work(n: int) -> None:
            rng = random.Random(n)
            for round_ in range(ROUNDS):
                store.schedule([Item(f"{n}-{round_}-{i}", 0, b"") for i in range(3)])
                dispatcher = Dispatcher(store, publisher, config=DispatcherConfig(workers=rng.randrange(1, 3)))
                if rng.random() < 0.1:
                    dispatcher.stop()
                    dispatcher.start()
                    continue
                dispatcher.start()
                dispatcher.start()
                time.sleep(rng.choice([0, 0, 0.001, 0.003]))  # stop it at any moment of its life
                dispatcher.stop()
                dispatcher.stop()

        in_threads(work)
        assert gone(threads), threads()
        with Dispatcher(store, publisher):
            while store.counts().sizes["body"]:
                time.sleep(0.001)  # until this last dispatcher has emptied the store
        assert gone(threads), threads()
    assert len(publisher.counts) == THREADS * ROUNDS * 3
    assert set(publisher.counts.values()) == {1}


class StoppingClock(SystemClock):
    """A clock that stops a dispatcher in the middle of a step, when the owner's thread reads it for the `nth` time."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.dispatcher: Dispatcher | None = None

    def monotonic_ns(self) -> int:
        if self.dispatcher is not None and threading.current_thread().name == "wheel-sched-dispatcher":
            self.left -= 1
            if self.left == 0:
                stopping = threading.Thread(target=self.dispatcher.stop, args=(1,))
                stopping.start()
                stopping.join(0.01)  # time for the thread to post its stop; then it waits for the end of the dispatcher
        return time.monotonic_ns()


@pytest.mark.parametrize("nth", range(1, 31))
def test_a_dispatcher_that_is_stopped_in_the_middle_of_a_turn_ends(threads: Threads, nth: int) -> None:
    """If `stop` is called in the middle of the owner thread's step, the dispatcher does not go to sleep, but ends."""
    clock = StoppingClock(nth)
    with open_store("memory:") as store:
        store.schedule([Item("due", 0, b""), Item("later", DAY_MS * 100_000, b"")])
        clock.dispatcher = Dispatcher(store, Publisher(), clock=clock)
        clock.dispatcher.start()
        while clock.left > 0 and store.counts().sizes["body"] != 1:
            time.sleep(0.001)  # until the clock has stopped the dispatcher, or the dispatcher is idle
        clock.dispatcher.stop(timeout_s=1)
        until_s = time.monotonic() + 2
        while threads() and time.monotonic() < until_s:
            time.sleep(0.001)  # the threads end without a signal
    assert threads() == []


def test_ten_threads_start_and_stop_the_same_dispatcher(threads: Threads) -> None:
    """Ten threads call `start` or `stop` of one dispatcher. It starts at most once and stops once, and later calls
    do nothing."""
    with open_store("memory:") as store:
        for _ in range(ROUNDS):
            dispatcher = Dispatcher(store, Publisher())

            def work(n: int, dispatcher: Dispatcher = dispatcher) -> None:
                (dispatcher.start if n % 2 else dispatcher.stop)()

            in_threads(work)
            dispatcher.stop()
            assert "stopped" in repr(dispatcher)
            assert gone(threads), threads()


def test_a_stopped_dispatcher_does_not_start_again(threads: Threads) -> None:
    """A dispatcher that was stopped does not start, even if it had not been started before."""
    with open_store("memory:") as store:
        for start_first in (False, True):
            dispatcher = Dispatcher(store, Publisher())
            if start_first:
                dispatcher.start()
            dispatcher.stop()
            dispatcher.start()
            assert gone(threads)
            assert repr(dispatcher).startswith("<Dispatcher stopped shards=1 in_flight=0 published=0")


def test_stop_waits_for_the_batch_being_published(threads: Threads) -> None:
    """`stop` returns when the batch that is being published is settled, so nobody publishes the batch again."""
    publisher = Publisher()
    publisher.pause_s = 0.2
    with open_store("memory:") as store:
        store.schedule([Item("m", 0, b"")])
        dispatcher = Dispatcher(store, publisher)
        dispatcher.start()
        while store.counts().sizes["leased"] == 0:
            time.sleep(0.001)  # until the item is claimed
        dispatcher.stop()
        assert store.counts().happened("completed") == 1
        assert dispatcher.stats.published == 1
        assert gone(threads)


def test_stop_releases_unanswered_items(world: World) -> None:
    """If the broker hangs, `stop` releases the items after its timeout, and another dispatcher can claim them."""
    gate = threading.Event()

    def hang(batch: Batch) -> None:
        if len(world.receiver.batches) == 1:
            assert gate.wait(20)

    world.receiver.before = hang
    world.put("m0", "m1")
    dispatcher = world.dispatcher(backoff_ms=200)
    world.until(lambda: dispatcher.stats.in_flight == 2)
    stopping = threading.Thread(target=dispatcher.stop, kwargs={"timeout_s": 1.0})
    stopping.start()
    world.until(lambda: "stopping" in repr(dispatcher))
    world.put("later")
    world.clock.advance(1_000)
    stopping.join()
    assert (dispatcher.stats.in_doubt, dispatcher.stats.claims) == (2, 1)
    assert [world.state(i) for i in ("m0", "m1", "later")] == ["due"] * 3
    successor = world.dispatcher(store=world.handle())
    world.until(lambda: successor.stats.published == 1)
    world.clock.advance(200)
    world.until(lambda: successor.stats.published == 3)
    gate.set()


def test_a_publisher_may_stop_its_dispatcher(threads: Threads) -> None:
    """If a publisher calls `stop` of its dispatcher, `stop` does not wait for the worker thread that calls it."""
    with open_store("memory:") as store:
        stops: list[Callable[[], None]] = []

        class Last(Publisher):
            def publish(self, batch: Batch) -> None:
                stops[0]()
                super().publish(batch)

        publisher = Last()
        dispatcher = Dispatcher(store, publisher)
        stops.append(dispatcher.stop)
        store.schedule([Item("m", 0, b"")])
        dispatcher.start()
        assert gone(threads), threads()
        assert publisher.counts == {"m": 1}
        assert store.counts().sizes["body"] == 0


def test_a_real_servers_listener_ends_too(redis_url: str, threads: Threads) -> None:
    """`stop` ends the listener thread, even while the thread connects to the server or waits for a reply."""
    with open_store(redis_url) as store:
        for n in range(40):
            dispatcher = Dispatcher(store, Publisher())
            dispatcher.start()
            while n % 4 and not any("listener" in thread.name for thread in threads()):
                time.sleep(0.0005)  # until the listener has been started
            time.sleep(n % 4 * n / 10_000)  # `stop` comes 0 to 12 ms later
            began_s = time.monotonic()
            dispatcher.stop()
            assert time.monotonic() - began_s < 20  # without an interruption the read takes over a minute
            assert gone(threads), threads()


def test_a_day_away_does_not_matter(world: World) -> None:
    """If no dispatcher runs for a day, the next one releases all items that became due meanwhile."""
    world.put("night", in_ms=DAY_MS // 2)
    world.dispatcher().stop(timeout_s=0)
    world.clock.advance(DAY_MS)
    assert world.receiver.received == []
    world.dispatcher(store=world.handle())
    world.until(lambda: world.receiver.ids == ["night"])


@pytest.mark.parametrize("workers", [1, 4])
def test_all_workers_publish_at_once(workers: int) -> None:
    """All workers are in a call of the publisher at the same time, each with one batch."""
    at_once = threading.Barrier(workers)

    class Together(Publisher):
        def publish(self, batch: Batch) -> None:
            at_once.wait(20)
            super().publish(batch)

    publisher = Together()
    store: DelayStore
    with open_store("memory:") as store:
        store.schedule([Item(f"m{n}", 0, b"") for n in range(workers * 3)])
        with Dispatcher(store, publisher, config=DispatcherConfig(batch=1, workers=workers)):
            while store.counts().sizes["body"]:
                time.sleep(0.001)  # until all items are published and settled
    assert set(publisher.counts.values()) == {1}
