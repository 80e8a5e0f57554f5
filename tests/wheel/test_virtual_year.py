"""A wheel runs through a virtual year in seconds. Every timer fires on its tick, over all levels that a year needs."""

from __future__ import annotations

import random
from typing import Any

from wheel_sched.wheel import TimerTaskEntry, TimingWheel

Core = type[TimingWheel[Any]]

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
ONE_SHOTS = 48_000
RECURRING = 2_500


def test_a_year_of_timers_fires_every_one_on_its_tick(core: Core) -> None:
    """A wheel that is advanced only to `next_expiry` runs 50,500 one-shot and recurring timers for a year.

    None is early, late, lost or doubled.
    """
    rng = random.Random(365)
    wheel = core(wheel_size=64)
    expected_firings = ONE_SHOTS
    for _ in range(ONE_SHOTS):
        # Spread over every scale: seconds to a year.
        deadline_ms = rng.randrange(1, rng.choice([10**4, 10**6, DAY_MS, 30 * DAY_MS, YEAR_MS]) + 1)
        wheel.schedule((deadline_ms, None), deadline_ms)
    rounds: dict[TimerTaskEntry[Any], int] = {}
    for _ in range(RECURRING):
        period_ms = rng.randrange(20 * DAY_MS, 120 * DAY_MS)
        rounds[wheel.schedule((period_ms, period_ms), period_ms)] = 1
        expected_firings += YEAR_MS // period_ms
    levels_used = {level for level, count in enumerate(wheel.counters.levels) if count}
    assert len(levels_used) >= 5
    assert len(wheel) == ONE_SHOTS + RECURRING >= 50_000

    firings = recurring_firings = 0
    while (now_ms := wheel.next_expiry()) is not None and now_ms <= YEAR_MS:
        due = wheel.advance(now_ms)
        assert due
        firings += len(due)
        for entry in due:
            assert entry.task is not None
            first_ms, period_ms = entry.task
            if period_ms is None:
                assert now_ms == first_ms
            else:
                # The n-th firing at n periods from the start, to the millisecond: no drift.
                assert now_ms == rounds[entry] * period_ms
                rounds[entry] += 1
                recurring_firings += 1
                entry.reschedule(rounds[entry] * period_ms)

    assert firings == expected_firings
    assert recurring_firings >= 2 * RECURRING
    assert len(wheel) == RECURRING  # each waits for its first firing of next year
    assert wheel.counters.empty_wakeups == 0
