"""The next run times are computed from the trigger, without code of users, and in bounded time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler.dashboard.strip import strip
from wheel_sched_apscheduler.management.run_forecast import next_runs, runs_until
from wheel_sched_apscheduler.run_times import to_ms

NOW = datetime(2026, 3, 27, 12, tzinfo=UTC)
NOW_MS = to_ms(NOW)
HOUR = timedelta(hours=1)


def iso(times_ms: Any) -> list[str]:
    return [datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()[:16] for at_ms in times_ms]


def test_the_next_runs_follow_the_trigger() -> None:
    """The first is the stored next run time. A daily job keeps its hour when the clocks change."""
    trigger = CronTrigger.from_crontab("30 2 * * *", "Europe/Berlin")
    first = datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    found = next_runs(trigger, first, NOW_MS, 4)
    assert iso(found.times_ms) == ["2026-03-28T01:30", "2026-03-29T01:30", "2026-03-30T00:30", "2026-03-31T00:30"]
    assert (found.more, found.why_not) == (True, "")


def test_jitter_is_left_out() -> None:
    """The forecast of a trigger with jitter has no random part, so it is the same each time."""
    trigger = IntervalTrigger(hours=1, jitter=1800, timezone="UTC")
    found = next_runs(trigger, NOW, NOW_MS, 3)
    assert found.times_ms == [to_ms(NOW), to_ms(NOW + HOUR), to_ms(NOW + 2 * HOUR)]
    assert trigger.jitter == 1800


@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        (None, "its trigger is not one that can be computed here"),
        (object(), "its trigger is not one that can be computed here"),
        (OrTrigger([IntervalTrigger(hours=1, timezone="UTC")] * 30), "its trigger is not one"),
    ],
)
def test_a_trigger_that_is_not_built_in_is_not_asked(trigger: Any, why: str) -> None:
    """If the trigger's class is not APScheduler's, only the stored next run time is known."""
    found = next_runs(trigger, NOW, NOW_MS)
    assert found.times_ms == [NOW_MS]
    assert found.why_not.startswith(why)


def test_a_paused_job_has_no_next_runs() -> None:
    """The forecast of a paused job has no runs, and says why."""
    assert next_runs(IntervalTrigger(hours=1), None, NOW_MS) == ((), False, "it is paused")


def test_a_cron_trigger_that_never_comes_ends_soon() -> None:
    """A trigger for 30 February is not searched for up to the year 9999."""
    found = next_runs(CronTrigger(month=2, day=30, timezone="UTC"), NOW, NOW_MS)
    assert (found.times_ms, found.more) == ([NOW_MS], False)


def test_parts_that_never_agree_end_soon() -> None:
    """An and-trigger whose parts have no common time is not searched for ever, and the stored time is still shown."""
    parts = [CronTrigger(hour=1, timezone="UTC"), CronTrigger(hour=2, timezone="UTC")]
    assert next_runs(AndTrigger(parts), NOW, NOW_MS).times_ms == [NOW_MS]


def test_runs_until_a_moment_are_bounded() -> None:
    """For a job that runs every second, the forecast has no more run times than the caller asks for."""
    found = runs_until(IntervalTrigger(seconds=1, timezone="UTC"), NOW, NOW_MS + 86_400_000, 300)
    assert (len(found.times_ms), found.more) == (300, True)
    found = runs_until(IntervalTrigger(hours=6, timezone="UTC"), NOW, NOW_MS + 86_400_000, 300)
    assert (len(found.times_ms), found.more) == (5, False)
    assert runs_until(IntervalTrigger(hours=6, timezone="UTC"), NOW + 48 * HOUR, NOW_MS, 300).times_ms == ()


def test_a_strip_marks_each_run_once() -> None:
    """A strip is a picture of a span of time. It leaves out runs outside of the span, and escapes its texts."""
    made = str(strip([0, 50, 50, 100, 101, -1], 0, 100, ("now", "<b>"), 'a "strip"'))
    assert made.count("<rect") == 3
    assert "&lt;b&gt;" in made
    assert 'aria-label="a &#34;strip&#34;"' in made
    assert "style" not in made
