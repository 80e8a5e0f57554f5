"""The deadline queue, with every core of the wheel."""

from __future__ import annotations

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.timers import DeadlineQueue, queue
from wheel_sched.timers.queue import deadline_after
from wheel_sched.wheel import CORES, EntryState


@pytest.fixture(params=sorted(CORES), autouse=True)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The core of the wheel of each queue of the test: "pure" or "compiled"."""
    name: str = request.param
    monkeypatch.setattr(queue, "TimingWheel", CORES[name])
    return name


def test_a_task_is_taken_at_its_deadline_and_not_before() -> None:
    """`take` returns a task at its deadline and not before. Tasks with one deadline are in the order of their
    addition."""
    tasks = DeadlineQueue[str](100)
    for task, deadline_ms in (("late", 110), ("early", 105), ("second", 110)):
        tasks.schedule(task, deadline_ms)
    assert (len(tasks), tasks.next_ms(), tasks.now_ms) == (3, 105, 100)
    assert tasks.take(104) == []
    assert tasks.take(105) == ["early"]
    assert tasks.take(110) == ["late", "second"]
    assert (len(tasks), tasks.next_ms(), tasks.now_ms) == (0, None, 110)


def test_a_limit_leaves_the_rest_due() -> None:
    """`take` returns at most `limit` tasks. If it returns fewer, no other task is due."""
    tasks = DeadlineQueue[int]()
    for number in range(5):
        tasks.schedule(number, 7)
    assert tasks.take(7, 2) == [0, 1]
    assert tasks.next_ms() == 7
    assert tasks.take(7, 2) == [2, 3]
    assert tasks.take(7, 2) == [4]


def test_a_cancelled_task_is_not_taken_also_between_two_batches() -> None:
    """A task that is cancelled before it is taken is not taken, even between two batches. A taken task cannot be
    cancelled."""
    tasks = DeadlineQueue[int]()
    entries = [tasks.schedule(number, 7) for number in range(4)]
    assert entries[1].cancel() is EntryState.CANCELLED
    assert tasks.take(7, 1) == [0]
    assert entries[2].cancel() is EntryState.CANCELLED
    assert entries[0].cancel() is EntryState.RUNNING
    assert tasks.take(7) == [3]


def test_a_task_may_schedule_the_next_while_a_batch_is_worked_on() -> None:
    """A task that is added during a batch and is due at once is in the next batch."""
    tasks = DeadlineQueue[str]()
    tasks.schedule("first", 5)
    for task in tasks.take(5):
        tasks.schedule(f"after {task}", 5)
    assert tasks.next_ms() == 5
    assert tasks.take(5) == ["after first"]


def test_deadlines_round_up_to_a_tick() -> None:
    """The queue passes its tick and size to the wheel, which rounds a deadline up to a tick."""
    tasks = DeadlineQueue[str](0, tick_ms=10, wheel_size=8)
    tasks.schedule("task", 11)
    assert (tasks.next_ms(), tasks.take(19), tasks.take(20)) == (20, [], ["task"])


def test_a_clock_set_back_makes_nothing_due_before_its_time() -> None:
    """After the clock is set back, waiting tasks keep their deadlines, and new tasks are due by the new time."""
    tasks = DeadlineQueue[str]()
    assert tasks.take(1_000) == []
    old = tasks.schedule("later", 1_500)
    gone = tasks.schedule("gone", 1_500)
    gone.cancel()
    entries = tasks.follow(400)
    assert [(entry.task, entry.deadline_ms, entry.state) for entry in entries] == [("later", 1_500, EntryState.PENDING)]
    assert entries[0] is not old
    tasks.schedule("soon", 450)
    assert (tasks.next_ms(), tasks.take(449), tasks.take(450), tasks.take(1_499)) == (450, [], ["soon"], [])
    assert tasks.take(1_500) == ["later"]


def test_what_was_due_and_is_not_taken_waits_again_for_its_time() -> None:
    """If the clock is set back between two batches, the tasks that are not taken yet are due again at their
    deadlines."""
    tasks = DeadlineQueue[int]()
    for number in range(3):
        tasks.schedule(number, 100)
    assert tasks.take(100, 1) == [0]
    assert len(tasks.follow(50)) == 2
    assert (tasks.take(99), tasks.take(100)) == ([], [1, 2])


def test_a_clock_that_did_not_go_back_changes_nothing() -> None:
    """If the clock has not gone back, `follow` returns nothing, and the entries are the same objects as before."""
    tasks = DeadlineQueue[str](100)
    entry = tasks.schedule("task", 120)
    assert tasks.follow(100) == tasks.follow(110) == []
    assert entry.cancel() is EntryState.CANCELLED
    assert len(tasks) == 0


def test_a_clock_before_its_beginning_counts_as_0() -> None:
    """A wall clock may show a date before 1970. Such a time counts as 0."""
    tasks = DeadlineQueue[str](-5)
    assert tasks.now_ms == 0
    tasks.take(10)
    tasks.schedule("task", 20)
    tasks.follow(-3)
    assert (tasks.now_ms, tasks.next_ms()) == (0, 20)


def test_a_restart_forgets_what_waits() -> None:
    """`restart` drops all waiting tasks. Cancelling an entry from before it has no effect."""
    tasks = DeadlineQueue[str](100)
    entry = tasks.schedule("before", 150)
    tasks.restart(20)
    tasks.schedule("after", 30)
    entry.cancel()
    assert (len(tasks), tasks.now_ms, tasks.take(200)) == (1, 20, ["after"])


def test_waiting_and_clear_answer_the_tasks_in_order() -> None:
    """`waiting` returns the tasks in the order of their deadlines. `clear` also returns them, and cancels them."""
    tasks = DeadlineQueue[str]()
    entry = tasks.schedule("second", 20)
    tasks.schedule("first", 10)
    assert tasks.waiting() == ["first", "second"]
    assert tasks.clear() == ["first", "second"]
    assert (entry.state, len(tasks), tasks.waiting(), tasks.take(20)) == (EntryState.CANCELLED, 0, [], [])


def test_the_queue_adds_no_call_to_the_wheel(core: str) -> None:
    """The most used methods of the queue are bound methods of the wheel, so they cost no further call."""
    tasks = DeadlineQueue[str]()
    wheel = CORES[core]
    for method in (tasks.schedule, tasks.advance, tasks.next_ms, tasks.count):
        assert isinstance(method.__self__, wheel)  # type: ignore[attr-defined]  # a bound method
    assert tasks.any_thread is wheel.any_thread
    assert (tasks.new_entry is not None) is tasks.any_thread
    if tasks.new_entry is not None:
        entry = tasks.new_entry("task")
        assert (len(tasks), entry.state) == (0, EntryState.FIRED)
        entry.reschedule(5)
        assert tasks.take(5) == ["task"]


def test_the_repr_shows_what_waits() -> None:
    """The repr has the number of tasks and the next deadline."""
    tasks = DeadlineQueue[str](100)
    assert repr(tasks) == "<DeadlineQueue pending=0 now=100ms next=none>"
    tasks.schedule("task", 120)
    assert repr(tasks) == "<DeadlineQueue pending=1 now=100ms next=+20ms>"


def test_a_wrong_shape_is_refused() -> None:
    """A wrong tick or wheel size raises the wheel's error."""
    with pytest.raises(ConfigError, match="tick_ms"):
        DeadlineQueue[str](tick_ms=0)


@pytest.mark.parametrize(
    ("now_ns", "delay_ms", "deadline_ms"),
    [(0, 5, 5), (1, 5, 6), (999_999, 0, 1), (1_000_000, 0, 1), (7_500_000, -3, 8), (0, 0.25, 1), (750_000, 0.25, 1)],
)
def test_a_delay_ends_with_the_first_whole_ms_that_is_not_early(now_ns: int, delay_ms: float, deadline_ms: int) -> None:
    """The sum of now and the delay is rounded up to whole ms. A delay below 0 counts as 0."""
    assert deadline_after(now_ns, delay_ms) == deadline_ms


@pytest.mark.parametrize("delay_ms", [None, "5", True, float("nan"), float("inf")])
def test_a_delay_that_is_no_number_is_refused(delay_ms: object) -> None:
    """A delay that is no number is refused with an error that names it."""
    with pytest.raises(Rejected, match="delay_ms"):
        deadline_after(0, delay_ms)
