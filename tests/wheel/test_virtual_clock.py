"""The virtual clock for tests, with threads that really wait on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.testing import VirtualClock, virtual_clock
from wheel_sched.wheel import TimingWheel

Spawn = Callable[[Callable[[], object]], threading.Thread]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Return a function that starts a thread. After the test, each thread must have ended."""
    threads: list[threading.Thread] = []

    def start(target: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def waiter(clock: VirtualClock, timeout_ms: float | None, answers: list[Any]) -> Callable[[], None]:
    def run() -> None:
        condition = threading.Condition()
        with condition:
            answers.append((clock.wait(condition, timeout_ms), clock.monotonic_ms()))

    return run


def test_time_stands_still_until_it_is_moved() -> None:
    """Monotonic time starts at `start_ms`, in ms and ns. Wall time starts in 2026 by default."""
    clock = VirtualClock(start_ms=1000)
    assert (clock.monotonic_ms(), clock.monotonic_ns()) == (1000, 1_000_000_000)
    assert time.gmtime((clock.wall_ms() - 1000) / 1000)[:3] == (2026, 1, 1)
    clock.advance(250)
    assert clock.monotonic_ms() == 1250
    assert VirtualClock(5, wall_offset_ms=100).wall_ms() == 105


def test_parts_of_a_millisecond_add_up() -> None:
    """Readings in ms are rounded down, without losing the remainder."""
    clock = VirtualClock()
    for _ in range(3):
        clock.advance(0.5)
    assert (clock.monotonic_ms(), clock.monotonic_ns()) == (1, 1_500_000)


def test_a_jump_of_the_wall_clock_leaves_monotonic_time_alone() -> None:
    """The wall clock is set a day ahead and then two days back. Monotonic time does not change."""
    clock = VirtualClock(wall_offset_ms=0)
    clock.advance(10)
    clock.jump_wall(86_400_000)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (86_400_010, 10)
    clock.jump_wall(-2 * 86_400_000)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (-86_399_990, 10)


def test_advance_wakes_whose_time_came_and_nobody_else(spawn: Spawn) -> None:
    """Of three threads that wait 50, 100 and 100 ms, `advance` by 50 ms wakes only the first."""
    clock = VirtualClock()
    early: list[Any] = []
    late: list[Any] = []
    thread = spawn(waiter(clock, 50, early))
    spawn(waiter(clock, 100, late))
    spawn(waiter(clock, 100, late))
    clock.wait_for_waiters(3)
    clock.advance(49)
    assert (clock.waiting, early) == (3, [])
    clock.advance(1)
    thread.join(10)
    assert (early, late, clock.waiting) == ([(False, 50)], [], 2)
    clock.advance(1000)


def test_a_notification_ends_a_wait_without_moving_time(spawn: Spawn) -> None:
    """If a waiting thread is notified, `wait` returns True, with or without a timeout, and time does not move."""
    clock, condition = VirtualClock(), threading.Condition()
    answers: list[bool] = []

    def run(timeout_ms: float | None) -> None:
        with condition:
            answers.append(clock.wait(condition, timeout_ms))

    for timeout_ms in (None, 1000.0):
        spawn(lambda timeout_ms=timeout_ms: run(timeout_ms))  # type: ignore[misc]  # binds the loop's value
    clock.wait_for_waiters(2)
    with condition:
        condition.notify_all()
    for _ in range(1000):
        if len(answers) == 2:
            break
        time.sleep(0.005)  # two threads have to take the condition again, one after the other
    assert (answers, clock.monotonic_ms()) == ([True, True], 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, -0.5])
def test_no_time_to_wait_is_no_wait(timeout_ms: float) -> None:
    """A wait with a timeout of 0 or less returns False at once."""
    clock, condition = VirtualClock(), threading.Condition()
    with condition:
        assert clock.wait(condition, timeout_ms) is False
    assert clock.waiting == 0


def test_advance_may_hold_the_condition_it_wakes(spawn: Spawn) -> None:
    """A thread that holds a condition's lock may call `advance`, which notifies the condition."""
    clock, condition = VirtualClock(), threading.Condition()
    answers: list[bool] = []

    def run() -> None:
        with condition:
            answers.append(clock.wait(condition, 10))

    thread = spawn(run)
    clock.wait_for_waiters()
    with condition:
        clock.advance(10)
        assert answers == []
    thread.join(10)
    assert answers == [False]


def test_autojump_at_once_makes_sleeping_free() -> None:
    """With autojump at once, a thread sleeps a year in 365 steps. This takes almost no real time, and each step is
    exact."""
    clock, condition = VirtualClock(autojump_threshold=0), threading.Condition()
    start = time.monotonic()
    for day in range(1, 366):
        with condition:
            assert clock.wait(condition, 86_400_000) is False
        assert clock.monotonic_ms() == day * 86_400_000
    assert time.monotonic() - start < 5


