"""Random histories, compared with a plain dictionary: no timer is early, lost or doubled, and the order is kept."""

from __future__ import annotations

import random
from typing import Any

import pytest

from wheel_sched.wheel import EntryState

STEPS = 400


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tick_ms", [1, 8])
def test_a_random_history_runs_as_a_sorted_list_would(virtual: Any, seed: int, tick_ms: int) -> None:
    """A random history schedules with and without a key, cancels, reschedules and advances. The timers run as the
    model says."""
    chance = random.Random(seed * 100 + tick_ms)
    timer, fired = virtual.timer(tick_ms, 4), []
    waiting: dict[int, tuple[int, int]] = {}  # number -> (tick at which it is due, turn in which it was scheduled)
    handles: dict[int, Any] = {}
    keys: dict[str, int] = {}

    def due(delay_ms: int) -> int:
        return -(-(virtual.now_ms() + delay_ms) // tick_ms)

    for turn in range(STEPS):
        move = chance.random()
        # Above 0: on threads a timer that is due at once runs at once, which a model cannot foresee.
        delay_ms = chance.choice([1, 1, 5, chance.randrange(1, 100), chance.randrange(1, 10_000)])
        if move < 0.45:
            key = chance.choice([None, None, "a", "b", "c"])
            if key is not None and key in keys:
                waiting.pop(keys[key], None)
            handles[turn] = timer.schedule(delay_ms, fired.append, turn, key=key)
            waiting[turn] = (due(delay_ms), turn)
            if key is not None:
                keys[key] = turn
        elif move < 0.6 and handles:
            number = chance.choice(sorted(handles))
            expected = EntryState.CANCELLED if number in waiting else handles[number].state
            assert handles[number].cancel() is expected
            waiting.pop(number, None)
        elif move < 0.75 and handles:
            number = chance.choice(sorted(handles))
            key = handles[number].key
            taken = key is not None and keys[key] != number and keys[key] in waiting
            cancelled = handles[number].state is EntryState.CANCELLED
            assert handles[number].reschedule(delay_ms) is not (cancelled or taken)
            if not (cancelled or taken):
                waiting[number] = (due(delay_ms), turn)
                if key is not None:
                    keys[key] = number
        else:
            virtual.pass_ms(chance.choice([0, 1, 3, 40, 600]))
            now = virtual.now_ms() // tick_ms
            expected_runs = [n for n, _ in sorted(waiting.items(), key=lambda item: item[1]) if waiting[n][0] <= now]
            assert len(fired) == len(set(fired)) == len(expected_runs)
            assert [waiting[n][0] for n in fired] == [waiting[n][0] for n in expected_runs], "not by deadline"
            in_order = [n for n in expected_runs if waiting[n][1] == n]  # timers that were never moved
            assert [n for n in fired if waiting[n][1] == n] == in_order, "not first come, first served"
            for number in fired:
                del waiting[number]
            fired.clear()
        assert len(timer) >= len(waiting) - sum(tick * tick_ms <= virtual.now_ms() for tick, _ in waiting.values())
    virtual.pass_ms(20_000)
    assert sorted(fired) == sorted(waiting)
    assert len(timer) == 0
