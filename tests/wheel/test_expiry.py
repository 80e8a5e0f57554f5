"""When and in which order a wheel hands out tasks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from wheel_sched.wheel import EntryState, TimingWheel

MakeWheel = Callable[..., TimingWheel[Any]]
Core = type[TimingWheel[Any]]


def tasks(wheel: TimingWheel[Any], now_ms: int, limit: int | None = None) -> list[Any]:
    return [entry.task for entry in wheel.advance(now_ms, limit)]


def up(deadline_ms: int, tick_ms: int) -> int:
    """The first tick at or after a deadline, in ms."""
    return -(-deadline_ms // tick_ms) * tick_ms


def test_a_new_wheel_is_empty(make_wheel: MakeWheel) -> None:
    """In a new wheel no entry waits, and none is due."""
    wheel = make_wheel()
    assert (len(wheel), wheel.next_expiry(), wheel.advance(10**9)) == (0, None, [])


def test_past_deadlines_are_due_at_once_in_the_order_scheduled(make_wheel: MakeWheel) -> None:
    """Entries with deadlines in the past or below 0 are due at once, in the order of scheduling. The case is from
    Kafka: testAlreadyExpiredTask."""
    wheel = make_wheel(1000)
    for deadline_ms in (995, 996, 997, 998, 999, -1, -(10**18)):
        wheel.schedule(deadline_ms, deadline_ms)
    assert wheel.next_expiry() == wheel.now_ms
    assert tasks(wheel, 1000) == [995, 996, 997, 998, 999, -1, -(10**18)]


def test_a_deadline_of_now_is_due_at_once(make_wheel: MakeWheel) -> None:
    """An entry with a deadline of now does not wait for the next tick."""
    wheel = make_wheel(600)
    wheel.schedule("now", 600)
    assert tasks(wheel, 600) == ["now"]


def test_every_task_comes_out_once_on_its_tick(make_wheel: MakeWheel) -> None:
    """595 tasks with deadlines up to 499 ms, some of them equal, are each handed out once, at their tick. The case
    is from Kafka: testTaskExpiration."""
    wheel = make_wheel()
    deadlines = [*range(5), *range(10, 100), *range(100, 500), *range(400, 500)]
    assert len(deadlines) == 595
    for deadline_ms in deadlines:
        wheel.schedule(deadline_ms, deadline_ms)
    seen: Counter[int] = Counter()
    for now_ms in range(601):
        for deadline_ms in tasks(wheel, now_ms):
            assert now_ms == up(deadline_ms, wheel.tick_ms)
            seen[deadline_ms] += 1
    assert seen == Counter(deadlines)
    assert len(wheel) == 0


def test_nothing_is_early_and_nothing_a_tick_late(make_wheel: MakeWheel) -> None:
    """From any start and over several levels, each entry is handed out at the first tick that is not before its
    deadline."""
    for now_ms in (0, 1, 99, 4095, 123_456_789):
        wheel = make_wheel(now_ms)
        for delay_ms in (1, 2, 3, 9, 10, 11, 63, 64, 65, 4095, 4096, 4097, 99_999, 16_777_216):
            deadline_ms = wheel.now_ms + delay_ms
            entry = wheel.schedule(delay_ms, deadline_ms)
            due_ms = up(deadline_ms, wheel.tick_ms)
            assert wheel.next_expiry() == due_ms
            assert wheel.advance(due_ms - 1) == []
            assert wheel.advance(due_ms) == [entry]


def test_the_edges_of_every_block_keep_their_ticks(core: Core) -> None:
    """Entries around each power of the wheel size, and around twice that power, are handed out at their ticks.

    The clock starts at 0, at half of that power, or just before it.
    """
    for wheel_size in (2, 4, 64, 4096):
        for power in range(1, 6):
            edge = wheel_size**power
            for start in {0, edge // 2, edge - 1}:
                wheel = core(start, wheel_size=wheel_size)
                around = {edge - 1, edge, edge + 1, 2 * edge - 1, 2 * edge, 2 * edge + 1}
                deadlines = sorted(deadline_ms for deadline_ms in around if deadline_ms > start)
                for deadline_ms in deadlines:
                    wheel.schedule(deadline_ms, deadline_ms)
                for deadline_ms in deadlines:
                    assert wheel.next_expiry() == deadline_ms
                    assert tasks(wheel, deadline_ms - 1) == []
                    assert tasks(wheel, deadline_ms) == [deadline_ms]


def test_there_is_no_range_to_overflow(make_wheel: MakeWheel) -> None:
    """However far away a deadline is, its entry waits. Kafka's wheel fires it at once; other wheels compute a wrong
    slot."""
    for deadline_ms in (2**31, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 10**18, 10**30):
        waits_however_far(make_wheel(7), deadline_ms)


def waits_however_far(wheel: TimingWheel[Any], deadline_ms: int) -> None:
    wheel.schedule("far", deadline_ms)
    wheel.schedule("near", 5000)
    assert tasks(wheel, 10**6) == ["near"]
    assert wheel.next_expiry() == up(deadline_ms, wheel.tick_ms)
    assert tasks(wheel, up(deadline_ms, wheel.tick_ms) - 1) == []
    assert tasks(wheel, up(deadline_ms, wheel.tick_ms)) == ["far"]


def test_one_jump_hands_everything_out_by_deadline(make_wheel: MakeWheel) -> None:
    """If `advance` skips much time, entries are in the order of ticks, and within a tick in the order of scheduling."""
    wheel = make_wheel()
    rng = random.Random(5)
    deadlines = [rng.randrange(1, 10 ** rng.randrange(1, 7)) for _ in range(3000)]
    for number, deadline_ms in enumerate(deadlines):
        wheel.schedule((up(deadline_ms, wheel.tick_ms), number), deadline_ms)
    handed_out = tasks(wheel, 10**7)
    assert handed_out == sorted(handed_out)
    assert len(handed_out) == 3000


def test_first_come_first_served_also_across_levels(core: Core) -> None:
    """Of two entries of one tick, the older was on a far level and the younger on the lowest. The older one is
    handed out first; in Kafka it is last."""
    for wheel_size in (2, 4, 16, 4096):
        wheel = core(wheel_size=wheel_size)
        deadline_ms = wheel_size**3 + 5
        expected = []
        for now_ms in (0, wheel_size, wheel_size**2, wheel_size**3 - 1, wheel_size**3, wheel_size**3 + 4):
            assert wheel.advance(now_ms) == []
            wheel.schedule(now_ms, deadline_ms)
            expected.append(now_ms)
            wheel.next_expiry()
        assert tasks(wheel, deadline_ms) == expected


def test_the_clock_forwards_when_idle(core: Core) -> None:
    """`advance` moves the clock of an empty wheel too. So a later entry with a near deadline is on the lowest level."""
    wheel = core(wheel_size=64)
    wheel.advance(64**3 + 1)
    wheel.schedule("near", 64**3 + 20)
    counters = wheel.counters
    assert (counters.levels, counters.cascades) == ((1,), 0)
    assert wheel.now_ms == 64**3 + 1


def test_a_clock_that_goes_back_is_clamped(make_wheel: MakeWheel) -> None:
    """If `now_ms` is less than before, the wheel's clock does not change until `now_ms` has caught up.

    Entries that are due by the wheel's clock are handed out.
    """
    wheel = make_wheel()
    wheel.advance(50_000)
    wheel.schedule("later", 50_100)
    assert wheel.advance(10) == []
    assert wheel.now_ms == 50_000 // wheel.tick_ms * wheel.tick_ms
    wheel.schedule("due", 40_000)
    assert tasks(wheel, -1) == ["due"]
    assert tasks(wheel, 60_000) == ["later"]


def test_levels_are_made_on_demand(core: Core) -> None:
    """An entry needs as many levels as its distance from now has digits in base wheel_size."""
    wheel = core(wheel_size=16)
    for power, levels in [(0, (1,)), (1, (1, 1)), (2, (1, 1, 1)), (4, (1, 1, 1, 0, 1))]:
        wheel.schedule(power, 16**power)
        assert wheel.counters.levels == levels


def test_what_a_callback_schedules_for_now_comes_with_the_next_call(make_wheel: MakeWheel) -> None:
    """An entry that is scheduled for now after a call of `advance` is handed out by the next call."""
    wheel = make_wheel(500)
    wheel.schedule("again", 500)
    for _ in range(3):
        assert tasks(wheel, 500) == ["again"]
        wheel.schedule("again", 499)
    assert len(wheel) == 1


def test_an_earlier_deadline_added_later_comes_first(make_wheel: MakeWheel) -> None:
    """An entry that is added later with an earlier deadline is handed out first, over several levels. The case is
    from Tokio: expires_before_last_insert."""
    wheel = make_wheel()
    for deadline_ms in (10**6, 10**5, 10**4, 1000):
        wheel.schedule(deadline_ms, deadline_ms)
        assert wheel.next_expiry() == up(deadline_ms, wheel.tick_ms)
    assert tasks(wheel, 10**7) == [1000, 10**4, 10**5, 10**6]


def test_the_same_task_may_be_scheduled_many_times(make_wheel: MakeWheel) -> None:
    """One task may be in several entries, and may be unhashable. Cancelling one of them does not cancel the others."""
    wheel = make_wheel()
    task: list[int] = []
    entries = [wheel.schedule(task, 100) for _ in range(3)]
    assert entries[1].cancel() is EntryState.CANCELLED
    assert wheel.advance(100) == [entries[0], entries[2]]


def test_a_hundred_thousand_timers_keep_their_ticks(core: Core) -> None:
    """None of 100,000 entries is early, and each is handed out by the first `advance` at or after its tick. The
    case is from Netty: testExecutionOnTime."""
    wheel = core(tick_ms=10, wheel_size=512)
    rng = random.Random(11)
    for _ in range(100_000):
        deadline_ms = rng.randrange(1, 100_000)
        wheel.schedule(deadline_ms, deadline_ms)
    count = 0
    for now_ms in range(0, 100_001, 50):
        for deadline_ms in tasks(wheel, now_ms):
            assert now_ms - 60 < deadline_ms <= now_ms
            count += 1
    assert count == 100_000
