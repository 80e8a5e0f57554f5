"""Timers on threads in real time: executors, races, and many threads at once."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.timers import SystemTimer, queue
from wheel_sched.timers.facade import BACKLOG
from wheel_sched.wheel import CORES, EntryState

PATIENCE_S = 40.0  # the longest wait for an event; only a defect waits so long
CANCELLED, RUNNING, FIRED = EntryState.CANCELLED, EntryState.RUNNING, EntryState.FIRED


@pytest.fixture(params=sorted(CORES), autouse=True)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The core of every timer of the test. Any thread adds a timer to the compiled wheel directly. With the wheel in
    Python, it appends the timer to a list (inbox), and the reaper moves it to the wheel."""
    name: str = request.param
    monkeypatch.setattr(queue, "TimingWheel", CORES[name])
    return name


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Makes the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)  # between two looks


def at_once(*work: Callable[[], object]) -> None:
    """Run all functions at once, one thread each, and raise their errors."""
    with ThreadPoolExecutor(len(work)) as pool:
        barrier = threading.Barrier(len(work))

        def run(one: Callable[[], object]) -> object:
            barrier.wait(PATIENCE_S)
            return one()

        for future in [pool.submit(run, one) for one in work]:
            future.result(PATIENCE_S)


def test_inline_callbacks_run_on_the_reaper_and_pooled_ones_beside_it() -> None:
    """Inline callbacks run in the reaper's thread, others in a pool. Closing a timer ends its threads."""
    names: list[str] = []
    with SystemTimer() as inline, SystemTimer(executor="threads") as pooled:
        inline.schedule(1, lambda: names.append(threading.current_thread().name))
        until(lambda: len(names) == 1)
        pooled.schedule(1, lambda: names.append(threading.current_thread().name))
        until(lambda: len(names) == 2)
        mine = [pooled._thread, inline._thread]
    assert names[0] == "SystemTimer-reaper"
    assert names[1].startswith("SystemTimer-callback")
    assert not any(thread.is_alive() for thread in mine if thread is not None)


def test_a_blocking_callback_in_a_pool_does_not_hold_up_others() -> None:
    """While a callback in a pool blocks, other callbacks run. With the inline executor they would wait."""
    released, fired = threading.Event(), threading.Event()
    with SystemTimer(executor="threads") as timer:
        timer.schedule(1, released.wait, PATIENCE_S)
        timer.schedule(2, fired.set)
        assert fired.wait(PATIENCE_S)
        released.set()


def test_a_blocking_callback_inline_delays_others_and_loses_none() -> None:
    """While an inline callback blocks, no other callback runs. Afterwards all others run, in order."""
    fired: list[int] = []
    begun, released = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        released.wait(PATIENCE_S)

    with SystemTimer() as timer:
        timer.schedule(0, block)
        assert begun.wait(PATIENCE_S)
        for number in range(10):
            timer.schedule(number, fired.append, number)
        assert fired == []
        released.set()
        until(lambda: len(fired) == 10)
    assert fired == list(range(10))


def test_an_executor_of_the_user_is_used_and_left_open() -> None:
    """Closing a timer does not shut down an executor that the user has passed."""
    ran = threading.Event()
    with ThreadPoolExecutor(1, "mine") as mine:
        with SystemTimer(executor=mine) as timer:
            timer.schedule(1, ran.set)
            assert ran.wait(PATIENCE_S)
        assert mine.submit(lambda: 5).result(PATIENCE_S) == 5


