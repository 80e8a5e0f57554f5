"""When timers run: in order, never early, whatever the delay."""

from __future__ import annotations

import gc
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.timers import TimerTask
from wheel_sched.wheel import EntryState


def test_a_timer_runs_at_its_deadline_and_not_before(virtual: Any) -> None:
    """A timer of 10 ms has not run after 9 ms, and has run after 10 ms."""
    timer, fired = virtual.timer(), []
    handle = timer.schedule(10, fired.append, "now")
    assert (handle.state, handle.remaining_ms(), len(timer)) == (EntryState.PENDING, 10, 1)
    virtual.pass_ms(9)
    assert (fired, handle.state, handle.remaining_ms()) == ([], EntryState.PENDING, 1)
    virtual.pass_ms(1)
    assert (fired, handle.state, handle.remaining_ms(), len(timer)) == (["now"], EntryState.FIRED, 0, 0)


def test_a_delay_that_is_over_runs_at_once_but_not_from_within_the_call(facade: Any) -> None:
    """Timers with delays of 0 or less run at once, after the call of `schedule` and in its order. The case is from
    Kafka: testAlreadyExpiredTask."""
    timer, fired = facade.timer(), []
    for delay_ms in (-5, -4, -3, -2, -1, 0, -1e300, -0.5):
        timer.schedule(delay_ms, fired.append, delay_ms)
    facade.until(lambda: len(fired) == 8)
    assert fired == [-5, -4, -3, -2, -1, 0, -1e300, -0.5]


def test_every_timer_of_a_crowd_runs_once(facade: Any) -> None:
    """On a small wheel with many levels, 300 timers with delays of 0 to 199 ms each run once. The case is from
    Kafka: testTaskExpiration."""
    timer, fired = facade.timer(1, 4), []
    delays = [*range(0, 200), *range(50, 100), *range(150, 200)]
    random.Random(1).shuffle(delays)
    for delay_ms in delays:
        timer.schedule(delay_ms, fired.append, delay_ms)
    facade.until(lambda: len(fired) == len(delays))
    assert Counter(fired) == Counter(delays)
    assert len(timer) == 0


def test_nothing_runs_before_its_deadline(facade: Any) -> None:
    """No timer is early by even a nanosecond, for whole and fractional milliseconds. The case is from libuv:
    early_check."""
    timer, early, fired = facade.timer(), [], []

    def run(due_ns: int) -> None:
        fired.append(due_ns)
        if facade.clock.monotonic_ns() < due_ns:
            early.append(due_ns - facade.clock.monotonic_ns())

    for number in range(100):
        delay_ms = number * 0.77 if number % 2 else number
        before_ns = facade.clock.monotonic_ns()
        timer.schedule(delay_ms, run, before_ns + math.ceil(delay_ms * 1_000_000))
    facade.until(lambda: len(fired) == 100)
    assert early == []


def test_timers_of_one_tick_run_in_the_order_they_were_scheduled(virtual: Any) -> None:
    """Timers of one tick run in the order of their scheduling, also keyed, moved and recurring ones. The case is
    from libuv: timer_order."""
    timer, fired = virtual.timer(1, 4), []
    timer.schedule(100, fired.append, 0)
    virtual.pass_ms(60)
    timer.schedule(40, fired.append, 1, key="k")
    timer.every(40, fired.append, 2)
    moved = timer.schedule(7, fired.append, 3)
    moved.reschedule(40)
    virtual.pass_ms(39)
    timer.schedule(1, fired.append, 4)
    timer.schedule(0.5, fired.append, 5)
    virtual.pass_ms(1)
    assert fired == [0, 1, 2, 3, 4, 5]


def test_deadlines_round_up_to_a_tick(virtual: Any) -> None:
    """With a tick of 10 ms, a delay of 11 ms lasts 20 ms."""
    timer, fired = virtual.timer(10, 16), []
    timer.schedule(11, fired.append, 11)
    timer.schedule(20, fired.append, 20)
    virtual.pass_ms(19)
    assert fired == []
    virtual.pass_ms(1)
    assert fired == [11, 20]


def test_a_timer_runs_though_nobody_keeps_its_handle(facade: Any) -> None:
    """A timer runs even if its handle is dropped. In Tokio, dropping the handle cancels it."""
    timer, fired = facade.timer(), []
    for number in range(20):
        timer.schedule(number, fired.append, number)
    gc.collect()
    facade.until(lambda: len(fired) == 20)


