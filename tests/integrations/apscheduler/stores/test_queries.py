"""Jobs in a shared store are listed and changed without loading them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Finish, Producer, WheelJobStore
from wheel_sched_apscheduler.codec import Forbidden

from wheel_sched.errors import Rejected

OLD = datetime(2016, 5, 3, tzinfo=UTC)
FAR = datetime(2040, 1, 1, tzinfo=UTC)


def replace_ref(store: Any, job_id: str, new: str) -> None:
    """Store a reference to a function that does not exist, as after a deployment that renamed the function."""
    from dataclasses import replace

    found = store.store.get([job_id])[0]
    old = store.codec.head(job_id, found.body).func
    store.store.replace(replace(found.item(), body=found.body.replace(old.encode(), new.encode())), keep_due=True)


def test_jobs_are_counted_and_listed_by_state(shared_store: Any, make_job: Any) -> None:
    """Jobs are counted by state, listed page by page, and found by due time, without an import of their code."""
    store = shared_store
    store.add_jobs([make_job(FAR + timedelta(seconds=n), id=f"j{n:02d}", name=f"n{n}") for n in range(7)])
    store.add_job(make_job(None, id="paused"))
    assert (store.count(), store.count("scheduled"), store.count("paused"), store.count("quarantined")) == (8, 7, 1, 0)
    page = store.iter_jobs(limit=3)
    seen = [entry.id for entry in page.jobs]
    while page.cursor is not None:
        page = store.iter_jobs(page.cursor, limit=3)
        seen += [entry.id for entry in page.jobs]
    assert seen == [f"j{n:02d}" for n in range(7)]
    (entry,) = store.iter_jobs(state="paused").jobs
    assert (entry.id, entry.state, entry.next_run_time, entry.trigger[:5]) == ("paused", "paused", None, "date[")
    assert [entry.id for entry in store.due_between(FAR + timedelta(seconds=2), FAR + timedelta(seconds=3))] == [
        "j02",
        "j03",
    ]
    assert len(list(store.entries())) == 8
    with pytest.raises(Rejected):
        store.iter_jobs(state="nonsense")
    with pytest.raises(Rejected):
        store.iter_jobs("nonsense")


def test_many_jobs_are_added_and_removed_in_few_calls(shared_store: Any, make_job: Any) -> None:
    """`add_jobs` returns the ids that already exist, and does not change their jobs. `remove_jobs` returns how many it
    removed."""
    jobs = [make_job(FAR, id=f"j{n}") for n in range(601)]
    assert shared_store.add_jobs(jobs[:5]) == []
    assert shared_store.add_jobs(jobs) == [f"j{n}" for n in range(5)]
    assert shared_store.count() == 601
    assert shared_store.remove_jobs([f"j{n}" for n in range(700)]) == 601
    assert shared_store.count() == 0


def test_tags_and_metadata_survive_runs_and_changes(shared_store: Any, make_job: Any) -> None:
    """Tags and metadata are stored beside the job, because an APScheduler job has no field for them."""
    store = shared_store
    trigger = IntervalTrigger(seconds=60, start_date=OLD, timezone="UTC")
    store.add_jobs([make_job(OLD, id="a", trigger=trigger)], metadata={"owner": "ops"}, tags=["nightly", "x"])
    (job,) = store.get_due_jobs(OLD)
    job._get_run_times(OLD)
    job.next_run_time = OLD + timedelta(seconds=60)
    store.update_job(job)
    store.get_next_run_time()
    store.finish(job.occurrence, Finish.EXECUTED)
    store.tracker.flush()
    store.update_job(make_job(FAR, id="a", name="new"))
    entry = store.get_entry("a")
    assert (entry.tags, entry.metadata, entry.name) == (("nightly", "x"), {"owner": "ops"}, "new")
    assert store.find("nightly") == ["a"]
    store.set_tags("a", ["y"])
    store.set_metadata("a", {"owner": "dev", "n": 2})
    entry = store.get_entry("a")
    assert (entry.tags, entry.metadata, entry.next_run_time) == (("y",), {"owner": "dev", "n": 2}, FAR)
    assert store.find("nightly") == []
    with pytest.raises(JobLookupError):
        store.set_tags("nobody", [])


def test_a_job_is_paused_resumed_and_run_now_without_its_code(shared_store: Any, make_job: Any) -> None:
    """A process that cannot import a job's function can still pause the job, resume it and make it due now."""
    store = shared_store
    trigger = IntervalTrigger(hours=1, start_date=FAR, timezone="Europe/Berlin")
    store.add_job(make_job(FAR, id="a", trigger=trigger))
    replace_ref(store, "a", "no.such.module:f")
    store.pause("a")
    assert store.get_entry("a").state == "paused"
    assert store.resume("a") == FAR
    assert store.get_entry("a").next_run_time == FAR
    store.run_now("a")
    assert store.get_entry("a").next_run_time <= datetime.now(UTC) + timedelta(seconds=5)
    for change in (store.pause, store.resume, store.run_now):
        with pytest.raises(JobLookupError):
            change("nobody")