class RealTime:
    """Replaces the module `time` in the clock. The test sets the real time that the autojump threshold counts."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> RealTime:
    """Replaces real time in the clock by one that the test moves, so that no slow thread affects a threshold."""
    real = RealTime()
    monkeypatch.setattr(virtual_clock, "time", real)
    return real


def test_autojump_wakes_sleepers_in_the_order_of_their_deadlines(spawn: Spawn, real_time: RealTime) -> None:
    """Each autojump moves time to the earliest deadline. A waiter without a deadline does not prevent jumps."""
    clock = VirtualClock(autojump_threshold=0.01)
    answers: list[Any] = []
    idle, idle_answers = threading.Condition(), []

    def wait_for_a_call() -> None:
        with idle:
            idle_answers.append(clock.wait(idle, None))

    spawn(wait_for_a_call)
    threads = {timeout_ms: spawn(waiter(clock, timeout_ms, answers)) for timeout_ms in (30_000, 10_000, 20_000)}
    clock.wait_for_waiters(4)
    for timeout_ms in sorted(threads):
        real_time.seconds += 1
        threads[timeout_ms].join(10)
    assert answers == [(False, 10_000), (False, 20_000), (False, 30_000)]
    with idle:
        idle.notify()


def test_autojump_waits_until_nobody_has_moved_for_the_threshold(spawn: Spawn, real_time: RealTime) -> None:
    """If a thread returns to the clock before the threshold has passed, the threshold begins again."""
    clock, condition = VirtualClock(autojump_threshold=0.01), threading.Condition()
    answers: list[Any] = []
    thread = spawn(waiter(clock, 1000, answers))
    clock.wait_for_waiters()
    with condition:
        for _ in range(5):
            real_time.seconds += 0.009  # a step of work that is not a wait on the clock
            time.sleep(0.02)  # meanwhile the waiter looks at the time, twice at most
            assert (answers, clock.monotonic_ms()) == ([], 0)
            assert clock.wait(condition, 0) is False
    real_time.seconds += 1
    thread.join(10)
    assert answers == [(False, 1000)]


def test_without_autojump_time_never_moves_by_itself(spawn: Spawn) -> None:
    """Without autojump, the default, only the test moves time."""
    clock = VirtualClock()
    answers: list[Any] = []
    spawn(waiter(clock, 1, answers))
    clock.wait_for_waiters()
    time.sleep(0.05)  # long enough for a wrong clock to use real time
    assert answers == []
    clock.advance(1)


def test_waiting_for_waiters_that_do_not_come_is_an_error() -> None:
    """If too few threads wait in time, `wait_for_waiters` raises an error with the expected and the actual number."""
    with pytest.raises(TimeoutError, match="expected 2 waiters"):
        VirtualClock().wait_for_waiters(2, timeout_seconds=0.01)


def test_a_thread_drives_a_wheel_through_a_day_of_virtual_time(spawn: Spawn) -> None:
    """With autojump, a thread that sleeps until `next_expiry` hands out 24 entries of a day, each on time."""
    clock, condition = VirtualClock(autojump_threshold=0.01), threading.Condition()
    wheel: TimingWheel[int] = TimingWheel(clock.monotonic_ms())
    lateness_ms: list[int] = []
    for deadline_ms in range(60_000, 86_400_001, 3_600_000):
        wheel.schedule(deadline_ms, deadline_ms)

    def drive() -> None:
        with condition:
            while (next_ms := wheel.next_expiry()) is not None:
                clock.wait(condition, next_ms - clock.monotonic_ms())
                now_ms = clock.monotonic_ms()
                lateness_ms.extend(now_ms - entry.deadline_ms for entry in wheel.advance(now_ms))

    spawn(drive).join(20)
    assert lateness_ms == [0] * 24


@pytest.mark.parametrize("ms", [-1, float("nan"), float("inf"), "5", None, True])
def test_time_moves_by_numbers_from_zero_only(ms: Any) -> None:
    """Time moves by a number that is not negative, so monotonic time never goes back."""
    clock = VirtualClock(10)
    with pytest.raises(Rejected, match="time has not moved"):
        clock.advance(ms)
    assert clock.monotonic_ms() == 10


def test_the_wall_clock_jumps_by_whole_milliseconds_only() -> None:
    """`jump_wall` refuses a step that is no int."""
    with pytest.raises(Rejected, match="the wall clock has not moved"):
        VirtualClock().jump_wall(1.5)  # type: ignore[arg-type]


def test_all_configuration_problems_are_told_at_once() -> None:
    """One error lists all problems, so the user can fix them in one run."""
    with pytest.raises(ConfigError) as caught:
        VirtualClock(-1, wall_offset_ms=0.5, autojump_threshold=-1)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


def test_the_repr_shows_state(spawn: Spawn) -> None:
    """The repr shows the time, the number of waiters and the time to the next deadline."""
    clock = VirtualClock(1500)
    assert repr(clock) == "<VirtualClock now=1500ms waiting=0 next=none>"
    spawn(waiter(clock, 250, []))
    clock.wait_for_waiters()
    assert repr(clock) == "<VirtualClock now=1500ms waiting=1 next=+250ms>"
    clock.advance(250)