def test_what_an_executor_refuses_is_reported() -> None:
    """If the executor refuses a callback, the timer is cancelled, the handler gets the error, the reaper continues."""

    class Refusing(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("no more")

    heard: list[tuple[Any, str]] = []
    with SystemTimer(executor=Refusing(), on_error=lambda handle, error: heard.append((handle, str(error)))) as timer:
        handles = [timer.schedule(1, print), timer.schedule(2, print)]
        until(lambda: len(heard) == 2)
        assert heard == [(handle, "no more") for handle in handles]
        assert [handle.state for handle in handles] == [CANCELLED] * 2


@pytest.mark.parametrize("executor", ["thread", None, 4])
def test_what_is_no_executor_is_refused(executor: Any) -> None:
    """An object that is no executor is refused before a thread is started."""
    with pytest.raises(ConfigError, match="expected executor to be"):
        SystemTimer(executor=executor)


class SlowCallback:
    """A callback that runs until a test releases it."""

    def __init__(self) -> None:
        self.begun, self.released, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.released.wait(PATIENCE_S)
        self.ended.set()


def test_cancel_answers_running_and_cancel_and_wait_waits() -> None:
    """While a callback runs, `cancel` returns RUNNING. `cancel_and_wait` returns when the callback has ended."""
    run = SlowCallback()
    with SystemTimer() as timer:
        handle = timer.schedule(0, run)
        assert run.begun.wait(PATIENCE_S)
        assert handle.cancel() is RUNNING
        assert timer.cancel_and_wait(handle, timeout_s=0.01) is RUNNING
        helper = threading.Timer(0.02, run.released.set)
        helper.start()
        assert timer.cancel_and_wait(handle) is FIRED
        assert run.ended.is_set()
        helper.join()


def test_cancel_and_wait_waits_for_a_timer_that_was_rescheduled_while_it_ran() -> None:
    """A running timer that was rescheduled is pending again, but its callback has not ended yet."""
    run = SlowCallback()
    with SystemTimer(executor="threads") as timer:
        handle = timer.schedule(0, run)
        assert run.begun.wait(PATIENCE_S)
        assert handle.reschedule(60_000)
        helper = threading.Timer(0.02, run.released.set)
        helper.start()
        assert timer.cancel_and_wait(handle) is CANCELLED
        assert run.ended.is_set()
        helper.join()


def test_a_callback_that_waits_for_itself_does_not_wait() -> None:
    """`cancel_and_wait` in a callback does not wait for the callback itself, because that would never end."""
    answers: list[EntryState] = []
    with SystemTimer(executor="threads") as timer:
        armed = threading.Event()

        def run() -> None:
            armed.wait(PATIENCE_S)
            answers.append(timer.cancel_and_wait(handle))

        handle = timer.schedule(0, run)
        armed.set()
        until(lambda: answers)
    assert answers == [RUNNING]


def test_close_waits_for_the_callback_that_runs() -> None:
    """`close` waits for a running callback, so that the caller may then destroy objects that callbacks use."""
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        time.sleep(0.03)  # long enough to reveal a `close` that does not wait
        ended.set()

    for executor in ("inline", "threads"):
        begun.clear()
        ended.clear()
        timer = SystemTimer(executor=executor)  # type: ignore[arg-type]
        timer.schedule(0, run)
        assert begun.wait(PATIENCE_S)
        timer.close()
        assert ended.is_set()


@pytest.mark.usefixtures("hasty_switches")
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_each_race_of_cancel_and_expiry_has_one_winner(executor: Any) -> None:
    """Two threads cancel each timer at its deadline. It is cancelled or runs once, and all answers agree."""
    count = 1500
    runs: Counter[int] = Counter()
    answers: list[list[EntryState]] = [[], []]
    with SystemTimer(executor=executor) as timer:
        handles = [
            timer.schedule(5 + number // 50, lambda number=number: runs.update([number])) for number in range(count)
        ]

        def cancel(mine: list[EntryState]) -> None:
            for handle in handles:
                while time.monotonic_ns() // 1_000_000 < handle.deadline_ms:
                    pass  # up to the deadline, not past it
                mine.append(handle.cancel())

        at_once(*[lambda mine=mine: cancel(mine) for mine in answers])
        until(lambda: all(handle.state in (CANCELLED, FIRED) for handle in handles))
        assert len(timer) == 0
    for number, handle in enumerate(handles):
        assert runs[number] == (handle.state is FIRED)
        for mine in answers:
            assert (mine[number] is CANCELLED) == (handle.state is CANCELLED)


@pytest.mark.usefixtures("hasty_switches")
def test_a_timer_touched_around_its_deadline_never_runs_early() -> None:
    """If `touch` returns True, the timer does not run before the new deadline. Each timer runs exactly once."""
    early: list[int] = []
    runs: Counter[int] = Counter()
    with SystemTimer(executor="threads") as timer:
        promised_ns = [0] * 300

        def run(number: int) -> None:
            if time.monotonic_ns() < promised_ns[number]:
                early.append(number)
            runs[number] += 1

        handles = [timer.schedule(5 + number // 20, run, number) for number in range(300)]

        def touch() -> None:
            for number, handle in enumerate(handles):
                while handle.remaining_ms() > 0:
                    pass  # up to the deadline, not past it
                until_ns = time.monotonic_ns() + 3_000_000
                if handle.touch(3):
                    promised_ns[number] = until_ns

        at_once(touch, touch)
        until(lambda: all(handle.state is FIRED for handle in handles))
    assert early == []
    assert set(runs.values()) == {1}


@pytest.mark.usefixtures("hasty_switches")
def test_many_threads_schedule_cancel_and_move_without_losing_a_timer() -> None:
    """Threads schedule, move and cancel timers. A cancelled timer never runs, and every other one runs once."""
    runs: Counter[int] = Counter()
    numbers = itertools.count()
    kept: list[list[int]] = [[] for _ in range(6)]
    with SystemTimer() as timer:

        def work(mine: list[int], step: int) -> None:
            for turn in range(250):
                number = next(numbers)
                handle = timer.schedule((turn * step) % 17, runs.update, [number])
                if turn % 3 == 0:
                    handle.touch(turn % 7)
                if turn % 2 or handle.cancel() is not CANCELLED:
                    mine.append(number)

        at_once(*[lambda mine=mine, step=step: work(mine, step) for step, mine in enumerate(kept, 1)])
        until(lambda: len(timer) == 0)
    expected = [number for mine in kept for number in mine]
    assert set(runs) == set(expected)
    assert set(runs.values()) == {1}


@pytest.mark.usefixtures("hasty_switches")
def test_a_key_fought_over_by_threads_runs_one_timer_at_a_time() -> None:
    """Four threads schedule timers with one key. A replaced timer never runs, and every other one runs."""
    ran: list[int] = []
    numbers = itertools.count()
    handles: dict[int, Any] = {}
    with SystemTimer(executor="threads") as timer:

        def work() -> None:
            for _ in range(200):
                number = next(numbers)
                handles[number] = timer.schedule(1, ran.append, number, key="k")

        at_once(*[work] * 4)
        until(lambda: len(timer) == 0 and all(handle.state in (CANCELLED, FIRED) for handle in handles.values()))
    assert sorted(ran) == sorted(number for number, handle in handles.items() if handle.state is FIRED)
    assert len(handles) == 800


@pytest.mark.usefixtures("hasty_switches")
def test_max_pending_is_exact_among_threads() -> None:
    """With `max_pending=100`, four threads schedule at once. Exactly a hundred timers are accepted."""
    with SystemTimer(max_pending=100) as timer:
        accepted: list[int] = []

        def work() -> None:
            for number in range(100):
                with suppress(Rejected):
                    timer.schedule(60_000, print)
                    accepted.append(number)

        at_once(*[work] * 4)
        assert len(accepted) == len(timer) == 100


def test_a_timer_started_and_stopped_by_many_threads_ends_every_time() -> None:
    """Ten threads make fifty timers each. Some are used, some are closed twice. No thread remains."""
    threads: list[threading.Thread] = []

    def work() -> None:
        for turn in range(50):
            timer = SystemTimer(executor="threads" if turn % 7 == 0 else "inline")
            if turn % 5:
                timer.schedule(turn % 3, lambda: None)
                assert timer._thread is not None
                threads.append(timer._thread)
            timer.close()
            if turn % 2:
                timer.close()

    at_once(*[work] * 10)
    assert [thread for thread in threads if thread.is_alive()] == []


def test_one_timer_closed_by_many_threads_gives_each_pending_timer_to_one() -> None:
    """Two threads call `close` while two call `schedule`. Each accepted timer runs or is returned by one `close`."""
    for _ in range(20):
        runs: Counter[int] = Counter()
        numbers = itertools.count()
        given: list[int] = []
        refused: list[int] = []
        accepted: list[int] = []
        timer = SystemTimer()

        def schedule(
            timer: SystemTimer = timer,
            runs: Counter[int] = runs,
            numbers: Iterator[int] = numbers,
            refused: list[int] = refused,
            accepted: list[int] = accepted,
        ) -> None:
            for turn in range(100):
                number = next(numbers)
                try:
                    timer.schedule(0 if turn % 2 else 1000, runs.update, [number])
                    accepted.append(number)
                except Rejected:
                    refused.append(number)

        def close(timer: SystemTimer = timer, given: list[int] = given) -> None:
            time.sleep(0.0005)  # so that some have been scheduled
            given.extend(pending.args[0][0] for pending in timer.close())

        at_once(schedule, schedule, close, close)
        assert max(Counter(given).values(), default=1) == 1
        assert sorted([*runs, *given]) == sorted(accepted)
        assert not set(refused) & {*runs, *given}


def test_a_sleeping_reaper_is_not_woken_by_what_is_due_later(core: str) -> None:
    """A thousand timers with later deadlines do not wake the reaper. With the wheel in Python, new timers wait in a
    list (inbox) until the reaper moves them to the wheel. If the list is long, the reaper is woken to empty it."""
    with SystemTimer() as timer:
        timer.schedule(60_000, print)
        until(lambda: timer._sleeps_until > 0)
        before = timer.statistics.wakeups
        for _ in range(1000):
            timer.schedule(70_000, print)
        assert timer.statistics.wakeups == before
        for _ in range(2 * BACKLOG):
            timer.schedule(70_000, print)
        until(lambda: timer._sleeps_until > 0)
        woken = timer.statistics.wakeups - before
        assert woken == 0 if CORES[core].any_thread else 0 < woken < BACKLOG // 10
        assert len(timer) == 1001 + 2 * BACKLOG


def test_no_lock_is_needed_to_schedule() -> None:
    """A timer due later can be scheduled while another thread holds the internal lock of the `SystemTimer`."""
    with SystemTimer() as timer:
        timer.schedule(60_000, print)
        until(lambda: timer._sleeps_until > 0)
        with timer._guard, ThreadPoolExecutor(1) as other:
            handle = other.submit(timer.schedule, 70_000, print).result(PATIENCE_S)
        assert handle.cancel() is CANCELLED
        assert len(timer) == 1


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_million_timers_cancelled_leave_nothing_behind() -> None:
    """After a million cancels, at most a thousandth of the objects remain, and the reaper does not wake up."""
    with SystemTimer() as timer:
        timer.schedule(0, lambda: None)
        until(lambda: len(timer) == 0)
        empty = sys.getallocatedblocks()
        handles = [timer.schedule(3_600_000 + number % 100_000, print) for number in range(1_000_000)]
        assert len(timer) == 1_000_000
        full = sys.getallocatedblocks()
        for handle in handles:
            handle.cancel()
        assert len(timer) == 0
        del handles, handle
        assert sys.getallocatedblocks() - empty < 0.001 * (full - empty)
        assert timer.next_ms() is None
        until(lambda: timer._sleeps_until > 0)
        before = timer.statistics.wakeups
        time.sleep(0.5)  # time in which a wake-up would show
        assert timer.statistics.wakeups == before


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("hasty_switches")
@pytest.mark.timeout(180)
def test_a_long_run_of_everything_at_once_keeps_every_promise() -> None:
    """Eight threads use short, recurring and keyed timers for five seconds. No timer is lost or runs twice."""
    runs: Counter[int] = Counter()
    outcomes: list[dict[int, Any]] = [{} for _ in range(8)]
    numbers = itertools.count()
    end = time.monotonic() + 5
    errors: list[BaseException] = []
    with SystemTimer(executor="threads", on_error=lambda _, error: errors.append(error)) as timer:

        def work(mine: dict[int, Any], seed: int) -> None:
            for turn in itertools.count(seed):
                if time.monotonic() > end:
                    return
                number = next(numbers)
                handle = timer.schedule(
                    turn * 7 % 13, runs.update, [number], key=(seed, turn % 5) if turn % 3 else None
                )
                mine[number] = handle
                if turn % 4 == 0:
                    handle.cancel()
                elif turn % 4 == 1:
                    handle.touch(turn % 9)
                if turn % 500 == 0:
                    beat = timer.every(1, lambda: None, key=seed)
                    beat.touch(2)

        at_once(*[lambda mine=mine, seed=seed: work(mine, seed) for seed, mine in enumerate(outcomes)])
        for seed in range(8):
            timer.cancel(seed)
        handles = {number: handle for mine in outcomes for number, handle in mine.items()}
        until(lambda: all(handle.state in (CANCELLED, FIRED) for handle in handles.values()))
    assert errors == []
    for number, handle in handles.items():
        assert runs[number] == (handle.state is FIRED), (number, handle)
