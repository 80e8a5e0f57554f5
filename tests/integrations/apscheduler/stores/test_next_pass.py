"""A job that is stored during a scheduler's pass gets a pass at its own due time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wheel_sched_apscheduler.stores.next_pass import NextPass

if TYPE_CHECKING:
    import pytest


def test_a_due_time_that_is_reported_during_a_pass_is_planned() -> None:
    """During a pass, no report wakes the scheduler. The next pass is at the earliest reported due time, if that is
    before the planned time."""
    next_pass = NextPass()
    with next_pass:
        assert [next_pass.earlier(due_ms) for due_ms in (500, 300, 900)] == [False] * 3
        assert next_pass.plan(1_000) == 300
    with next_pass:
        assert next_pass.plan(1_000) == 1_000


def test_a_due_time_that_is_reported_between_passes_wakes_the_scheduler_once() -> None:
    """A reported due time that is earlier than the next planned pass wakes the scheduler, and becomes the new plan.

    So neither a later due time nor the same one wakes the scheduler again.
    """
    next_pass = NextPass()
    assert not next_pass.earlier(5)  # no pass was made: the first one comes anyway
    with next_pass:
        next_pass.plan(1_000)
    next_pass.sooner(800)
    assert [next_pass.earlier(due_ms) for due_ms in (800, 700, 700)] == [False, True, False]


def test_a_pass_that_fails_plans_nothing() -> None:
    """A pass fails, so the old plan stays. A due time that is then reported, and is earlier, wakes the scheduler."""
    next_pass = NextPass()
    with next_pass:
        next_pass.plan(1_000)
    with next_pass:
        assert not next_pass.earlier(500)  # the store did not answer: there is no plan
    assert next_pass.earlier(600)


def test_a_job_that_is_added_after_the_claim_of_a_pass_sets_the_alarm(
    open_fake: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is stored after a pass has claimed its jobs. So the next pass is at the due time of the stored job."""
    store = open_fake()
    now = datetime.now(UTC)
    soon = now + timedelta(seconds=2)
    store._scheduler = SimpleNamespace(running=True, wakeup=lambda: None, _executors={})
    store.claim_batch(now)
    store._wake_for(0)
    load = store.tracker.load

    def load_late(*arguments: Any, **options: Any) -> Any:
        store._wake_for(int(soon.timestamp() * 1000))  # as the listener does
        return load(*arguments, **options)

    monkeypatch.setattr(store.tracker, "load", load_late)
    wake_at = store.claim_batch(now).wake_at
    assert wake_at is not None
    assert abs(wake_at - soon) < timedelta(milliseconds=2)
