"""WheelTimer and kombu's Timer pass the same tests. A test says where they differ."""

from __future__ import annotations

import gc
import logging
import math
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Entry, Timer
from wheel_sched_celery.worker_timer import WheelEntry, WheelTimer


class FakeClock:
    """A clock in seconds that only the test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def due_now(timer: Any, clock: Callable[[], float] | None = None) -> list[Any]:
    """Run all due entries, as a hub without sockets does. Returns the waits that the iterator asked for."""
    turns = timer.__iter__(nowfun=clock) if clock is not None and type(timer) is Timer else iter(timer)
    waits: list[Any] = []
    while True:
        wait, entry = next(turns)
        if entry is None:
            waits.append(wait)
            assert len(waits) < 100_000, "it asks for no wait and has nothing to run"
            if wait is None or wait > 1e-5:
                return waits
        else:
            entry()


@pytest.fixture(params=[Timer, WheelTimer], ids=["kombu", "wheel"])
def timer(request: pytest.FixtureRequest) -> Any:
    return request.param(max_interval=10)


def test_entries_run_by_eta_and_then_by_priority(timer: Any) -> None:
    """The order is kombu's: eta first, a lower priority number first among equals."""
    ran: list[str] = []
    for name, eta, priority in [("c", 3.0, 0), ("b2", 2.0, 6), ("b1", 2.0, 0), ("a", 1.0, 9)]:
        timer.call_at(eta, ran.append, (name,), priority=priority)
    due_now(timer)
    assert ran == ["a", "b1", "b2", "c"]


def test_an_empty_timer_asks_for_no_wait(timer: Any) -> None:
    """The iterator yields (None, None): the hub may poll as long as it wants."""
    assert next(iter(timer)) == (None, None)
    assert len(timer) == 0
    assert not timer._queue


def test_a_wait_is_as_long_as_the_next_eta_is_away_and_at_most_max_interval(timer: Any) -> None:
    """For an eta that is further away, the hub asks again after max_interval."""
    timer.call_after(3600, print)
    assert next(iter(timer)) == (10.0, None)
    timer.call_after(2, print)
    wait, entry = next(iter(timer))
    assert entry is None
    assert wait == pytest.approx(2, abs=0.5)


def test_a_cancelled_entry_does_not_run(timer: Any) -> None:
    """An entry can be cancelled by its handle or by the timer, before or after it became due."""
    ran: list[int] = []
    by_handle = timer.call_at(1.0, ran.append, (1,))
    by_timer = timer.call_at(1.0, ran.append, (2,))
    timer.call_at(1.0, ran.append, (3,))
    by_handle.cancel()
    timer.cancel(by_timer)
    assert by_handle.canceled
    assert by_timer.cancelled
    due_now(timer)
    assert ran == [3]
    by_handle.cancel()  # too late, and no error


def test_an_entry_may_cancel_another_of_the_same_instant(timer: Any) -> None:
    """The cancelled entry does not run, even if the timer has already taken both entries out to run them."""
    ran: list[str] = []
    second: list[Any] = []
    timer.call_at(1.0, lambda: second.pop().cancel())
    second.append(timer.call_at(1.5, ran.append, ("second",)))
    timer.call_at(2.0, ran.append, ("third",))
    due_now(timer)
    assert ran == ["third"]


def test_a_flag_set_by_hand_counts_as_cancelled(timer: Any) -> None:
    """Some callers set `canceled` on the entry and do not call `cancel`."""
    entry = timer.call_at(1.0, pytest.fail)
    entry.canceled = True
    due_now(timer)


def test_clear_forgets_everything_and_keeps_the_queue_object(timer: Any) -> None:
    """The hub keeps its reference to `_queue` for ever, so `clear` keeps the object."""
    queue = timer._queue
    timer.call_at(1.0, pytest.fail)
    timer.call_after(100, pytest.fail)
    assert queue
    timer.clear()
    assert not queue
    assert timer._queue is queue
    assert len(timer) == 0
    due_now(timer)


