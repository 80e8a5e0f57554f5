"""A scheduler whose executors are all full stops claiming. If only some of its executors are full, it stops for a
moment."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.schedulers.claiming_source import BACK_AFTER_S, PACE_S, PATIENCE_S, InFlightLimits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def occurrence(executor: str) -> Occurrence:
    job: Any = SimpleNamespace(executor=executor)
    return Occurrence(job, "a", datetime(2026, 1, 1, tzinfo=UTC), 1)


def filled(limits: InFlightLimits, executor: str, count: int) -> list[Occurrence]:
    occurrences = [occurrence(executor) for _ in range(count)]
    assert all(limits.admit(each) for each in occurrences)
    return occurrences


def test_an_executor_alone_is_waited_for() -> None:
    """If the only executor is full, claiming waits without limit. When enough jobs have ended, the claiming thread is
    woken once."""
    clock = Clock()
    limits = InFlightLimits(["one"], 64, clock)
    assert limits.room() == (64, None)
    occurrences = filled(limits, "one", 64)
    assert not limits.admit(occurrence("one"))
    assert limits.room() == (0, None)
    clock.now_s += 100
    assert limits.room() == (0, None)
    assert [limits.leave(each) for each in occurrences[:4]] == [False, True, False, False]
    assert limits.room() == (4, None)
    assert len(limits) == 60


def test_what_is_claimed_fits_whichever_executor_it_is_for() -> None:
    """The scheduler claims at most as many jobs as the executor with the least room can take."""
    limits = InFlightLimits(["one", "two"], 64, Clock())
    filled(limits, "one", 60)
    assert limits.room() == (4, None)


def test_a_slow_executor_does_not_hold_up_the_others() -> None:
    """If one of two executors stays full for `PATIENCE_S`, it counts as slow, until half of its limit is free. Claiming
    does not wait for a slow executor, and jobs for it are put back while it is full."""
    clock = Clock()
    limits = InFlightLimits(["slow", "other"], 64, clock)
    occurrences = filled(limits, "slow", 64)
    assert limits.room() == (0, PATIENCE_S)
    clock.now_s += PATIENCE_S / 2
    assert limits.room() == (0, PATIENCE_S / 2)
    clock.now_s += PATIENCE_S
    assert limits.room() == (64, None)
    assert not limits.admit(occurrence("slow"))
    assert limits.admit(occurrence("other"))
    for each in occurrences[:4]:
        limits.leave(each)
    assert limits.room() == (4, None)
    filled(limits, "slow", 4)
    assert limits.room() == (63, None)  # the executor is known to be slow: claiming does not wait for it again
    for each in occurrences[4:40]:
        limits.leave(each)
    limits.room()
    filled(limits, "slow", 36)
    assert limits.room()[0] == 0  # the executor counts as quick again


def test_what_is_sent_back_stays_away_the_longer_the_more_there_is() -> None:
    """The more jobs have been put back, the later the next ones are due again. So the rate of claims is bounded for any
    backlog."""
    clock = Clock()
    limits = InFlightLimits(["one", "two"], 64, clock)
    assert limits.put_back(200) == BACK_AFTER_S
    assert limits.put_back(100) == BACK_AFTER_S + 200 * PACE_S
    clock.now_s += BACK_AFTER_S + 1
    assert limits.put_back(1) == BACK_AFTER_S


def test_everybody_full_is_waited_for() -> None:
    """If all executors are full, claiming waits without limit, because each claimed job would have to be put back."""
    clock = Clock()
    limits = InFlightLimits(["one", "two"], 64, clock)
    occurrences = filled(limits, "one", 64) + filled(limits, "two", 64)
    assert limits.room() == (0, None)
    clock.now_s += 10
    assert limits.room() == (0, None)
    assert [limits.leave(each) for each in occurrences[64:66]] == [False, True]
