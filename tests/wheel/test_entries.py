"""What can be done with an entry: cancel, finish, reschedule, touch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

from wheel_sched.wheel import EntryState, TimingWheel

MakeWheel = Callable[..., TimingWheel[Any]]
Core = type[TimingWheel[Any]]
DELAYS_MS = [0, 1, 50, 5000, 10**6, 10**9]


class Task:
    """A task that supports weak references."""


def test_a_cancelled_entry_is_gone_at_once(make_wheel: MakeWheel) -> None:
    """A cancelled entry of any level is not counted by `len`, not reported by `next_expiry` and not handed out."""
    for delay_ms in DELAYS_MS:
        wheel = make_wheel(1000)
        entry = wheel.schedule("task", 1000 + delay_ms)
        assert entry.cancel() is EntryState.CANCELLED
        assert (len(wheel), wheel.next_expiry(), wheel.snapshot()) == (0, None, [])
        assert wheel.advance(10**10) == []


def test_a_second_cancel_answers_the_same_and_changes_nothing(make_wheel: MakeWheel) -> None:
    """A second cancel of an entry returns CANCELLED again and removes no other entry."""
    wheel = make_wheel()
    entry, _ = wheel.schedule("a", 100), wheel.schedule("b", 100)
    assert [entry.cancel(), entry.cancel()] == [EntryState.CANCELLED] * 2
    assert len(wheel) == 1


def test_cancel_tells_running_from_fired(make_wheel: MakeWheel) -> None:
    """`cancel` of an entry that was handed out changes nothing. It returns RUNNING before `finish`, and FIRED
    afterwards."""
    wheel = make_wheel()
    entry = wheel.schedule("task", 100)
    assert entry.state is EntryState.PENDING
    wheel.advance(100)
    assert (entry.state, entry.cancel(), entry.task) == (EntryState.RUNNING, EntryState.RUNNING, "task")
    entry.finish()
    assert (entry.state, entry.cancel(), len(wheel)) == (EntryState.FIRED, EntryState.FIRED, 0)


def test_finish_leaves_waiting_and_cancelled_entries_alone(make_wheel: MakeWheel) -> None:
    """`finish` does not change a waiting or cancelled entry, only one that was handed out."""
    wheel = make_wheel()
    entry = wheel.schedule("task", 100)
    states = []
    for change in (entry.finish, entry.cancel, entry.finish):
        change()
        states.append(entry.state)
    assert states == [EntryState.PENDING, EntryState.CANCELLED, EntryState.CANCELLED]


def test_cancel_lets_go_of_the_task(make_wheel: MakeWheel) -> None:
    """After a cancel, the entry does not refer to its task any more."""
    wheel = make_wheel()
    for delay_ms in DELAYS_MS:
        task = Task()
        gone = weakref.ref(task)
        entry = wheel.schedule(task, delay_ms)
        del task
        entry.cancel()
        assert (gone(), entry.task) == (None, None)


def test_the_wheel_keeps_nothing_of_what_it_handed_out(make_wheel: MakeWheel) -> None:
    """If the caller drops an entry that was handed out, the entry is freed, even if `next_expiry` had cached it."""
    wheel = make_wheel()
    task = Task()
    gone = weakref.ref(task)
    wheel.schedule(task, 10**6)
    del task
    wheel.next_expiry()
    assert len(wheel.advance(10**6 + 100)) == 1
    gc.collect()
    assert gone() is None


def test_siblings_survive_a_cancel_in_any_position(make_wheel: MakeWheel) -> None:
    """If any one entry of a slot is cancelled, the others are handed out in order. The case is from folly:
    CancelTimeout."""
    for position in range(5):
        wheel = make_wheel()
        entries = [wheel.schedule(number, 300) for number in range(5)]
        entries[position].cancel()
        assert [entry.task for entry in wheel.advance(300)] == [n for n in range(5) if n != position]


def test_reschedule_moves_an_entry_both_ways(make_wheel: MakeWheel) -> None:
    """`reschedule` moves an entry between any two levels. It is still one entry and is handed out once, at the new
    deadline."""
    for first_ms, then_ms in product(DELAYS_MS, DELAYS_MS):
        moves_both_ways(make_wheel(), first_ms, then_ms)


def moves_both_ways(wheel: TimingWheel[Any], first_ms: int, then_ms: int) -> None:
    entry = wheel.schedule("task", first_ms)
    wheel.next_expiry()
    assert entry.reschedule(then_ms) is True
    due_ms = -(-then_ms // wheel.tick_ms) * wheel.tick_ms
    assert (len(wheel), entry.deadline_ms, wheel.next_expiry()) == (1, then_ms, due_ms)
    assert wheel.advance(due_ms - 1) == ([entry] if due_ms == 0 else [])
    assert wheel.advance(2 * 10**9) == ([] if due_ms == 0 else [entry])


def test_rescheduling_never_changes_the_count(make_wheel: MakeWheel) -> None:
    """However often an entry is rescheduled, `len` counts it once. The case is from Kafka: TimerTaskListTest."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, number) for number in range(10)]
    for shift_ms in (0, 0, 7, 1000, 10**7, 0):
        for entry in entries:
            entry.reschedule(entry.deadline_ms + shift_ms)
            assert len(wheel) == 10
    for entry in entries:
        entry.cancel()
    assert (len(wheel), sum(wheel.counters.levels), wheel.next_expiry()) == (0, 0, None)