def test_the_queue_shows_what_waits_in_order(timer: Any) -> None:
    """`inspect scheduled` reads eta, priority and entry.args from the queue."""
    timer.call_at(5e9, print, ("late",), priority=6)
    timer.call_at(4e9, print, ("soon",), priority=2)
    shown = [(each.eta, each.priority, each.entry.args[0]) for each in timer.schedule.queue]
    assert shown == [(4e9, 2, "soon"), (5e9, 6, "late")]
    assert len(timer) == 2


def test_datetimes_are_taken_as_moments(timer: Any) -> None:
    """A datetime may have a zone. Without a zone it is in UTC."""
    for eta in (datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)):
        timer.call_at(eta, print)
    assert [each.eta for each in timer.queue] == pytest.approx([monotonic() + 3600] * 2, abs=30)


def test_an_eta_that_cannot_be_read_goes_to_on_error(timer: Any) -> None:
    """For an eta that cannot be read, the timer makes no entry, and `on_error` gets the error."""
    errors: list[Exception] = []
    timer.on_error = errors.append

    class Broken(datetime):
        @property
        def tzinfo(self) -> Any:
            raise OverflowError("no such zone")

    timer.call_at(Broken(2030, 1, 1), print)
    assert [type(error) for error in errors] == [OverflowError]
    assert len(timer) == 0


def test_none_is_now(timer: Any) -> None:
    """`enter_at` without an eta makes an entry that is due now."""
    ran: list[int] = []
    timer.enter_at(timer.Entry(ran.append, (1,)))
    due_now(timer)
    assert ran == [1]


def test_odd_etas_are_due_at_once_or_never(timer: Any) -> None:
    """An eta in the past is due at once; infinity and the year 9999 are never due. None of them breaks the timer."""
    ran: list[str] = []
    for name, eta in [("negative", -1e18), ("minus inf", -math.inf), ("zero", 0), ("inf", math.inf), ("9999", 2.5e11)]:
        timer.call_at(eta, ran.append, (name,))
    due_now(timer)
    assert sorted(ran) == ["minus inf", "negative", "zero"]
    assert len(timer) == 2


