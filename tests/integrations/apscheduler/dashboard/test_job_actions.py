"""An action changes as many jobs as its preview said, and no job that has changed since the preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store import DelayStore

if TYPE_CHECKING:
    from datetime import datetime

    from wheel_sched_apscheduler import Producer, RedisWheelJobStore

Browser = Any


@pytest.fixture
def add(producer: Producer, far: datetime, job: Any) -> Any:
    """Adds a job that runs every hour."""

    def add(job_id: str, **options: Any) -> str:
        given = {"hours": 1, "next_run_time": far, "timezone": "UTC", **options}
        return producer.add_job(job, "interval", id=job_id, **given)

    return add


def quarantine(jobstore: RedisWheelJobStore, job_id: str) -> None:
    jobstore.store.hold([job_id], "quarantine: no such function")


def state_of(jobstore: RedisWheelJobStore, job_id: str) -> str | None:
    entry = jobstore.get_entry(job_id)
    return None if entry is None else entry.state


def run_once(jobstore: RedisWheelJobStore, job_id: str, far: datetime) -> None:
    """Do to the record of a job what a run does."""
    from datetime import timedelta

    entry = jobstore.get_entry(job_id)
    assert entry is not None
    assert entry.next_run_time is not None
    jobstore._move(job_id, entry.next_run_time + timedelta(hours=1), None)


def test_each_change_does_what_its_preview_says(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore, far: datetime
) -> None:
    """The changes are run now, pause, resume, release and delete. A job in a wrong state is not changed, and the
    preview says why.
    """
    for job_id in ("one", "two", "three"):
        add(job_id)
    assert browser.act("pause-job", job=["one", "two"])["words"] == "2 jobs paused"
    assert (state_of(jobstore, "one"), state_of(jobstore, "three")) == ("paused", "scheduled")
    found = browser.preview("pause-job", job=["one", "three", "nobody"])
    assert (found["count"], found["words"]) == (1, "pause 1 job")
    assert "it is paused" in found["warning"]
    assert "there is no such job" in found["warning"]
    assert browser.act("resume-job", job=["one"])["done"] == 1
    assert state_of(jobstore, "one") == "scheduled"
    assert browser.act("run-job-now", jobs="two\r\nthree\n\n")["words"] == "2 jobs due now"
    for job_id in ("two", "three"):
        entry = jobstore.get_entry(job_id)
        assert entry is not None
        assert entry.next_run_time is not None
        assert entry.next_run_time < far
    quarantine(jobstore, "three")
    assert browser.preview("run-job-now", job=["three"])["count"] == 0
    assert browser.act("release-job", job=["three"])["words"] == "1 job released"
    assert state_of(jobstore, "three") == "scheduled"
    assert browser.act("delete-job", job=["one", "two", "three"])["words"] == "3 jobs deleted"
    assert jobstore.count() == 0


@pytest.mark.parametrize("action", ["run-job-now", "pause-job", "delete-job"])
def test_a_change_is_refused_when_the_job_has_changed(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore, far: datetime, action: str
) -> None:
    """A job that was paused, that has run, or that is gone since the preview is not touched; the answer says so."""
    add("a")
    for change in (lambda: run_once(jobstore, "a", far), lambda: jobstore.pause("a"), lambda: jobstore.remove_job("a")):
        found = browser.preview(action, job=["a"])
        change()
        before = jobstore.store.get(["a"])
        answer = browser.execute(action, found["token"], 409, job=["a"])
        assert answer["error"]["kind"] == "ChangedMeanwhile"
        assert jobstore.store.get(["a"]) == before


@pytest.mark.parametrize(("action", "held"), [("resume-job", "paused"), ("release-job", "quarantined")])
def test_a_held_job_that_has_changed_is_left(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore, action: str, held: str
) -> None:
    """A job that somebody else has resumed or released is not touched again."""
    add("a")
    if held == "paused":
        jobstore.pause("a")
    else:
        quarantine(jobstore, "a")
    found = browser.preview(action, job=["a"])
    jobstore.set_tags("a", ["other"])
    assert browser.execute(action, found["token"], 409, job=["a"])["error"]["kind"] == "ChangedMeanwhile"
    assert state_of(jobstore, "a") == held


@pytest.mark.parametrize("action", ["run-job-now", "pause-job", "delete-job"])
def test_a_frequent_job_can_be_changed_although_it_runs(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore, far: datetime, action: str
) -> None:
    """A job that runs every second is the same job after each run, unless its definition has changed."""
    add("often", hours=0, seconds=1)
    found = browser.preview(action, job=["often"])
    run_once(jobstore, "often", far)
    assert browser.execute(action, found["token"], job=["often"])["done"] == 1


def test_a_new_definition_of_a_frequent_job_is_a_change(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore
) -> None:
    """A job with other arguments is not the same job any more, even if it runs every second."""
    add("often", hours=0, seconds=1)
    found = browser.preview("delete-job", job=["often"])
    add("often", hours=0, seconds=1, args=[1], replace_existing=True)
    browser.execute("delete-job", found["token"], 409, job=["often"])
    assert jobstore.count() == 1


@pytest.mark.parametrize("action", ["run-job-now", "pause-job", "resume-job", "release-job", "delete-job"])
def test_a_job_that_changes_during_the_change_is_left(
    browser: Browser, add: Any, jobstore: RedisWheelJobStore, far: datetime, action: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Between the last look and the change, another process changes the job. Its change stays."""
    from wheel_sched_apscheduler.dashboard import job_actions

    add("a")
    if action == "resume-job":
        jobstore.pause("a")
    if action == "release-job":
        quarantine(jobstore, "a")
    found = browser.preview(action, job=["a"])
    execute = job_actions._execute

    def late(*args: Any) -> Any:
        jobstore.set_tags("a", ["mine"])
        return execute(*args)

    monkeypatch.setattr(job_actions, "_execute", late)
    done = browser.execute(action, found["token"], job=["a"])
    assert (done["done"], sum(done["left"].values())) == (0, 1)
    assert jobstore.find("mine") == ["a"]


