"""Jobs are changed, removed and added while they run, by this or another process. The tests need no scheduler or
thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Producer, WheelJobStore
from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.run_times import missed_runs

from wheel_sched.store import Item

NOW = datetime.now(UTC).replace(microsecond=0)
STEP = timedelta(seconds=60)
FAR = NOW + timedelta(days=1)


def do_nothing(*_: Any) -> None:
    """A job function that does nothing."""


def claim(store: Any, now: datetime = NOW) -> list[Occurrence]:
    """Do what a scheduler does in one pass. Afterwards the returned occurrences count as submitted."""
    occurrences = store.claim_batch(now).occurrences
    for occurrence in occurrences:
        run_times, following = (
            (occurrence.run_times, None) if occurrence.run_times else missed_runs(occurrence.job, now)
        )
        occurrence.run_at(run_times)
        occurrence.plan(following)
    store.mark_submitted(occurrences)
    return list(occurrences)


def settle(store: Any) -> None:
    """Send all waiting reports to the store, and the reports that follow from the store's answers."""
    for _ in range(5):
        store.tracker.flush()


def end(store: Any, occurrence: Occurrence) -> None:
    """End the run and report it to the store."""
    store.finish(occurrence, Finish.EXECUTED)
    settle(store)


def free(store: Any, occurrence: Occurrence) -> None:
    """Split the run off its job: the job waits for its next run, and the run gets an item of its own."""
    occurrence.handle.since -= 1
    settle(store)


def modify(store: Any, job_id: str, **changes: Any) -> None:
    """Does what a scheduler's `modify_job` does."""
    job = store.lookup_job(job_id)
    if job is None:
        raise JobLookupError(job_id)
    for name, value in changes.items():
        setattr(job, name, value)
    store.update_job(job)


@pytest.fixture
def recurring(make_job: Any) -> Callable[..., Any]:
    """Makes a job that is due now, and afterwards every minute."""
    return lambda **options: make_job(
        NOW, **{"id": "j", "trigger": IntervalTrigger(seconds=60, start_date=NOW, timezone="UTC"), **options}
    )


@pytest.fixture(params=["here", "elsewhere"])
def pair(request: pytest.FixtureRequest, open_fake: Any) -> tuple[Any, Any]:
    """Two stores over one namespace: one runs the jobs, and the other one changes them."""
    runner = open_fake()
    return runner, runner if request.param == "here" else open_fake()


def next_run(store: Any) -> datetime | None:
    moment: datetime | None = store.get_entry("j").next_run_time
    return moment


@pytest.mark.parametrize("moment", ["before it ends", "after it ended", "after it was freed"])
def test_a_change_leaves_the_next_run_where_it_is(pair: Any, recurring: Any, moment: str) -> None:
    """A job object that was looked up before a run still has the time of that run. Storing it must not run the job
    twice."""
    runner, changer = pair
    runner.add_job(recurring())
    job = changer.lookup_job("j")
    (occurrence,) = claim(runner)
    job._modify(args=("new",))
    if moment == "before it ends":
        changer.update_job(job)
        end(runner, occurrence)
    elif moment == "after it ended":
        end(runner, occurrence)
        changer.update_job(job)
    else:
        free(runner, occurrence)
        changer.update_job(job)
        end(runner, occurrence)
    assert (next_run(changer), changer.count(), changer.in_flight()) == (NOW + STEP, 1, [])
    assert changer.lookup_job("j").args == ("new",)
    assert claim(runner) == []


@pytest.mark.parametrize("how", ["ended", "freed"])
def test_a_change_of_the_run_time_holds_during_a_run(pair: Any, recurring: Any, how: str) -> None:
    """A job is rescheduled or paused while it runs. The change applies at once, and still applies after the run."""
    runner, changer = pair
    runner.add_job(recurring())
    for moment in (FAR, None):
        (occurrence,) = claim(runner)
        modify(changer, "j", next_run_time=moment)
        assert changer.lookup_job("j").next_run_time == moment
        (end if how == "ended" else free)(runner, occurrence)
        assert next_run(changer) == moment
        if how == "freed":
            end(runner, occurrence)
        assert (next_run(changer), changer.count(), changer.in_flight()) == (moment, 1, [])
        modify(changer, "j", next_run_time=NOW)
    assert len(claim(runner)) == 1


