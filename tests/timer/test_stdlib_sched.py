"""The stand-in for `sched.scheduler`: each test runs on the standard library's as well, so both do the same."""

from __future__ import annotations

import math
import random
import sched
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from wheel_sched import stdlib_sched
from wheel_sched.errors import ConfigError, Rejected

Make = Callable[..., Any]


class Time:
    """Time that passes when somebody sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture(params=[sched.scheduler, stdlib_sched.scheduler], ids=["standard library", "wheel"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a scheduler of either kind."""
    made: Make = request.param
    return made


@pytest.mark.parametrize("start", [0.0, 1_790_000_000.25, -5.0])
def test_events_run_by_time_then_priority_then_in_the_order_entered(make: Make, start: float) -> None:
    """However close together; the clock shows exactly their time."""
    time, ran = Time(start), []
    scheduler = make(time.read, time.sleep)
    for number, (delay, priority) in enumerate(
        [(5, 1), (0.0005, 2), (0.0002, 1), (5, 0), (5, 1), (0, 9), (100_000, 1)]
    ):
        scheduler.enter(delay, priority, lambda number=number: ran.append((number, time.now)))
    assert [event.sequence for event in scheduler.queue] == [5, 2, 1, 3, 0, 4, 6]
    assert scheduler.run() is None
    assert [number for number, _ in ran] == [5, 2, 1, 3, 0, 4, 6]
    assert ran[-1][1] == pytest.approx(start + 100_000, abs=1e-6)
    assert scheduler.empty()


def test_random_histories_run_alike() -> None:
    """Enter, cancel, run for a while, from within actions too: the same calls at the same times on both."""

    def history(make: Make) -> list[tuple[int, float]]:
        chance, time, ran = random.Random(7), Time(), []
        scheduler = make(time.read, time.sleep)
        events: list[Any] = []

        def action(number: int) -> None:
            ran.append((number, time.now))
            if number % 3 == 0:
                events.append(
                    scheduler.enter(chance.choice([0, 0.0001, 0.5, 20]), chance.randrange(3), action, (number + 1,))
                )

        for number in range(300):
            events.append(
                scheduler.enterabs(
                    chance.choice([1, 1.0003, 2, 50, chance.random() * 99]), number % 4, action, (number,)
                )
            )
            if number % 4 == 0:
                event = chance.choice(events)
                try:
                    scheduler.cancel(event)
                except ValueError:
                    ran.append((-1, event.time))
            if number % 10 == 0:
                time.now += chance.random()
                ran.append((-2, scheduler.run(blocking=False)))
        scheduler.run()
        return ran

    assert history(sched.scheduler) == history(stdlib_sched.scheduler)


def test_a_cancelled_event_does_not_run_and_cannot_be_cancelled_again(make: Make) -> None:
    """The standard library's ValueError."""
    time, ran = Time(), []
    scheduler = make(time.read, time.sleep)
    gone, kept = scheduler.enter(5, 1, ran.append, (1,)), scheduler.enter(6, 1, ran.append, (2,))
    scheduler.cancel(gone)
    with pytest.raises(ValueError, match="not in"):
        scheduler.cancel(gone)
    scheduler.run()
    assert ran == [2]
    with pytest.raises(ValueError, match="not in"):
        scheduler.cancel(kept)


def test_an_event_of_another_scheduler_is_not_in_the_queue(make: Make) -> None:
    """Its number may be the same; it is another event."""
    time = Time()
    one, other = make(time.read, time.sleep), make(time.read, time.sleep)
    foreign = one.enter(5, 1, print, ("foreign",))
    other.enter(6, 1, print)
    with pytest.raises(ValueError, match="not in"):
        other.cancel(foreign)
    assert len(other.queue) == 1


def test_run_without_blocking_runs_what_is_due_and_tells_the_time_to_the_next(make: Make) -> None:
    """To the fraction."""
    time, ran = Time(), []
    scheduler = make(time.read, time.sleep)
    for delay in (1, 2, 9.75):
        scheduler.enter(delay, 1, ran.append, (delay,))
    time.now = 2.5
    assert scheduler.run(blocking=False) == 7.25
    assert ran == [1, 2]
    scheduler.enter(0.5, 1, ran.append, ("sooner",))
    assert scheduler.run(blocking=False) == 0.5
    time.now = 10
    assert scheduler.run(blocking=False) is None
    assert ran == [1, 2, "sooner", 9.75]


def test_an_action_that_raises_leaves_the_others_in_the_queue(make: Make) -> None:
    """`run` may be called again; the event that failed is gone."""
    time, ran = Time(), []
    scheduler = make(time.read, time.sleep)
    scheduler.enter(1, 1, lambda: 1 / 0)
    scheduler.enter(1, 2, ran.append, kwargs={}, argument=(2,))
    with pytest.raises(ZeroDivisionError):
        scheduler.run()
    scheduler.run()
    assert ran == [2]


def test_other_threads_may_enter_and_cancel_while_it_runs(make: Make) -> None:
    """As the standard library has it since 3.3."""
    time, ran = Time(), []
    scheduler = make(time.read, lambda seconds: (time.sleep(seconds), entered.wait(0)))  # `Time`'s own, not the clock's
    entered = threading.Event()

    def enter() -> None:
        for number in range(200):
            event = scheduler.enter(number % 7, 1, ran.append, (number,))
            if number % 2:
                with suppress(ValueError):  # it has run meanwhile
                    scheduler.cancel(event)
        entered.set()

    other = threading.Thread(target=enter)
    other.start()
    while not entered.is_set() or not scheduler.empty():
        scheduler.run()
    other.join()
    assert sorted(number for number in ran if number % 2 == 0) == list(range(0, 200, 2))


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, "x", None])
def test_what_is_no_time_is_refused(time: Any) -> None:
    """Where the standard library would sort it somewhere."""
    scheduler = stdlib_sched.scheduler()
    with pytest.raises(Rejected, match=r"expected a finite number as time, got: .*nothing was scheduled"):
        scheduler.enterabs(time, 1, print)
    assert scheduler.empty()


@pytest.mark.parametrize("resolution", [0, -1, math.nan, math.inf, "x"])
def test_what_is_no_resolution_is_refused(resolution: Any) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match="resolution"):
        stdlib_sched.scheduler(resolution=resolution)


def test_the_resolution_changes_no_order() -> None:
    """Slots of an hour or of a nanosecond."""
    orders = []
    for resolution in (3600.0, 1.0, 1e-9):
        time, ran = Time(), []
        scheduler = stdlib_sched.scheduler(time.read, time.sleep, resolution=resolution)
        for number in range(50):
            scheduler.enter(number * 7 % 11 + number / 1000, number % 3, ran.append, (number,))
        scheduler.run()
        orders.append(ran)
    assert orders[0] == orders[1] == orders[2]
