"""`max_instances` counts the runs of a job in all processes of a store. The tests need no scheduler or thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.run_times import missed_runs

from wheel_sched.errors import ConfigError, StoreUnavailable

START = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
STEP = timedelta(seconds=60)


def tick(number: int) -> datetime:
    return START + number * STEP


def run(store: Any, number: int) -> Occurrence | None:
    """Do what a scheduler and its executor do in a pass at `tick(number)`. Returns None if the occurrence is
    refused."""
    (occurrence,) = store.claim_batch(tick(number)).occurrences
    run_times, following = missed_runs(occurrence.job, tick(number))
    occurrence.run_at(run_times)
    occurrence.plan(following)
    store.mark_submitted([occurrence])
    if occurrence.job.max_instances <= 0:  # then every executor refuses the job
        if following is None:
            store.release([occurrence], 1_000)
        else:
            store.finish(occurrence, Finish.REFUSED)
        settle(store)
        return None
    occurrence.handle.since -= 1  # as if it had run for a second
    settle(store)
    return occurrence


def settle(store: Any) -> None:
    for _ in range(3):
        store.tracker.flush()


def end(store: Any, occurrence: Occurrence | None) -> None:
    assert occurrence is not None
    store.finish(occurrence, Finish.EXECUTED)
    settle(store)


@pytest.fixture
def every_minute(make_job: Any) -> Any:
    """Makes a job that is due every minute."""
    trigger = IntervalTrigger(seconds=60, start_date=START, timezone="UTC")
    return lambda **options: make_job(START, **{"id": "j", "trigger": trigger, **options})


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_run_anywhere_counts(open_fake: Any, every_minute: Any, delivery: str) -> None:
    """When the job's limit is reached, every process refuses further occurrences until a run has ended."""
    a, b = open_fake(delivery=delivery), open_fake(delivery=delivery)
    a.add_job(every_minute())
    first = run(a, 0)
    assert run(b, 1) is None
    assert run(b, 2) is None
    assert run(a, 3) is None
    end(a, first)
    second = run(b, 4)
    assert second is not None
    assert second.run_times == [tick(4)]
    assert run(a, 5) is None
    end(b, second)
    assert run(a, 6) is not None


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_as_many_run_as_may(open_fake: Any, every_minute: Any, delivery: str) -> None:
    """With `max_instances=2`, two runs are in flight at once, in one process or in two. A third one is refused."""
    a, b = open_fake(delivery=delivery), open_fake(delivery=delivery)
    a.add_job(every_minute(max_instances=2))
    first, second = run(a, 0), run(b, 1)
    assert run(a, 2) is run(b, 3) is None
    end(a, first)
    third = run(a, 4)
    assert run(b, 5) is None
    end(b, second)
    end(a, third)
    assert run(b, 6) is not None


def test_a_lost_run_at_most_once_counts_until_its_lease_ends(open_fake: Any, every_minute: Any) -> None:
    """With `at_most_once`, the store keeps a mark (an item that stands for the run), and the run's process extends the
    mark's lease. If the lease ends, the mark is removed, and the run is not repeated."""
    a, b = (open_fake(delivery="at_most_once", lease_s=10) for _ in range(2))
    a.add_job(every_minute())
    assert run(a, 0) is not None
    (mark,) = b.store.find("run:j")
    assert (b.in_flight(), b.count()) == ([], 1)
    b.store.reschedule([mark], b.store.now_ms() + 5_000)
    a.tracker.extend_leases()
    assert b.store.get([mark])[0].score_ms > b.store.now_ms() + 9_000
    assert run(b, 1) is None
    b.store.reschedule([mark], 0)  # as if the lease had ended
    assert [occurrence.scheduled for occurrence in b.claim_batch(tick(1)).occurrences] == []
    settle(b)
    assert b.store.get([mark]) == [None]
    assert run(b, 2) is not None


def test_a_run_at_most_once_that_is_put_back_does_not_count(open_fake: Any, every_minute: Any) -> None:
    """A scheduler claims a run and puts it back, as after a pause. While it waits it does not count, so it can be
    claimed again."""
    a, b = (open_fake(delivery="at_most_once") for _ in range(2))
    a.add_job(every_minute())
    a.release(a.claim_batch(tick(0)).occurrences)
    settle(a)
    assert [occurrence.scheduled for occurrence in b.claim_batch(tick(0)).occurrences] == [tick(0)]
    assert len(b.store.find("run:j")) == 1


