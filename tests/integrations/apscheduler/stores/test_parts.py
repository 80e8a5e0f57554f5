"""Tests each part of the shared jobstore alone: repository, claims, refusals, connection."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.occurrence import Finish
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.settings import SharedStoreSettings
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.layout import RunWriter, commands_of, job_id_of, read_split_item
from wheel_sched_apscheduler.stores.loading import DEFER_MS, RefusalPolicy, refusal_of, without_refusal
from wheel_sched_apscheduler.stores.repository import JobRepository
from wheel_sched_apscheduler.stores.tracker import ClaimTracker

from wheel_sched.store import MAX_BATCH, Claimed, Done, Held, Next
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.get import Find

OLD = datetime(2020, 1, 1, tzinfo=UTC)
SETTINGS = SharedStoreSettings(
    lease_ms=30_000,
    delivery="at_least_once",
    misfire="lenient",
    max_instances_scope="store",
    batch=200,
    max_sleep_s=10,
    history=1000,
    quarantine_refusals=2,
    quarantine_after_ms=0,
    announce_s=0,
)


@pytest.fixture
def connection(shared_fake: Any, namespace: str) -> Any:
    """A connection to a namespace that only this test uses."""
    made = StoreConnection(shared_fake, {"namespace": namespace, "shards": 1, "durability": "everysec", "replicas": 1})
    yield made
    made.close()


@pytest.fixture
def codec(make_job: Any) -> JobCodec:
    """A codec that allows the job function of these tests."""
    return JobCodec(allow=[make_job(OLD).func.__module__])


@pytest.fixture
def repository(connection: StoreConnection, codec: JobCodec) -> JobRepository:
    """A repository in a process that claims nothing."""
    return JobRepository(connection, codec, lambda *_: None, counts_runs=True)


@pytest.fixture
def tracker(connection: StoreConnection, codec: JobCodec) -> ClaimTracker:
    """A tracker of claims. It regards every claimed occurrence as still running."""
    return ClaimTracker(
        connection,
        codec,
        SETTINGS,
        is_running=lambda _: True,
        lost=lambda _: None,
        earlier_due=lambda _: None,
    )


def claim_one(tracker: ClaimTracker) -> Any:
    now = datetime.now(UTC)
    (occurrence,) = tracker.load(tracker.claim_due(now, 10), now, plain_jobs=True)
    return occurrence


def test_a_repository_needs_only_a_store(repository: JobRepository, make_job: Any) -> None:
    """A repository looks jobs up, adds, changes and removes them without a scheduler, a thread or a claim."""
    assert repository.add_new([make_job(OLD, id="a"), make_job(None, id="paused")]) == []
    with pytest.raises(ConflictingIdError):
        repository.add(make_job(OLD, id="a"))
    assert [job.id for job in repository.all_jobs()] == ["a", "paused"]
    assert repository.head() == OLD
    job: Any = repository.lookup("a")
    job.next_run_time = OLD + timedelta(days=1)
    repository.update(job)
    assert repository.head() == OLD + timedelta(days=1)
    repository.remove("a")
    assert repository.lookup("a") is None
    for gone in (repository.remove, lambda job_id: repository.update(make_job(OLD, id=job_id))):
        with pytest.raises(JobLookupError):
            gone("a")
    repository.remove_all()
    assert repository.all_jobs() == []


def test_a_tracker_keeps_a_claim_until_the_store_knows_its_end(
    repository: JobRepository, tracker: ClaimTracker, make_job: Any
) -> None:
    """The tracker keeps an occurrence from its claim until its end is settled in the store."""
    repository.add(make_job(OLD, id="a"))
    occurrence = claim_one(tracker)
    assert (occurrence.job_id, tracker.find("a"), tracker.idle) == ("a", occurrence, False)
    occurrence.run_at([OLD])
    occurrence.plan(None)
    tracker.mark_submitted([occurrence])
    assert repository.lookup("a") is None  # the last run of the job is under way
    tracker.finish(occurrence, Finish.EXECUTED)
    assert tracker.waiting
    assert tracker.next_s() == 0.0
    tracker.flush()
    assert (tracker.idle, tracker.find("a"), tracker.waiting) == (True, None, False)


def test_a_released_occurrence_is_claimed_again(
    repository: JobRepository, tracker: ClaimTracker, make_job: Any
) -> None:
    """The second claim has the same occurrence id and a greater token."""
    repository.add(make_job(OLD, id="a"))
    first = claim_one(tracker)
    tracker.release(first)
    tracker.flush()
    second = claim_one(tracker)
    assert second.id == first.id
    assert second.token > first.token


def claimed(refs: tuple[str, ...] = ()) -> Claimed:
    return Claimed("j", 0, 1, "job", b"", refs)


def test_a_refusal_goes_from_round_to_round_into_quarantine(connection: StoreConnection) -> None:
    """A job is quarantined at its second round of refusals. A refusal by another process belongs to the same round; a
    second refusal by the same process begins a new one."""
    here, there = RefusalPolicy(connection, 2, 0), RefusalPolicy(connection, 2, 0)
    first = here.settlement(claimed(), "no function")
    assert isinstance(first, Next)
    assert first.refs is not None
    second = there.settlement(claimed(first.refs), "no function either")
    assert isinstance(second, Next)
    assert second.refs is not None
    refusal = refusal_of(second.refs)
    assert refusal is not None
    assert (refusal.rounds, refusal.refusers) == (1, (here.process_mark, there.process_mark))
    assert without_refusal(("tag:t", *second.refs)) == ("tag:t",)
    last = here.settlement(claimed(second.refs), "no function")
    assert isinstance(last, Held)
    assert "refused 2 times" in last.reason


def test_a_process_that_refused_claims_later_for_a_minute(connection: StoreConnection) -> None:
    """For a minute after a refusal, a process claims `DEFER_MS` later, so that other processes claim due jobs first."""
    now_s = [time.monotonic()]
    policy = RefusalPolicy(connection, 10, 0, clock=lambda: now_s[0])
    assert policy.deferral_ms([]) == 0
    policy.settlement(claimed(), "no function")
    assert policy.deferral_ms([]) == DEFER_MS
    now_s[0] += 61
    assert policy.deferral_ms([]) == 0


def test_a_run_writer_says_what_follows_a_run(
    repository: JobRepository, tracker: ClaimTracker, codec: JobCodec, make_job: Any
) -> None:
    """A job without a next run time is done, and any other job waits again. The item of a long run contains its run
    times and its job."""
    repository.add(make_job(OLD, id="a", trigger=IntervalTrigger(minutes=1, timezone="UTC")))
    occurrence = claim_one(tracker)
    writer = RunWriter(codec, shards=2)
    occurrence.plan(None)
    assert isinstance(writer.settlement(occurrence), Done)
    occurrence.plan(OLD + timedelta(minutes=1))
    following = writer.settlement(occurrence)
    assert isinstance(following, Next)
    assert (following.id, following.due_ms) == ("a", to_ms(OLD) + 60_000)
    item = writer.split_item_of(occurrence, due_ms=5)
    assert (job_id_of(item.id), item.due_ms, item.refs, item.route) == ("a", 5, ("run:a",), "a")
    run_times, body = read_split_item(codec.unseal(item.id, item.body))
    assert run_times == [OLD]
    assert codec.decode("a", body).job.id == "a"


def test_commands_hold_no_more_than_a_batch() -> None:
    """The entries of a shard become commands of at most `MAX_BATCH` entries. Each command lists its own entries."""
    made = commands_of(
        {3: list(range(MAX_BATCH + 1)), 4: []}, lambda shard, batch: Call(shard, Find(str(len(batch)), 1))
    )
    assert [(command.call.shard, len(command.about)) for command in made] == [(3, MAX_BATCH), (3, 1)]


def test_a_connection_opens_on_first_use_and_estimates_the_time_of_the_server(connection: StoreConnection) -> None:
    """A connection opens at its first use, and again after `close`. It estimates the server's time from times that it
    is given."""
    assert not connection.is_open
    before_ms = connection.store.now_ms()
    assert connection.is_open
    connection.note_server_time(before_ms + 5_000, before_ms)
    assert abs(connection.now_ms() - connection.store.now_ms() - 5_000) < 2_000
    connection.close()
    assert not connection.is_open
    assert connection.store.now_ms() >= before_ms