def test_a_change_during_a_run_survives_the_process(open_fake: Any, recurring: Any) -> None:
    """Three jobs are changed while they run, and then their process crashes. The job with new arguments repeats its
    run. A job with a new run time, or a paused job, does not."""
    runner, other = open_fake(lease_s=0.1), open_fake()
    for job_id in ("args", "moved", "paused"):
        runner.add_job(recurring(id=job_id))
    assert len(claim(runner)) == 3
    modify(other, "args", args=("new",))
    modify(other, "moved", next_run_time=FAR)
    modify(other, "paused", next_run_time=None)
    runner.store.execute([])
    other.store.backend.client.zadd(
        f"{{{other.store.namespace}:0}}:leased", dict.fromkeys(["args", "moved", "paused"], 1)
    )
    (occurrence,) = claim(other)
    assert (occurrence.job_id, occurrence.job.args) == ("args", ("new",))
    assert (occurrence.redelivered, occurrence.run_times) == (True, [NOW])
    settle(other)
    assert claim(other) == []
    assert {entry.id: (entry.state, entry.next_run_time) for entry in other.entries()} == {
        "args": ("in_flight", NOW),
        "moved": ("scheduled", FAR),
        "paused": ("paused", None),
    }


def test_queries_change_running_jobs_without_waiting(open_fake: Any, recurring: Any) -> None:
    """A process without the job's code can pause a running job, tag it and set its metadata."""
    runner, other = open_fake(), open_fake()
    runner.add_job(recurring())
    (occurrence,) = claim(runner)
    other.set_tags("j", ["t"])
    other.set_metadata("j", {"m": 1})
    other.pause("j")
    end(runner, occurrence)
    entry = other.get_entry("j")
    assert (entry.state, entry.tags, entry.metadata) == ("paused", ("t",), {"m": 1})


def test_the_id_of_a_running_one_shot_is_free(pair: Any, make_job: Any) -> None:
    """A new job can take the id of a running one-shot job, and runs beside it, as in stock APScheduler. The end of the
    old run does not remove the new job."""
    runner, changer = pair
    runner.add_job(make_job(NOW, id="j", args=["old"], max_instances=2))
    (old,) = claim(runner)
    assert changer.lookup_job("j") is None
    with pytest.raises(JobLookupError):
        changer.update_job(make_job(FAR, id="j"))
    changer.add_job(make_job(NOW, id="j", args=["new"], max_instances=2))
    with pytest.raises(ConflictingIdError):
        changer.add_job(make_job(NOW, id="j"))
    assert changer.lookup_job("j").args == ("new",)
    (new,) = claim(runner)
    assert new.job.args == ("new",)
    assert len(changer.in_flight()) == 2
    end(runner, old)
    assert len(changer.in_flight()) == 1
    end(runner, new)
    assert (changer.count(), changer.in_flight()) == (0, [])


def test_a_new_job_is_not_taken_for_the_run_under_way(pair: Any, make_job: Any) -> None:
    """A new job has the id and the run time of a running job. The end of the old run does not end the new job."""
    runner, changer = pair
    runner.add_job(make_job(NOW, id="j", args=["old"]))
    (old,) = claim(runner)
    changer.add_job(make_job(NOW, id="j", args=["new"]))
    end(runner, old)
    (new,) = claim(runner)
    assert new.job.args == ("new",)
    end(runner, new)
    assert (changer.count(), changer.in_flight()) == (0, [])


def test_a_run_whose_id_was_taken_keeps_its_lease(open_fake: Any, make_job: Any) -> None:
    """A new job takes the id of a running job, so the run's item gets another id. The lease is extended under that id.
    If the run's process is lost, the run is repeated."""
    runner, other = open_fake(lease_s=60), open_fake()
    runner.add_job(make_job(NOW, id="j", args=["old"]))
    claim(runner)
    other.add_job(make_job(FAR, id="j", args=["new"]))
    leased = f"{{{other.store.namespace}:0}}:leased"
    soon_ms = other.store.now_ms() + 5_000  # as if most of the lease had passed
    other.store.backend.client.zadd(leased, dict.fromkeys(other.store.backend.client.zrange(leased, 0, -1), soon_ms))
    (before,) = other.in_flight()
    assert before.lease_until_ms == soon_ms
    for _ in range(2):
        runner.tracker.extend_leases()
    (after,) = other.in_flight()
    assert after.lease_until_ms > before.lease_until_ms + 50_000
    other.store.backend.client.zadd(leased, dict.fromkeys(other.store.backend.client.zrange(leased, 0, -1), 1))
    (again,) = claim(other)
    assert (again.job_id, again.job.args, again.run_times, again.redelivered) == ("j", ("old",), [NOW], True)