def test_a_rescheduled_entry_queues_behind_its_tick(make_wheel: MakeWheel) -> None:
    """A rescheduled entry is handed out after the others of its tick, even if its deadline is the same as before."""
    wheel = make_wheel()
    first, second = wheel.schedule("first", 100), wheel.schedule("second", 100)
    first.reschedule(100)
    assert wheel.advance(100) == [second, first]


def test_a_fired_entry_can_be_armed_again(make_wheel: MakeWheel) -> None:
    """An entry that was handed out can be rescheduled, so a recurring timer needs one entry only.

    A `finish` for an earlier run does not end the next run.
    """
    wheel = make_wheel()
    entry = wheel.schedule("tick", 100)
    for deadline_ms in (100, 200, 300):
        assert wheel.advance(deadline_ms) == [entry]
        assert entry.reschedule(deadline_ms + 100) is True
        entry.finish()
        assert (entry.state, len(wheel)) == (EntryState.PENDING, 1)
    assert entry.cancel() is EntryState.CANCELLED


def test_a_cancelled_entry_stays_cancelled(make_wheel: MakeWheel) -> None:
    """A cancelled entry has no task, so `reschedule` and `touch` have no effect."""
    wheel = make_wheel()
    entry = wheel.schedule("task", 100)
    entry.cancel()
    assert (entry.reschedule(200), entry.touch(200)) == (False, False)
    assert (len(wheel), entry.deadline_ms, wheel.advance(1000)) == (0, 100, [])


def test_touch_postpones_wherever_the_entry_waits(make_wheel: MakeWheel) -> None:
    """A touched entry of any level is handed out at its new deadline only, and `next_expiry` reports only this one."""
    for first_ms, later_ms in product(DELAYS_MS, [0, 1, 100, 10**5, 10**7]):
        touch_postpones(make_wheel(), first_ms, later_ms)


