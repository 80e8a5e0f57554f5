"""A countdown is a length of time. Changes of the wall clock do not change it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import Celery
from wheel_sched_celery.hold import bulk

if TYPE_CHECKING:
    import pytest


def test_a_countdown_over_the_end_of_summer_time_is_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin, a countdown of two hours from 02:30 summer time ends at 03:30 winter time."""
    now = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return now.astimezone(tz)

    monkeypatch.setattr(bulk, "datetime", Then)
    with Celery("countdown", set_as_current=False) as app:
        app.conf.timezone = "Europe/Berlin"
        (one,) = bulk._tasks(app, [()], 7200, None)
    assert one.eta_ms == int(now.timestamp() + 7200) * 1000
