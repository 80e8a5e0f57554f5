"""Compares each core with a copy of Kafka's wheel: both hand out the same timers. A core does so in order and never
early."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.kafka_structure import SystemTimer
from wheel_sched.wheel import CORES, TimingWheel

Core = type[TimingWheel[Any]]


@pytest.mark.parametrize("tick_ms", [1, 20])
def test_what_kafka_fires_we_fire_never_before_its_time(core: Core, tick_ms: int) -> None:
    """With random timers, cancels and clock steps, a core and Kafka's wheel hand out the same timers, within a tick.

    The core hands them out in order and never early.
    """
    rng = random.Random(tick_ms)
    theirs, ours = SystemTimer(tick_ms=tick_ms), core(tick_ms=tick_ms)
    pairs: dict[int, tuple[Any, Any, int]] = {}
    fired: tuple[set[int], set[int]] = (set(), set())
    now_ms = number = 0
    for _ in range(400):
        for _ in range(rng.randrange(20)):
            number += 1
            deadline_ms = now_ms + rng.randrange(10 ** rng.randrange(1, 7))
            pairs[number] = (theirs.schedule(number, deadline_ms), ours.schedule(number, deadline_ms), deadline_ms)
        for victim in rng.sample(sorted(pairs.keys() - fired[0] - fired[1]), k=min(len(pairs) // 20, 3)):
            for entry in pairs.pop(victim)[:2]:
                entry.cancel()
        now_ms += rng.choice([1, 7, 400, 9000])
        fired[0].update(entry.task for entry in theirs.advance(now_ms))
        handed_out = [entry.task for entry in ours.advance(now_ms)]
        fired[1].update(handed_out)
        # Kafka's wheel rounds deadlines down and ours rounds up, so Kafka's may already have fired timers of this tick.
        assert fired[1] <= fired[0]
        assert all(now_ms - now_ms % tick_ms < pairs[task][2] <= now_ms + tick_ms for task in fired[0] - fired[1])
        ticks = [-(-pairs[task][2] // tick_ms) for task in handed_out]
        assert ticks == sorted(ticks)
        assert all(pairs[task][2] <= now_ms for task in handed_out)
    end_ms = now_ms + 10**7
    fired[0].update(entry.task for entry in theirs.advance(end_ms))
    fired[1].update(entry.task for entry in ours.advance(end_ms))
    assert fired[0] == fired[1] == pairs.keys()
    assert len(theirs) == len(ours) == 0


def test_the_oracle_has_kafkas_faults() -> None:
    """The copy of Kafka's wheel rounds deadlines down, so it fires early, and it swaps two timers of one tick. The
    cores do neither."""
    timer = SystemTimer(tick_ms=20)
    timer.schedule("due at 39", 39)
    assert [entry.task for entry in timer.advance(20)] == ["due at 39"]
    timer = SystemTimer()
    timer.schedule("first", 400)
    timer.advance(385)
    timer.schedule("wakes the clock", 390)
    timer.advance(390)
    timer.schedule("second", 400)
    assert [entry.task for entry in timer.advance(400)] == ["second", "first"]


def test_all_cores_answer_alike() -> None:
    """All cores return the same values in random histories.

    A history consists of the calls `schedule`, `cancel`, `reschedule`, `next_expiry` and `advance`.
    """
    for seed in range(150):
        rng = random.Random(seed)
        shape = rng.choice([{}, {"wheel_size": 4}, {"wheel_size": 64}, {"tick_ms": 7, "wheel_size": 16}])
        wheels = [core(**shape) for core in CORES.values()]
        entries: list[list[Any]] = []
        now_ms = 0
        for number in range(300):
            what, delay_ms = rng.randrange(8), rng.randrange(10 ** rng.randrange(1, 6))
            if what < 3 or not entries:
                entries.append([wheel.schedule(number, now_ms + delay_ms) for wheel in wheels])
            elif what < 5:
                victim = entries.pop(rng.randrange(len(entries)))
                assert len({entry.cancel() for entry in victim}) == 1
            elif what == 5:
                moved = rng.choice(entries)
                assert len({entry.reschedule(now_ms + delay_ms) for entry in moved}) == 1
            elif what == 6:
                assert len({wheel.next_expiry() for wheel in wheels}) == 1
            else:
                now_ms += rng.choice([1, 7, 400, 9000])
                limit = rng.choice([None, 1, 3])
                answers = [[entry.task for entry in wheel.advance(now_ms, limit)] for wheel in wheels]
                assert all(answer == answers[0] for answer in answers)
                assert len({wheel.now_ms for wheel in wheels}) == 1
        assert all(wheel.snapshot() == wheels[0].snapshot() for wheel in wheels)