@pytest.mark.parametrize("delay_ms", [2**63 - 1, 2**63, 10**30, 1.7e308, 10**400])
def test_a_huge_delay_neither_runs_at_once_nor_disturbs_others(facade: Any, delay_ms: float) -> None:
    """A timer whose deadline is beyond the range of every clock waits. The cases are from Netty (testOverflow) and
    libuv (huge_timeout)."""
    timer, fired = facade.timer(), []
    handle = timer.schedule(delay_ms, fired.append, "huge")
    timer.schedule(5, fired.append, "soon")
    facade.until(lambda: fired)
    assert (fired, len(timer), handle.state) == (["soon"], 1, EntryState.PENDING)
    assert handle.remaining_ms() > 2**62
    assert handle.cancel() is EntryState.CANCELLED


def test_a_timer_beyond_the_reach_of_asyncio_runs_on_the_millisecond(virtual: Any) -> None:
    """A timer that is due after 2**24 s runs in its millisecond, although a float of seconds cannot represent it."""
    timer, ran_at = virtual.timer(), []
    deadline_ms = virtual.now_ms() + (2**24 + 1000) * 1000 + 7
    timer.schedule(deadline_ms - virtual.now_ms(), lambda: ran_at.append(virtual.now_ms()))
    virtual.until(lambda: ran_at)
    assert ran_at == [deadline_ms]


@pytest.mark.parametrize("delay_ms", [math.nan, math.inf, -math.inf, "5", None, True, 5j, Decimal(5), [5]])
def test_what_is_no_delay_is_refused(virtual: Any, delay_ms: Any) -> None:
    """Methods with a delay refuse NaN, infinity and other types. The error names the value, and nothing changes."""
    timer = virtual.timer()
    handle = timer.schedule(10, print)
    for call in (
        lambda: timer.schedule(delay_ms, print),
        lambda: timer.schedule_if_absent("k", delay_ms, print),
        lambda: timer.add(TimerTask(delay_ms, print)),
        lambda: handle.touch(delay_ms),
        lambda: handle.reschedule(delay_ms),
    ):
        with pytest.raises(Rejected, match=r"expected delay_ms .* got: .*nothing was changed"):
            call()
    assert (len(timer), handle.remaining_ms()) == (1, 10)


def test_an_integer_of_another_library_is_a_delay(virtual: Any) -> None:
    """A delay may be any object with `__index__`, such as NumPy's integers."""

    class Whole:
        def __index__(self) -> int:
            return 3

    handle = virtual.timer().schedule(Whole(), print)
    assert handle.remaining_ms() == 3


@pytest.mark.parametrize("slack_ms", [-1, 0.5, "1", True])
def test_what_is_no_slack_is_refused(virtual: Any, slack_ms: Any) -> None:
    """A wrong slack raises an error and is not ignored."""
    timer = virtual.timer()
    with pytest.raises(Rejected, match="slack_ms"):
        timer.schedule(10, print, slack_ms=slack_ms)
    assert len(timer) == 0


def test_what_cannot_be_called_is_refused(virtual: Any) -> None:
    """If the callback cannot be called, `schedule` raises the error, not the expiry."""
    timer = virtual.timer()
    with pytest.raises(Rejected, match="expected callback to be callable, got: 7; nothing was scheduled"):
        timer.schedule(10, 7)
    assert len(timer) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tick_ms": 0}, "tick_ms"),
        ({"wheel_size": 3}, "wheel_size"),
        ({"max_pending": 0}, "max_pending"),
        ({"on_error": 5}, "on_error"),
    ],
)
def test_a_wrong_argument_makes_no_timer(virtual: Any, options: dict[str, Any], word: str) -> None:
    """A wrong argument is refused with an error that names it."""
    with pytest.raises(ConfigError, match=word):
        virtual.timer(**options)


def test_a_timer_shows_its_state(virtual: Any) -> None:
    """The repr of a timer shows the state, and so does the repr of each handle."""
    timer = virtual.timer()
    handle = timer.schedule(10, print, key="beat")
    assert repr(timer) == f"<{type(timer).__name__} pending=1 next=+10ms fired=0 tick=1ms>"
    assert repr(handle) == "<TimerHandle pending deadline_ms=10 key='beat' callback=print>"
    timer.close()
    assert repr(timer) == f"<{type(timer).__name__} closed fired=0 tick=1ms>"
    assert timer