def test_two_runs_that_were_put_back_do_not_wait_for_each_other(open_fake: Any, every_minute: Any) -> None:
    """A run that was put back does not count while it waits. So whichever is claimed first may run."""
    a, b = (open_fake(delivery="at_most_once") for _ in range(2))
    a.add_job(every_minute())
    for number in range(2):
        occurrence = run(a, number)
        assert occurrence is not None
        a.release([occurrence], 3_600_000)
        settle(a)
    first, second = b.store.find("waiting")
    for split_item in (first, second):
        b.store.reschedule([split_item], 0)
        (occurrence,) = b.claim_batch(tick(1)).occurrences
        assert (occurrence.handle.item_id, occurrence.job.max_instances) == (split_item, 1)
        b.release([occurrence], 3_600_000)
        settle(b)
    assert sorted(b.store.find("run:j")) == sorted(b.store.find("waiting")) == sorted([first, second])


def test_each_process_counts_for_itself_when_told_to(open_fake: Any, every_minute: Any) -> None:
    """With `max_instances_scope="process"`, as in stock APScheduler, runs in other processes do not count. Other values
    are refused."""
    a, b = (open_fake(max_instances_scope="process") for _ in range(2))
    a.add_job(every_minute())
    assert run(a, 0) is not None
    assert run(b, 1) is not None
    with pytest.raises(ConfigError, match="max_instances_scope"):
        open_fake(max_instances_scope="world")


def test_a_last_run_that_finds_no_room_waits(open_fake: Any, make_job: Any) -> None:
    """A one-shot job has the id of a job that runs in another process. It is refused and kept, and runs when the old
    run has ended."""
    a, b = open_fake(), open_fake()
    a.add_job(make_job(START, id="j"))
    first = run(a, 0)
    b.add_job(make_job(START, id="j", args=["new"]))
    assert run(b, 1) is None
    end(a, first)
    b.store.reschedule(["j"], 0)  # as if it had waited
    (again,) = b.claim_batch(tick(2)).occurrences
    assert (again.job.args, again.job.max_instances) == (("new",), 1)


def test_a_job_that_was_removed_counts_while_it_runs(open_fake: Any, every_minute: Any) -> None:
    """A job is removed during its run, and a job with the same id is added. The old run counts towards the new job's
    limit."""
    a, b = open_fake(), open_fake()
    a.add_job(every_minute())
    first = run(a, 0)
    b.remove_job("j")
    b.add_job(every_minute())
    b.set_tags("j", ["t"])
    assert run(b, 1) is None
    end(a, first)
    assert run(b, 2) is not None
    assert b.get_entry("j").tags == ("t",)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_removed_job_that_is_added_among_others_counts_its_run(
    open_fake: Any, every_minute: Any, shards: int
) -> None:
    """`add_jobs` counts the run of a removed job in the same way as `add_job`."""
    a, b = open_fake(shards=shards), open_fake(shards=shards)
    a.add_job(every_minute())
    first = run(a, 0)
    b.remove_job("j")
    assert b.add_jobs([every_minute(id=each) for each in ("i", "j", "k")], tags=["t"]) == []
    occurrences = {occurrence.job_id: occurrence for occurrence in b.claim_batch(tick(1)).occurrences}
    assert {job_id: occurrence.job.max_instances <= 0 for job_id, occurrence in occurrences.items()} == {
        "i": False,
        "j": True,
        "k": False,
    }
    assert b.find("t") == ["i", "j", "k"]
    end(a, first)


def test_a_run_that_is_quarantined_does_not_count(open_fake: Any, every_minute: Any) -> None:
    """No process executes a quarantined run, so another run of the job can begin."""
    a, b = open_fake(), open_fake()
    a.add_job(every_minute())
    run(a, 0)
    (occurrence,) = b.store.find("run:j")
    b.store.hold([occurrence], "quarantine: its function is gone")
    assert run(b, 1) is not None


def test_short_runs_cost_no_round_trip_more(open_fake: Any, every_minute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is one round trip. The store is asked again only about jobs that have a long run, stored as an item of
    its own."""
    a = open_fake()
    for n in range(5):
        a.add_job(every_minute(id=f"j{n}"))
    calls: list[int] = []
    execute = a.store.execute
    monkeypatch.setattr(a.store, "execute", lambda each: calls.append(len(each)) or execute(each))
    assert len(a.claim_batch(tick(1)).occurrences) == 5
    assert len(calls) == 1


def test_what_cannot_be_counted_is_put_back(open_fake: Any, every_minute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store stops answering between the claim and the count, the claimed occurrence is put back."""
    a, b = open_fake(), open_fake()
    a.add_job(every_minute())
    run(a, 0)
    execute = b.store.execute

    def fails(calls: Any) -> Any:
        if type(calls[0].operation).__name__ == "Find":
            raise StoreUnavailable("on purpose")
        return execute(calls)

    monkeypatch.setattr(b.store, "execute", fails)
    assert b.claim_batch(tick(1)).occurrences == []
    settle(b)
    assert b.get_entry("j").state == "scheduled"
    assert b.get_entry("j").next_run_time == tick(1)
