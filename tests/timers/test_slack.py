"""Slack: timers that may run somewhat later share wake-ups."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.timers.deadlines import coalesced


@given(st.integers(-(10**6), 10**18), st.integers(0, 10**15))
def test_the_chosen_moment_lies_within_the_slack_and_none_there_is_rounder(deadline_ms: int, slack_ms: int) -> None:
    """The chosen time is within the slack. No other time within it is rounder, that is, divisible by a higher power
    of two."""
    chosen = coalesced(deadline_ms, slack_ms)
    assert deadline_ms <= chosen <= deadline_ms + slack_ms
    if deadline_ms > 0:
        granule = chosen & -chosen
        next_rounder = -(-deadline_ms // (2 * granule)) * 2 * granule
        assert next_rounder > deadline_ms + slack_ms


def test_timers_with_slack_meet(virtual: Any) -> None:
    """A hundred timers within 100 ms, each with 128 ms of slack, need at most eight wake-ups instead of a hundred."""
    timer, late = virtual.timer(), []
    for delay_ms in range(1000, 1100):
        due_ms = virtual.now_ms() + delay_ms
        timer.schedule(delay_ms, lambda due_ms=due_ms: late.append(virtual.now_ms() - due_ms), slack_ms=128)
    virtual.pass_ms(1)
    before = timer.statistics.wakeups
    virtual.pass_ms(2000)
    assert len(late) == 100
    assert all(0 <= ms <= 128 for ms in late)
    assert timer.statistics.wakeups - before <= 8


def test_slack_holds_for_what_was_moved_and_what_recurs(virtual: Any) -> None:
    """Slack also applies to a moved timer and to each run of a recurring one. It does not add up over the runs."""
    timer, beats, moved = virtual.timer(), [], []
    timer.every(100, lambda: beats.append(virtual.now_ms()), slack_ms=30)
    handle = timer.schedule(50, lambda: moved.append(virtual.now_ms()), slack_ms=64)
    handle.touch(200)
    virtual.pass_ms(10_030)
    assert len(beats) == 100
    assert all(0 <= at - 100 * beat <= 30 for beat, at in enumerate(beats, 1))
    assert 200 <= moved[0] <= 264