def test_context_variables_are_those_of_the_caller(facade: Any) -> None:
    """A callback sees the context variables of the call that scheduled it. Its own changes to them are not seen
    elsewhere."""
    from contextvars import ContextVar

    name: ContextVar[str] = ContextVar("name", default="nobody")
    timer, seen = facade.timer(), []

    def run() -> None:
        seen.append(name.get())
        name.set("changed")

    token = name.set("caller")
    timer.schedule(1, run)
    recurring = timer.every(1, run)
    name.reset(token)
    facade.until(lambda: len(seen) >= 3)
    recurring.cancel()
    assert set(seen) == {"caller"}
    assert name.get() == "nobody"


def test_statistics_count(virtual: Any) -> None:
    """The statistics count timers that wait, runs that have begun, and runs that have raised."""
    timer = virtual.timer()
    timer.schedule(1, lambda: 1 / 0)
    timer.schedule(1, lambda: None)
    timer.schedule(99, lambda: None)
    virtual.pass_ms(1)
    found = timer.statistics
    assert (found.pending, found.fired, found.failed) == (1, 2, 1)
    assert [type(error) for error in virtual.errors] == [ZeroDivisionError]


def test_late_timers_are_counted(virtual: Any) -> None:
    """A timer that is taken 100 ms after its time counts as late. Slack is not lateness."""
    timer = virtual.timer()
    assert (timer.statistics.late, timer.statistics.late_max_ms) == (0, 0)
    timer.schedule(5, virtual.clock.advance, 350)  # while its callback runs, the timer does not look at the others
    timer.schedule(100, lambda: None)
    timer.schedule(300, lambda: None)
    timer.schedule(10, lambda: None, slack_ms=1_000)
    virtual.pass_ms(5)
    virtual.pass_ms(1_000)
    assert (timer.statistics.fired, timer.statistics.late) == (4, 1)
    assert timer.statistics.late_max_ms == 255


def test_levels_say_where_timers_wait(virtual: Any) -> None:
    """`levels` counts the waiting timers on each level of the wheel, those for a date too."""
    timer = virtual.timer(wheel_size=64)
    assert timer.tick_ms == 1
    assert sum(timer.levels()) == 0
    for delay_ms in (1, 2, 5_000, 5_000_000):
        timer.schedule(delay_ms, lambda: None)
    timer.schedule_at(virtual.wall(86_400_000), lambda: None)
    assert sum(timer.levels()) == len(timer) == 5
    assert len(timer.levels()) > 2


@pytest.mark.slow
def test_ten_thousand_timers_of_a_second_all_run_and_none_early(facade: Any) -> None:
    """All of 10,000 timers within a second run, and none is early by the clock that its callback reads. The case is
    from Netty: testExecutionOnTime."""
    chance, early, fired = random.Random(3), [], []
    timer = facade.timer()

    def run(due_ns: int) -> None:
        late_ns = facade.clock.monotonic_ns() - due_ns
        fired.append(late_ns)
        if late_ns < 0:
            early.append(late_ns)

    for _ in range(10_000):
        delay_ms = chance.uniform(0, 1000)
        timer.schedule(delay_ms, run, facade.clock.monotonic_ns() + math.ceil(delay_ms * 1_000_000))
    facade.until(lambda: len(fired) == 10_000)
    assert early == []
    assert len(timer) == 0


class Wavering:
    """A monotonic clock that the test can set back by `offset_ms`."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.offset_ms = 1000

    def monotonic_ns(self) -> int:
        return int(self._clock.monotonic_ns()) + self.offset_ms * 1_000_000

    def monotonic_ms(self) -> int:
        return int(self._clock.monotonic_ms()) + self.offset_ms

    def wall_ms(self) -> int:
        return int(self._clock.wall_ms())

    def wait(self, condition: Any, timeout_ms: float | None) -> bool:
        return bool(self._clock.wait(condition, timeout_ms))


def test_a_monotonic_clock_that_goes_back_makes_nothing_early_and_loses_nothing(virtual: Any) -> None:
    """If the monotonic clock is set back, no timer is early or lost: time counts as unchanged until the clock has
    caught up."""
    clock = Wavering(virtual.clock)
    timer, fired = virtual.timer(clock=clock), []
    timer.schedule(100, fired.append, 1)
    timer.schedule(300, fired.append, 2)
    virtual.pass_ms(50)
    clock.offset_ms -= 100
    virtual.pass_ms(60)
    assert fired == []
    virtual.pass_ms(100)
    assert fired == [1]
    virtual.pass_ms(200)
    assert fired == [1, 2]
