"""`advance` with a limit hands out due entries in batches of at most this size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from wheel_sched.wheel import EntryState, TimingWheel

MakeWheel = Callable[..., TimingWheel[Any]]
Core = type[TimingWheel[Any]]


def batches(wheel: TimingWheel[Any], now_ms: int, limit: int) -> list[list[Any]]:
    """All batches that `advance` returns, up to the first one that is not full."""
    found: list[list[Any]] = []
    while not found or len(found[-1]) == limit:
        found.append([entry.task for entry in wheel.advance(now_ms, limit)])
    return found


def test_batches_are_full_and_together_what_one_call_gives(make_wheel: MakeWheel) -> None:
    """With any limit, `advance` hands out the same entries in the same order as without, over several ticks and
    levels."""
    for limit in (1, 2, 3, 7, 100):
        batches_are_full(make_wheel, limit)


def batches_are_full(make_wheel: MakeWheel, limit: int) -> None:
    deadlines = [30, 30, 10, 5000, 30, 10, 70, 4999, 30, 20_000, 1, 30]
    whole, cut = make_wheel(), make_wheel()
    for number, deadline_ms in enumerate(deadlines):
        whole.schedule(number, deadline_ms)
        cut.schedule(number, deadline_ms)
    found = batches(cut, 50_000, limit)
    assert [task for batch in found for task in batch] == [entry.task for entry in whole.advance(50_000)]
    assert all(len(batch) == limit for batch in found[:-1])
    assert (len(cut), cut.now_ms) == (0, whole.now_ms)


def test_a_sibling_cancelled_between_batches_is_not_handed_out(make_wheel: MakeWheel) -> None:
    """A due entry that was not in the first batch can be cancelled, and is then not in the next batch."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, 100) for number in range(4)]
    assert wheel.advance(100, 1) == [entries[0]]
    assert entries[1].cancel() is EntryState.CANCELLED
    assert entries[3].cancel() is EntryState.CANCELLED
    assert len(wheel) == 1
    assert wheel.advance(100, 5) == [entries[2]]


def test_a_sibling_moved_between_batches_comes_at_its_new_time(make_wheel: MakeWheel) -> None:
    """Between two batches, due entries are touched or rescheduled. Each is handed out once, at its new time.

    An entry that is moved to the past is handed out last in its tick.
    """
    wheel = make_wheel()
    first, touched, moved, last, back = (wheel.schedule(number, 100) for number in range(5))
    assert wheel.advance(100, 1) == [first]
    assert touched.touch(900)
    assert moved.reschedule(600)
    assert back.reschedule(0)
    assert wheel.next_expiry() == 100
    assert wheel.advance(100, 10) == [last, back]
    assert wheel.next_expiry() == 600
    assert [wheel.advance(now_ms) for now_ms in (599, 600, 899, 900)] == [[], [moved], [], [touched]]


def test_a_sibling_postponed_between_batches_is_passed_over(make_wheel: MakeWheel) -> None:
    """A due entry that is postponed between two batches is skipped, and does not count towards the limit."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, 100) for number in range(4)]
    assert wheel.advance(100, 1) == [entries[0]]
    assert entries[1].touch(200)
    assert wheel.advance(100, 2) == entries[2:]
    assert wheel.advance(199) == []
    assert wheel.advance(200) == [entries[1]]


def test_when_all_that_was_left_is_postponed_the_rest_of_time_goes_on(make_wheel: MakeWheel) -> None:
    """If all remaining entries of a tick are postponed between two batches, `next_expiry` gives their new time."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, 100) for number in range(3)]
    wheel.advance(100, 1)
    for entry in entries[1:]:
        entry.touch(700)
    assert wheel.next_expiry() == 700
    assert len(wheel.advance(700)) == 2


def test_a_deadline_between_the_batches_keeps_its_place_in_time(core: Core) -> None:
    """While due entries remain, the wheel's clock is at the last handed-out entry's tick. An entry that is added then
    is handed out in the order of deadlines."""
    wheel = core()
    for deadline_ms in (150, 160, 170):
        wheel.schedule(deadline_ms, deadline_ms)
    assert [entry.task for entry in wheel.advance(200, 1)] == [150]
    assert (wheel.now_ms, wheel.next_expiry()) == (150, 160)
    wheel.schedule(155, 155)
    wheel.schedule(100, 100)
    assert [entry.task for entry in wheel.advance(200)] == [100, 155, 160, 170]
    assert wheel.now_ms == 200


def test_what_is_scheduled_for_now_between_batches_queues_behind_the_rest(make_wheel: MakeWheel) -> None:
    """An entry that is scheduled for now between two batches is handed out after the remaining entries of the tick."""
    wheel = make_wheel()
    for number in range(3):
        wheel.schedule(number, 100)
    assert [entry.task for entry in wheel.advance(100, 1)] == [0]
    wheel.schedule("new", 50)
    assert [entry.task for entry in wheel.advance(100, 2)] == [1, 2]
    assert [entry.task for entry in wheel.advance(100, 2)] == ["new"]


def test_the_rest_of_a_cut_tick_is_counted_and_listed(make_wheel: MakeWheel) -> None:
    """`len`, the counters, `snapshot` and `clear` include the due entries that a limit has left in the wheel."""
    wheel = make_wheel()
    for number in range(5):
        wheel.schedule(number, 100)
    wheel.advance(100, 2)
    rest = [(100, 2), (100, 3), (100, 4)]
    assert (len(wheel), wheel.counters.levels[0], wheel.snapshot()) == (3, 3, rest)
    assert wheel.clear() == rest
    assert (len(wheel), wheel.advance(100)) == (0, [])


def test_small_batches_of_a_large_tick_stay_cheap(core: Core) -> None:
    """Handing out 100,000 entries of one tick in batches of 10 takes linear time, not quadratic."""
    count = 100_000

    def seconds(limit: int | None) -> float:
        wheel = core()
        for number in range(count):
            wheel.schedule(number, 100)
        start = time.thread_time()
        handed_out = 0
        while handed_out < count:
            handed_out += len(wheel.advance(100, limit))
        return time.thread_time() - start

    # Linear time is about 20 times as long (10,000 calls). If each call walked over the entries that were taken
    # before, the time would be over 1000 times as long.
    assert seconds(10) < 200 * max(seconds(None), 0.005)