def touch_postpones(wheel: TimingWheel[Any], first_ms: int, later_ms: int) -> None:
    entry = wheel.schedule("beat", first_ms)
    assert entry.touch(first_ms + later_ms) is True
    due_ms = -(-(first_ms + later_ms) // wheel.tick_ms) * wheel.tick_ms
    if due_ms > 0:
        assert wheel.advance(due_ms - 1) == []
    assert (wheel.next_expiry(), len(wheel)) == (due_ms, 1)
    assert wheel.advance(due_ms) == [entry]


def test_touch_does_not_move_the_entry_until_its_old_place_comes_up(core: Core) -> None:
    """After a thousand touches the entry is moved once, when the wheel reaches its old slot."""
    wheel = core(wheel_size=64)
    entry = wheel.schedule("beat", 50)
    for beat in range(1000):
        entry.touch(50 + beat)
    assert wheel.counters.relocations == 0
    assert wheel.advance(1048) == []
    assert wheel.counters.relocations == 1
    assert wheel.advance(1049) == [entry]


def test_touching_earlier_is_a_reschedule(make_wheel: MakeWheel) -> None:
    """A touch to an earlier deadline moves the entry at once, even after a touch to a later deadline."""
    wheel = make_wheel()
    entry = wheel.schedule("beat", 50_000)
    assert (entry.touch(90_000), entry.touch(3000)) == (True, True)
    assert wheel.next_expiry() == 3000
    assert wheel.advance(3000) == [entry]


def test_touch_refuses_what_no_longer_waits(make_wheel: MakeWheel) -> None:
    """`touch` returns False for an entry that was handed out, so a late heartbeat does not revive an expired
    session."""
    wheel = make_wheel()
    entry = wheel.schedule("session", 100)
    wheel.advance(100)
    assert entry.touch(200) is False
    entry.finish()
    assert (entry.touch(200), entry.deadline_ms, len(wheel)) == (False, 100, 0)


def test_a_due_entry_can_still_be_touched_before_it_is_handed_out(make_wheel: MakeWheel) -> None:
    """An entry that is due and not handed out yet can still be touched."""
    wheel = make_wheel(1000)
    entry = wheel.schedule("beat", 900)
    assert entry.touch(2000) is True
    assert wheel.advance(1900) == []
    assert wheel.advance(2000) == [entry]


def test_a_postponed_far_head_gives_way_to_the_next(core: Core) -> None:
    """If the first entry of a far level is postponed, moved or cancelled, `next_expiry` reports the next one."""
    wheel = core(wheel_size=4)
    first, second = wheel.schedule("first", 1000), wheel.schedule("second", 1010)
    assert wheel.next_expiry() == 1000
    first.touch(5000)
    assert wheel.next_expiry() == 1010
    third = wheel.schedule("third", 990)
    assert wheel.next_expiry() == 990
    third.cancel()
    assert wheel.next_expiry() == 1010
    second.reschedule(900)
    assert wheel.next_expiry() == 900
    second.cancel()
    assert wheel.next_expiry() == 5000


def test_a_far_slot_of_postponed_entries_only_is_passed_over(core: Core) -> None:
    """`next_expiry` skips a slot if all its entries were postponed, although the wheel has not moved them yet."""
    wheel = core(wheel_size=4)
    for deadline_ms in (500, 501):
        wheel.schedule("postponed", deadline_ms).touch(100_000 + deadline_ms)
    wheel.schedule("next", 2000)
    assert wheel.next_expiry() == 2000
    assert [entry.task for entry in wheel.advance(100_499)] == ["next"]
    assert wheel.next_expiry() == 100_500


def test_the_repr_of_an_entry_shows_its_state(core: Core) -> None:
    """The repr has the entry's state, deadline and task."""
    entry = core().schedule("task", 5)
    assert repr(entry) == "<TimerTaskEntry pending deadline_ms=5 task='task'>"
    entry.cancel()
    assert repr(entry) == "<TimerTaskEntry cancelled deadline_ms=5 task=None>"


def test_entries_at_the_edges_of_every_level_can_be_cancelled_and_moved(core: Core) -> None:
    """Entries just before, on and after the edge of each level can be cancelled and moved.

    The case is from Tokio: remove_at_timer_wheel_threshold.
    """
    for wheel_size in (2, 64, 4096):
        for power in range(1, 4):
            edge = wheel_size**power
            for now_ms in (0, edge - 1, edge):
                wheel = core(now_ms, wheel_size=wheel_size)
                around = [now_ms + edge + offset for offset in (-1, 0, 1)]
                entries = [wheel.schedule(deadline_ms, deadline_ms) for deadline_ms in around]
                assert wheel.next_expiry() == around[0]
                assert entries[1].cancel() is EntryState.CANCELLED
                assert entries[2].reschedule(around[0])
                assert [entry.task for entry in wheel.advance(around[0])] == [around[0], around[2]]
                assert (len(wheel), wheel.next_expiry()) == (0, None)


def test_an_entry_can_be_cancelled_on_the_very_tick_it_was_moved_to(make_wheel: MakeWheel) -> None:
    """An entry that was moved to an earlier tick, is due and not handed out yet can be cancelled.

    The case is from Tokio: drop_after_reschedule_at_new_scheduled_time.
    """
    wheel = make_wheel()
    first, moved, last = (
        wheel.schedule(name, deadline_ms) for name, deadline_ms in (("a", 100), ("b", 9000), ("c", 100))
    )
    assert moved.reschedule(100)
    assert wheel.advance(100, 1) == [first]
    assert moved.cancel() is EntryState.CANCELLED
    assert wheel.advance(10_000) == [last]


def test_what_was_handed_out_can_be_put_back(make_wheel: MakeWheel) -> None:
    """`reschedule` puts an entry that was handed out back to its tick, as the last one. The case is from Agrona:
    refused timers."""
    wheel = make_wheel()
    refused, taken = wheel.schedule("refused", 100), wheel.schedule("taken", 100)
    assert wheel.advance(100) == [refused, taken]
    assert refused.reschedule(refused.deadline_ms)
    assert (len(wheel), wheel.next_expiry()) == (1, 100)
    assert wheel.advance(100) == [refused]


def test_an_entry_made_beforehand_waits_once_it_is_armed(make_wheel: MakeWheel) -> None:
    """An entry from `wheel.entry` behaves as a fired one until `reschedule` puts it into the wheel."""
    wheel = make_wheel()
    entry = wheel.entry("task")
    assert (entry.state, entry.task, entry.touch(50), len(wheel)) == (EntryState.FIRED, "task", False, 0)
    assert entry.cancel() is EntryState.FIRED
    wheel.schedule("before", 100)
    assert entry.reschedule(100)
    wheel.schedule("after", 100)
    assert [due.task for due in wheel.advance(100)] == ["before", "task", "after"]
    forgotten = wheel.entry(Task())
    gone = weakref.ref(forgotten.task)
    del forgotten
    assert gone() is None