def test_a_trigger_that_has_ended_is_removed_when_resumed(shared_store: Any, make_job: Any) -> None:
    """`resume` removes a job whose trigger gives no further run time, as a scheduler does."""
    shared_store.add_job(make_job(FAR, id="a", trigger=IntervalTrigger(hours=1, end_date=OLD, timezone="UTC")))
    shared_store.pause("a")
    assert shared_store.resume("a") is None
    assert shared_store.get_entry("a") is None


def test_a_function_is_replaced_only_where_it_still_is(
    shared_store: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`repoint` lists four jobs. Then one is removed, and one gets another function. It changes the two others."""
    store = shared_store
    for job_id in "abcd":
        store.add_job(make_job(OLD, id=job_id))
        replace_ref(store, job_id, "no.such.module:f")
    good, change = "json.decoder:JSONDecoder", store.repository.change

    def changed_meanwhile(job_id: str, make: Any, *, keep_due: bool) -> None:
        if job_id == "b":
            store.repository.remove("b")
        if job_id == "c":
            replace_ref(store, "c", "another.module:g")
        change(job_id, make, keep_due=keep_due)

    monkeypatch.setattr(store.codec.allowed, "check", lambda ref: None)
    monkeypatch.setattr(store.repository, "change", changed_meanwhile)
    assert sorted(store.repoint("no.such.module:f", good)) == ["a", "d"]
    assert {entry.id: entry.func for entry in store.entries()} == {"a": good, "c": "another.module:g", "d": good}


def test_what_cannot_be_loaded_is_kept_with_the_reason(impatient_store: Any, make_job: Any) -> None:
    """The job is quarantined, not deleted. It can be released, or be given another function."""
    store = impatient_store
    for job_id, ref in [("gone", "no.such.module:f"), ("evil", "os:system"), ("lost", "json.decoder:nothing")]:
        store.add_job(make_job(OLD, id=job_id))
        replace_ref(store, job_id, ref)
    store.add_job(make_job(OLD, id="fine"))
    assert [job.id for job in store.get_due_jobs(OLD)] == ["fine"]
    store.get_next_run_time()
    store.tracker.flush()
    reasons = {entry.id: entry.reason for entry in store.quarantined()}
    assert "has added no job of it" in reasons["gone"]
    assert "os:system" in reasons["evil"]
    assert "nothing was imported" in reasons["evil"]
    assert set(reasons) == {"gone", "evil", "lost"}
    assert store.count("quarantined") == 3
    assert [job.id for job in store.get_all_jobs()] == ["fine"]
    good = store.get_entry("fine").func
    assert store.repoint("no.such.module:f", good, dry_run=True) == ["gone"]
    assert store.count("quarantined") == 3
    assert store.repoint("no.such.module:f", good) == ["gone"]
    assert store.release_quarantined(["evil", "fine", "nobody"]) == ["evil"]
    assert [job.id for job in store.get_due_jobs(OLD)] == ["fine", "gone"]
    store.get_next_run_time()
    store.tracker.flush()
    assert {entry.id for entry in store.quarantined()} == {"evil", "lost"}
    with pytest.raises(Forbidden):
        store.repoint(good, "os:system")


def test_a_run_under_way_is_signed_with_its_times(request: pytest.FixtureRequest, make_job: Any) -> None:
    """A long run of a recurring job has an item of its own. A changed run time or id makes its signature wrong."""
    from dataclasses import replace

    opened = request.getfixturevalue("open_fake")
    secret = {"secret": "a secret of some length", "quarantine_refusals": 1, "quarantine_after_s": 0}
    store, other = opened(**secret), opened(**secret)
    trigger = IntervalTrigger(hours=1, start_date=OLD, timezone="UTC")
    for job_id in ("good", "bad"):
        store.add_job(make_job(OLD, id=job_id, trigger=trigger))
    for job in store.get_due_jobs(OLD):
        job._get_run_times(OLD)
        job.next_run_time = FAR
        store.update_job(job)
        job.occurrence.handle.since -= 1  # as if it had run for a second
    store.get_next_run_time()
    store.tracker.flush()
    items = {found.id.partition(chr(0))[2]: found for found in store.store.list_items(topic="occurrence").found}
    assert set(items) == {"good", "bad"}
    changed = items["bad"].body.replace(b"14622", b"14623", 1)
    assert changed != items["bad"].body
    store.store.replace(replace(items["bad"].item(), body=changed), keep_due=True)
    store.store.reschedule([found.id for found in items.values()], 0)  # as if their leases had ended
    (job,) = other.get_due_jobs(datetime.now(UTC))
    assert (job.id, job.occurrence.run_times or job.fixed) == ("good", [OLD])
    other.get_next_run_time()
    other.tracker.flush()
    (held,) = store.store.list_items("held", topic="occurrence").found
    assert "signature is wrong" in held.reason


def test_a_job_whose_executor_is_unknown_is_kept(impatient_store: Any, make_job: Any) -> None:
    """A stock scheduler without a job's executor removes the job. The store quarantines the job instead."""
    impatient_store.add_job(make_job(OLD, id="a", executor="elsewhere"))
    (job,) = impatient_store.get_due_jobs(OLD)
    impatient_store.remove_job(job.id)
    impatient_store.get_next_run_time()
    impatient_store.tracker.flush()
    (entry,) = impatient_store.quarantined()
    assert "no executor 'elsewhere'" in entry.reason


def test_history_holds_the_last_ends_in_any_order(shared_store: Any, make_job: Any) -> None:
    """The history has the latest ends of runs, whatever the order of their claims."""
    store = shared_store
    for job_id in "abc":
        store.add_job(make_job(OLD, id=job_id))
    jobs = store.get_due_jobs(OLD)
    for job in jobs:
        job._get_run_times(OLD)
    store.finish(jobs[1].occurrence, Finish.EXECUTED)  # ends before the pass has planned its next run
    for job in jobs:
        store.remove_job(job.id)
    store.get_next_run_time()
    store.finish(jobs[2].occurrence, Finish.ERROR, "ValueError('x')")
    store.finish(jobs[0].occurrence, Finish.MISSED)
    store.tracker.history.closing = True  # otherwise the records of the last second wait for later ones
    store.tracker.flush()
    records = {record.job_id: record for record in store.history()}
    assert {job_id: record.outcome for job_id, record in records.items()} == {
        "a": "missed",
        "b": "executed",
        "c": "error",
    }
    assert records["c"].error == "ValueError('x')"
    assert records["b"].occurrence_id == jobs[1].occurrence.id
    assert [record.job_id for record in store.history(job_id="c")] == ["c"]
    assert len(store.history(limit=2)) == 2
    assert store.count() == 0


def test_what_runs_is_listed_with_its_owner(shared_store: Any, make_job: Any) -> None:
    """Once a run has lasted for a while, the listing has its process, its token and the end of its lease."""
    import os
    import time

    store = shared_store
    store.add_job(make_job(OLD, id="a"))
    (job,) = store.get_due_jobs(OLD)
    job._get_run_times(OLD)
    store.remove_job("a")
    store.get_next_run_time()
    (run,) = store.in_flight()
    assert (run.job_id, run.owner) == ("a", None)
    job.occurrence.claimed_ms -= 1000  # as if it had run for a second
    store.tracker.history.clock = lambda: time.monotonic() + 2  # runs are announced once a second
    store.tracker.flush()
    (run,) = store.in_flight()
    assert run.occurrence_id == job.occurrence.id
    assert run.owner.endswith(f":{os.getpid()}")
    assert run.token == job.occurrence.token
    assert run.lease_until_ms > time.time() * 1000
    store.finish(job.occurrence, Finish.EXECUTED)
    store.tracker.flush()
    assert store.in_flight() == []


def test_a_producer_adds_jobs_without_a_scheduler(shared_store: Any) -> None:
    """`Producer.add_job` has the arguments of a scheduler's `add_job`, such as `replace_existing`."""
    with Producer(shared_store, timezone="Europe/Berlin", job_defaults={"misfire_grace_time": 9}) as producer:
        job_id = producer.add_job(sample, "cron", hour=3, id="a", args=[1], metadata={"m": 1}, tags=["t"])
        assert job_id == "a"
        job = shared_store.lookup_job("a")
        assert (job.args, job.misfire_grace_time, job.func) == ((1,), 9, sample)
        with pytest.raises(ConflictingIdError):
            producer.add_job(sample, "cron", hour=4, id="a")
        producer.add_job(sample, "cron", hour=4, id="a", replace_existing=True)
        assert "hour='4'" in shared_store.get_entry("a").trigger
        assert shared_store.get_entry("a").tags == ("t",)
        made = [producer.make(sample, "interval", seconds=n + 1, id=f"i{n}") for n in range(10)]
        assert producer.add_jobs([*made, producer.make(sample, "date", id="a")]) == ["a"]
        producer.remove_job("a")
        with pytest.raises(JobLookupError):
            producer.remove_job("a")
        assert shared_store.count() == 10


def sample(*_: Any) -> None:
    """A function that the test adds as a job."""


def test_a_memory_store_tells_the_same(make_job: Any) -> None:
    """A memory store also has counts, pages, searches by due time, tags, metadata, runs in flight and history."""
    store = WheelJobStore(history=2)
    jobs = [make_job(FAR + timedelta(seconds=n), id=f"j{n}") for n in range(4)]
    assert store.add_jobs(jobs, metadata={"m": 1}, tags=["t"]) == []
    assert store.add_jobs(jobs[:1]) == ["j0"]
    store.add_job(make_job(None, id="paused"))
    assert (store.count(), store.count("scheduled"), store.count("paused")) == (5, 4, 1)
    page = store.iter_jobs(limit=3)
    assert [entry.id for entry in page.jobs] == ["j0", "j1", "j2"]
    assert [entry.id for entry in store.iter_jobs(page.cursor, limit=3).jobs] == ["j3"]
    assert [entry.id for entry in store.due_between(FAR, FAR + timedelta(seconds=1))] == ["j0", "j1"]
    assert store.find("t") == ["j0", "j1", "j2", "j3"]
    store.set_tags("j0", ["x"])
    store.set_metadata("j0", {"m": 2})
    entry = store.get_entry("j0")
    assert entry is not None
    assert (entry.tags, entry.metadata) == (("x",), {"m": 2})
    assert store.remove_jobs(["j1", "j2", "j3", "nobody"]) == 3
    assert store.find("t") == []
    for job_id in "abc":
        store.add_job(make_job(OLD, id=job_id))
    due = store.get_due_jobs(OLD)
    assert store.count("in_flight") == 3
    for job in due:
        job._get_run_times(OLD)
        store.remove_job(job.id)
    store.get_next_run_time()
    assert [run.occurrence_id for run in store.in_flight()] == [job.occurrence.id for job in due]
    for job in due:
        store.finish(job.occurrence, Finish.EXECUTED)
    assert store.in_flight() == []
    assert {record.job_id for record in store.history()} == {"b", "c"}
    assert store.history(job_id="c")[0].outcome == "executed"
    with pytest.raises(JobLookupError):
        store.set_tags("nobody", [])
    with pytest.raises(Rejected):
        store.iter_jobs("nonsense")
