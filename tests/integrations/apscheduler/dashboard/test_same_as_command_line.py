"""`wheel-sched aps` and the dashboard change the same jobs. If they do not change a job, both give the same reason."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_apscheduler.entries import JOB_STATES

from tests.cli.running import Cli, isolate
from wheel_sched.store import open_store

pytestmark = pytest.mark.real

COMMANDS = {
    "run-now": "run-job-now",
    "pause": "pause-job",
    "resume": "resume-job",
    "delete": "delete-job",
    "release": "release-job",
}
REPEATED = {("pause", "paused"), ("resume", "scheduled"), ("resume", "in_flight")}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def jobstore(redis_url: str) -> Iterator[RedisWheelJobStore]:
    made = RedisWheelJobStore(redis_url)
    yield made
    made.shutdown()


@pytest.fixture
def visitor(open_browser: Any, redis_url: str) -> Iterator[Any]:
    with open_store(redis_url) as store:
        yield open_browser(store, {"store": redis_url})


@pytest.mark.parametrize("state", [*JOB_STATES, "absent"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_jobs_can_be_changed(
    redis_url: str,
    jobstore: RedisWheelJobStore,
    visitor: Any,
    producer: Producer,
    job: Any,
    far: datetime,
    command: str,
    state: str,
) -> None:
    """A command changes a job exactly if the preview counts it; otherwise both say why, and the job stays as it is.

    A command may also be repeated: it pauses a paused job again.
    """
    producer.add_job(job, "interval", id="other", hours=1, next_run_time=far, timezone="UTC")
    if state != "absent":
        producer.add_job(job, "interval", id="a", hours=1, next_run_time=far, timezone="UTC")
    if state == "paused":
        jobstore.pause("a")
    elif state == "quarantined":
        jobstore.store.hold(["a"], "quarantine: no such function")
    elif state == "in_flight":
        jobstore.store.reschedule(["a"], 0)
        assert [one.id for one in jobstore.store.claim(1, lease_ms=60_000).items] == ["a"]
    before = jobstore.store.get(["a"])
    counted = visitor.preview(COMMANDS[command], job=["a"])
    more = ["--yes"] if command in ("delete", "release") else []
    done = Cli(redis_url)("aps", command, "a", *more, code=None)
    if counted["count"]:
        assert done.exit_code == 0, done.output
        assert jobstore.store.get(["a"]) != before
    elif (command, state) in REPEATED:
        assert done.exit_code == 0, done.output
    else:
        assert jobstore.store.get(["a"]) == before
        assert done.exit_code == 1 or "0 jobs of 1 released" in done.output
        why = counted["warning"].partition("left: ")[2]
        assert why
        assert why in done.output or command == "release"


@pytest.mark.parametrize("tag", ["", "nightly"])
@pytest.mark.parametrize("state", ["scheduled", "paused", "quarantined"])
def test_a_search_finds_the_same_jobs(
    redis_url: str,
    jobstore: RedisWheelJobStore,
    visitor: Any,
    producer: Producer,
    job: Any,
    far: datetime,
    state: str,
    tag: str,
) -> None:
    """The command and the dashboard find the same jobs by state and by tag."""
    for number in range(6):
        producer.add_job(job, "interval", id=f"j{number}", hours=1, next_run_time=far, timezone="UTC")
        jobstore.set_tags(f"j{number}", ["nightly"] if number % 2 else ["daily"])
    for number in (0, 1):
        jobstore.pause(f"j{number}")
    jobstore.store.hold(["j2", "j3"], "quarantine: no such function")
    options = ["--tag", tag] if tag else []
    told = [one["id"] for one in Cli(redis_url).objects("aps", "list", "--state", state, *options)]
    found = visitor.call("/jobs", state=state, tag=tag)["jobs"]
    assert sorted(told) == sorted(one["id"] for one in found)
    assert len(told) == (1 if tag else 2)