@pytest.mark.parametrize("how", ["ended", "freed"])
def test_a_job_removed_in_its_run_can_be_added_again(pair: Any, recurring: Any, how: str) -> None:
    """A job is removed during its run and added again. The next run of the removed job is dropped, and the new job does
    not change."""
    runner, changer = pair
    runner.add_job(recurring(args=["old"]))
    (old,) = claim(runner)
    changer.remove_job("j")
    assert changer.lookup_job("j") is None
    changer.add_job(recurring(args=["new"], next_run_time=FAR))
    if how == "freed":
        free(runner, old)
    end(runner, old)
    assert (next_run(changer), changer.lookup_job("j").args, changer.in_flight()) == (FAR, ("new",), [])


def test_replacing_works_at_any_moment(pair: Any, recurring: Any, make_job: Any) -> None:
    """`replace_existing` works during the run of a recurring job, of a one-shot, and of a job that was just removed."""
    runner, changer = pair
    producer = Producer(changer, timezone="UTC")
    for n, first in enumerate([recurring(), make_job(NOW, id="j"), recurring()]):
        runner.add_job(first)
        (old,) = claim(runner)
        if n == 2:
            changer.remove_job("j")
        producer.add_job(do_nothing, "date", run_date=FAR, id="j", args=[n], replace_existing=True)
        end(runner, old)
        assert (next_run(changer), changer.lookup_job("j").args) == (FAR, (n,))
        assert producer.add_jobs([producer.make(do_nothing, "date", id="j")]) == ["j"]
        changer.remove_job("j")
        assert (changer.count(), changer.in_flight()) == (0, [])


def test_a_memory_store_keeps_the_planned_run_as_well(recurring: Any) -> None:
    """A job is changed between its claim and its submission. It does not run twice, and a new run time is kept."""
    store = WheelJobStore()
    store.add_job(recurring(id="same"))
    store.add_job(recurring(id="moved"))
    occurrences = store.claim_batch(NOW).occurrences
    modify(store, "same", args=("new",))
    modify(store, "moved", next_run_time=FAR)
    for occurrence in occurrences:
        occurrence.run_at([NOW])
        occurrence.plan(NOW + STEP)
    store.mark_submitted(occurrences)
    assert [job.next_run_time for job in store.get_all_jobs()] == [NOW + STEP, FAR]
    assert store.lookup_job("same").args == ("new",)


def test_a_planned_run_does_not_undo_a_change_half_made(recurring: Any) -> None:
    """`modify_job` changes the job object first and calls the store afterwards. A submission between the two steps does
    not undo the change."""
    store = WheelJobStore()
    store.driven = True
    store.add_job(recurring())
    (occurrence,) = store.claim_batch(NOW).occurrences
    occurrence.run_at([NOW])
    occurrence.plan(NOW + STEP)
    job = store.lookup_job("j")
    job._modify(trigger=DateTrigger(FAR, "UTC"), next_run_time=FAR)
    store.mark_submitted([occurrence])
    store.update_job(job)
    assert [job.next_run_time for job in store.get_all_jobs()] == [FAR]


@pytest.mark.parametrize("held", [False, True])
def test_a_damaged_record_is_replaced(
    open_fake: Any, make_job: Any, caplog: pytest.LogCaptureFixture, held: bool
) -> None:
    """`replace_existing` reads the old record only for its metadata. If the record is damaged, it is replaced all the
    same, and the log says that the metadata is lost."""
    store = open_fake()
    store.store.schedule([Item("j", 0, b"no job", "job", ("tag:t",))])
    if held:
        store.store.hold(["j"], "quarantine: damaged")
    producer = Producer(store, timezone="UTC")
    producer.add_job(do_nothing, "date", run_date=FAR, id="j", args=["new"], replace_existing=True)
    assert (store.lookup_job("j").args, store.find("t")) == (("new",), ["j"])
    assert store.get_entry("j").state == "scheduled"
    assert "its metadata is lost" in caplog.text
