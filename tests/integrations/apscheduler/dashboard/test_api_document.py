"""The OpenAPI document describes all calls and actions about APScheduler jobs, and each of them answers as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.dashboard.documented import DocumentedApi

if TYPE_CHECKING:
    from datetime import datetime

    from wheel_sched_apscheduler import Producer, RedisWheelJobStore


def test_every_call_and_action_answers_as_the_document_says(
    browser: Any, producer: Producer, jobstore: RedisWheelJobStore, job: Any, far: datetime
) -> None:
    """The test runs, pauses, resumes, releases and deletes a job, which is also put into quarantine."""
    producer.add_job(job, "interval", id="a", hours=1, next_run_time=far, timezone="UTC")
    api = DocumentedApi(browser.client)
    assert api.get("/jobs", {"state": "scheduled", "limit": "5"})["jobs"]
    for path in ("/session", "/overview", "/members", "/audit", "/jobs/in-flight", "/jobs/history"):
        api.get(path)
    assert api.get("/jobs/{id}", id="a")["next_runs_ms"]
    api.absent("/jobs/{id}")
    for action in ("run-job-now", "pause-job", "resume-job"):
        api.act(action, job=["a"])
    jobstore.store.hold(["a"], "quarantine: no such function")
    api.act("release-job", jobs="a\n")
    api.act("delete-job", job=["a"])
    assert not api.left_out