def test_rights_are_needed(memory: DelayStore, open_browser: Any, add: Any) -> None:
    """A reader changes nothing and sees no buttons; an operator deletes nothing."""
    add("a")
    reader, operator = (open_browser(memory, {"store": "memory:"}, right=right) for right in ("read", "operate"))
    assert "actions/" not in reader.page("/jobs") + reader.page("/jobs/a")
    for action in ("run-job-now", "pause-job", "resume-job", "release-job", "delete-job"):
        assert reader.preview(action, 403, job=["a"])["error"]["kind"] == "NotAllowed"
    pages = operator.page("/jobs") + operator.page("/jobs/a")
    assert "actions/pause-job" in pages
    assert "actions/delete-job" not in pages
    operator.preview("delete-job", 403, job=["a"])
    assert operator.act("pause-job", job=["a"])["done"] == 1


def test_a_request_must_name_jobs(browser: Browser) -> None:
    """A request without ids, or with too many, is refused."""
    assert "which jobs" in browser.preview("pause-job", 400)["error"]["message"]
    many = [str(number) for number in range(501)]
    assert "at most 500" in browser.preview("pause-job", 400, job=many)["error"]["message"]


def test_a_signed_job_is_not_changed_without_the_secret(
    browser: Browser, memory: DelayStore, job: Any, far: datetime
) -> None:
    """The preview says that the secret is missing. The job can still be deleted."""
    from wheel_sched_apscheduler import Producer, RedisWheelJobStore

    signed = Producer(RedisWheelJobStore(store=memory, secret="a secret of many letters"), timezone="UTC")
    signed.add_job(job, "interval", id="signed", hours=1, next_run_time=far)
    assert "signed" in browser.page("/jobs")
    found = browser.preview("pause-job", job=["signed"])
    assert found["count"] == 0
    assert "it is signed" in found["warning"]
    assert browser.act("delete-job", job=["signed"])["done"] == 1


def test_a_damaged_record_can_only_be_deleted(browser: Browser, memory: DelayStore) -> None:
    """A record that cannot be read is shown, and is not rewritten."""
    from wheel_sched.store import Item

    memory.schedule([Item("torn", 2_208_988_800_000, b"not a job", "job")])
    found = browser.preview("run-job-now", job=["torn"])
    assert found["count"] == 0
    assert "not a stored job" in found["warning"]
    assert browser.act("delete-job", job=["torn"])["done"] == 1