def test_apply_entry_hands_errors_to_on_error_or_the_log(timer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A broken callback is reported, and the timer continues."""
    entry = timer.Entry(lambda: 1 / 0)
    timer.apply_entry(entry)
    assert "Error in timer" in caplog.text
    errors: list[Exception] = []
    timer.on_error = errors.append
    timer.apply_entry(entry)
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_call_repeatedly_runs_again_until_it_is_cancelled(timer: Any) -> None:
    """Each run puts the same entry back into the timer."""
    ran: list[int] = []
    entry = timer.call_repeatedly(0.001, ran.append, (1,))
    turns = iter(timer)
    while len(ran) < 3:
        _, found = next(turns)
        if found is not None:
            found()
    assert len(timer) == 1
    entry.cancel()
    due_now(timer)
    assert len(ran) == 3


def test_entries_of_kombu_itself_are_taken(timer: Any) -> None:
    """The timer takes kombu's own Entry, returns it, and can cancel it."""
    ran: list[int] = []
    entry = Entry(ran.append, (1,))
    assert timer.enter_after(0, entry) is entry
    cancelled = timer.enter_after(0, Entry(ran.append, (2,)))
    timer.cancel(cancelled)
    while not ran:
        due_now(timer)
    assert ran == [1]


def test_the_timer_is_a_context(timer: Any) -> None:
    """`with` stops the timer at the end of its block."""
    with timer as same:
        assert same is timer


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(-5, 9000), st.integers(0, 3)),
        st.tuples(st.just("pass"), st.integers(0, 6000), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_same_steps_run_the_same_entries_at_the_same_time(steps: list[tuple[str, int, int]]) -> None:
    """For any sequence of calls, kombu's heap and the wheel run the same (eta, priority) pairs in the same order.

    The etas are whole milliseconds and the floats next to them. `test_nothing_runs_before_its_eta` has other etas.
    """
    now_ms = 1_000_000
    clock = FakeClock(now_ms / 1000)
    timers: list[Any] = [Timer(), WheelTimer(clock=clock)]
    ran: list[list[Any]] = [[], []]
    entries: list[list[Any]] = [[], []]
    for kind, number, priority in steps:
        for timer, done, mine in zip(timers, ran, entries, strict=True):
            if kind == "enter":
                eta = (now_ms + number) / 1000
                mine.append(timer.call_at(eta, done.append, ((eta, priority),), priority=priority))
            elif kind == "cancel" and number < len(mine):
                timer.cancel(mine[number])
            elif kind == "clear":
                timer.clear()
        if kind == "pass":
            now_ms += number
            clock.now = now_ms / 1000
            for timer in timers:
                due_now(timer, clock)
            assert ran[0] == ran[1]
    alive = [sorted((each.eta, each.priority) for each in timer.queue if not each.entry.canceled) for timer in timers]
    assert alive[0] == alive[1]


@given(st.floats(0, 1e6), st.floats(0, 10))
def test_nothing_runs_before_its_eta(start: float, delay: float) -> None:
    """An eta may be a float between two milliseconds. Its entry runs at the next millisecond, never earlier."""
    clock = FakeClock(start)
    timer = WheelTimer(clock=clock)
    timer.call_at(start + delay, int)
    clock.now = max(start, math.nextafter(start + delay, 0))
    assert timer.next_due() is None or clock.now >= start + delay
    clock.now = start + delay + 0.0021
    assert timer.next_due() is not None or len(timer) == 0


def test_a_cancelled_entry_is_freed_at_once() -> None:
    """The entry and its arguments are freed by the cancel. kombu keeps them until the entry is due."""

    class Request:
        pass

    timer = WheelTimer()
    request = Request()
    gone = weakref.ref(request)
    entry = timer.call_after(3600, print, (request,))
    assert len(timer) == 1
    timer.cancel(entry)
    assert len(timer) == 0
    assert not timer._queue
    del request, entry
    gc.collect()
    assert gone() is None


def test_what_has_run_is_freed_at_once() -> None:
    """An entry and a request that refer to each other are freed after the run, without garbage collection."""

    class Request:
        entry: Any

    timer = WheelTimer()
    gone = []
    for _ in range(3):
        request = Request()
        gone.append(weakref.ref(request))
        request.entry = timer.call_at(0, id, (request,))
        request.entry = timer.call_after(0, id, (request,))
    del request
    gc.disable()
    try:
        due_now(timer)
        assert [ref() for ref in gone] == [None] * 3
    finally:
        gc.enable()


def test_all_that_is_due_comes_as_one_entry() -> None:
    """The hub calls ten entries a turn, so the timer gives it a thousand due entries as one entry."""
    timer = WheelTimer(slice_s=60)
    ran: list[int] = []
    for number in range(1500):
        timer.call_at(1.0, ran.append, (number,))
    turns = iter(timer)
    wait, batch = next(turns)
    assert wait is None
    batch()
    assert ran == list(range(1500))
    assert next(turns) == (None, None)


def test_a_single_due_entry_comes_as_itself() -> None:
    """The iterator yields the entry itself, not a batch."""
    timer = WheelTimer()
    entry = timer.call_at(1.0, print)
    assert next(iter(timer)) == (None, entry)
    assert isinstance(entry, WheelEntry)


def test_a_batch_ends_with_its_slice_and_goes_on_after_the_sockets() -> None:
    """The batch stops after `slice_s`, so that the hub can serve sockets. The hub comes back at once for the rest."""
    clock = FakeClock()
    timer = WheelTimer(clock=clock, slice_s=0.005)

    ran: list[int] = []

    def work() -> None:
        clock.now += 0.002
        ran.append(1)

    for _ in range(10):
        timer.call_at(1.0, work)
    turns = iter(timer)
    lengths = []
    while True:
        wait, entry = next(turns)
        if entry is not None:
            before = len(ran)
            entry()
            lengths.append(len(ran) - before)
        elif wait is None:
            break
        else:
            assert 0 < wait < 1e-3
    assert lengths == [3, 3, 3, 1]


def test_ten_single_entries_in_a_row_do_not_send_the_hub_to_sleep() -> None:
    """After ten calls the hub ignores the requested wait and would poll for a second, so the timer prevents this."""
    clock = FakeClock()
    timer = WheelTimer(clock=clock)
    hub = Hub(timer)
    ran: list[int] = []

    def chain(number: int) -> None:
        ran.append(number)
        if number < 25:
            timer.call_at(clock.now, chain, (number + 1,))

    timer.call_at(clock.now, chain, (0,))
    waits = [hub.fire_timers()]
    while len(ran) < 26:
        waits.append(hub.fire_timers())
    assert all(wait < 1e-3 for wait in waits[:-1])
    hub.close()


def test_an_error_in_a_batch_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """The hub logs the error as for a single entry, and the other entries of the batch run."""
    timer = WheelTimer()
    hub = Hub(timer)
    ran: list[int] = []
    for number in range(20):
        timer.call_at(1.0, (lambda: 1 / 0) if number % 5 == 0 else ran.append, () if number % 5 == 0 else (number,))
    with caplog.at_level(logging.ERROR):
        while timer._queue:
            hub.fire_timers()
    assert ran == [number for number in range(20) if number % 5]
    assert caplog.text.count("ZeroDivisionError") >= 4
    hub.close()


def test_an_error_the_hub_must_see_reaches_it_and_the_rest_waits() -> None:
    """A connection error reaches the hub's caller, which restarts the consumer. Other due entries run later."""
    timer = WheelTimer()
    hub = Hub(timer)
    ran: list[int] = []

    def broken() -> None:
        raise ConnectionResetError("broker gone")

    timer.call_at(1.0, broken)
    timer.call_at(2.0, ran.append, (1,))
    with pytest.raises(ConnectionResetError):
        hub.fire_timers(propagate=(ConnectionResetError,))
    assert len(timer) == 1
    hub.fire_timers(propagate=(ConnectionResetError,))
    assert ran == [1]
    hub.close()


def turns_of(hub: Hub, timer: Any) -> int:
    """The number of turns that the hub makes until nothing waits, counted by its polls."""
    turns = 0
    while timer._queue:
        hub.fire_timers()
        turns += 1
    return turns


def test_a_thousand_due_tasks_take_the_hub_a_few_turns_and_kombus_timer_a_hundred() -> None:
    """With kombu's timer each turn can end in a poll of up to a second, which slows the solo pool."""
    turns = {}
    for kind in (Timer, WheelTimer):
        timer = kind()
        hub = Hub(timer)
        for _ in range(1000):
            timer.call_at(1.0, int)
        turns[kind] = turns_of(hub, timer)
        hub.close()
    assert turns[Timer] == 100
    assert turns[WheelTimer] < 50


def test_adopt_takes_over_what_waits_elsewhere() -> None:
    """`adopt` takes over entries of a timer that is replaced."""
    old, timer = Timer(), WheelTimer()
    kept = old.call_at(7e9, print, ("kept",), priority=3)
    old.call_at(1.0, pytest.fail).cancel()
    timer.adopt(old)
    assert [(each.eta, each.priority, each.entry) for each in timer.queue] == [(7e9, 3, kept)]
    assert len(old) == 0
    kept.cancel()
    assert timer.queue == []


def test_threads_may_enter_and_cancel_while_the_hub_iterates() -> None:
    """Every entry that was not cancelled runs once. No entry that was cancelled in time runs."""
    timer = WheelTimer()
    ran: list[tuple[int, int]] = []
    done = threading.Event()

    def enter(thread: int) -> None:
        for number in range(500):
            entry = timer.call_after(0.001 * (number % 7), ran.append, ((thread, number),))
            if number % 3 == 0:
                timer.call_after(3600, pytest.fail).cancel()
                entry = None
            del entry

    def turn() -> None:
        turns = iter(timer)
        while not (done.is_set() and not timer._queue):
            _, entry = next(turns)
            if entry is not None:
                entry()

    hub = threading.Thread(target=turn)
    threads = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    for thread in (hub, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    hub.join(30)
    assert not hub.is_alive()
    assert sorted(ran) == [(thread, number) for thread in range(4) for number in range(500)]


def test_the_repr_says_what_waits() -> None:
    """The repr shows how many entries wait and when the next one is due, for a look into a running worker."""
    timer = WheelTimer()
    timer.call_after(100, print)
    assert repr(timer).startswith("<WheelTimer pending=1 ready=0 <DeadlineQueue pending=1 ")
