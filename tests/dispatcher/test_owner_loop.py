"""The owner loop of a dispatcher without a thread: a simulator calls it step by step on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from wheel_sched.dispatcher import DispatcherConfig, PublisherTraits
from wheel_sched.dispatcher.owner_loop import AT_ONCE, OwnerLoop
from wheel_sched.store.core.items import Marker

if TYPE_CHECKING:
    from conftest import World


class Simulator:
    """Runs one owner loop, and moves the clock to each time that `step` returns."""

    def __init__(self, world: World, **settings: int) -> None:
        world.receiver.traits = PublisherTraits(never_waits=True)
        self.world = world
        self.posts = 0
        self.marks: dict[int, bytes] = {}
        self.loop = OwnerLoop(
            world.store,
            world.receiver,
            clock=world.clock,
            config=DispatcherConfig(**settings),
            wake=self._wake,
            listen=self.marks.update,
        )

    def _wake(self) -> None:
        self.posts += 1

    def run(self) -> int | None:
        """Run all steps that are due now. Return the time of the next step in ms; None: no step is needed until a
        post."""
        while (next_us := self.loop.step()) == AT_ONCE and not self.loop.finished:
            pass
        return None if next_us is None else -(-next_us // 1000)

    def run_to(self, until_ms: int) -> None:
        """Move the clock from one step's time to the next until `until_ms`."""
        while (next_ms := self.run()) is not None and next_ms <= until_ms:
            self.world.clock.advance(next_ms - self.world.clock.monotonic_ms())
        self.world.clock.advance(until_ms - self.world.clock.monotonic_ms())


@pytest.fixture
def simulator(world: World) -> Iterator[Simulator]:
    return Simulator(world)


def test_steps_alone_release_every_item_at_its_time(simulator: Simulator) -> None:
    """An owner loop without threads publishes each item on time if it is stepped only at the times that `step`
    returns."""
    world = simulator.world
    world.put("first", in_ms=50)
    world.put("second", in_ms=5_000)
    start_ms = world.clock.monotonic_ms()
    assert simulator.run() == start_ms + 50
    simulator.run_to(start_ms + 10_000)
    assert [(item.id, item.at_ms - item.due_ms) for item in world.receiver.received] == [("first", 0), ("second", 0)]
    assert simulator.loop.stats.published == 2


def test_a_loop_without_items_asks_for_no_step(simulator: Simulator) -> None:
    """If the store is empty, `step` returns None: no step is needed until another thread posts to the loop."""
    assert simulator.run() is None
    assert simulator.loop.stats.claims == 0
    assert list(simulator.marks) == [0]


def test_a_marker_wakes_the_driver_and_brings_the_next_step_forward(simulator: Simulator) -> None:
    """If a listener reports an earlier item by `marked`, the loop calls `wake`, and the next step is at that item's
    time."""
    world = simulator.world
    world.put("later", in_ms=60_000)
    simulator.run()
    world.put("sooner", in_ms=10)
    simulator.loop.marked(0, Marker(b"1-0", world.now_ms + 10))
    assert (simulator.posts, simulator.loop.has_posts) == (1, True)
    assert simulator.run() == world.clock.monotonic_ms() + 10


def test_a_step_that_fails_raises_nothing_and_names_a_later_time(
    simulator: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    """If a step fails, `step` logs the error and returns a time 100 ms later. Until then the loop sends nothing."""

    def fails() -> None:
        raise SystemExit(1)

    simulator.loop.post(fails)
    assert simulator.run() == simulator.world.clock.monotonic_ms() + 100
    assert not simulator.loop.reads_store
    simulator.world.clock.advance(100)
    assert simulator.run() is None
    assert simulator.loop.reads_store
    assert "dispatcher.step_failed" in caplog.text


def test_a_drained_loop_is_finished(simulator: Simulator) -> None:
    """After `drain` the loop claims nothing more, and it is finished when no batch is in flight."""
    world = simulator.world
    simulator.run()
    world.put("never claimed")
    simulator.loop.drain(world.clock.monotonic_ns())
    simulator.run()
    assert simulator.loop.finished
    assert world.state("never claimed") == "due"
