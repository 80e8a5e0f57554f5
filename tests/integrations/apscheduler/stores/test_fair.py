"""Due jobs of a shared store go out by weighted shares between the values of a tag."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import Finish, Producer, RedisWheelJobStore, WheelBackgroundScheduler
from wheel_sched_apscheduler.stores.claims import SPLIT_AFTER_S

from wheel_sched.errors import ConfigError
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.fair_shares import FairShares
from wheel_sched.store.fair_shares.numbers import fair_topics

OLD = datetime(2016, 5, 3, tzinfo=UTC)
FAR = datetime(2040, 1, 1, tzinfo=UTC)
ALLOW = [__name__]
STARTED: list[tuple[str, float]] = []

Open = Callable[..., RedisWheelJobStore]


def note_start(tenant: str) -> None:
    """A job function that records its start."""
    STARTED.append((tenant, time.monotonic()))


@pytest.fixture(params=["memory", "fake", pytest.param("real", marks=pytest.mark.real)])
def open_shared(request: pytest.FixtureRequest) -> Open:
    """Makes stores on a delay store in memory, on the imitation, or on a server. Their settings are written at once."""
    opener = None if request.param == "memory" else request.getfixturevalue(f"open_{request.param}")

    def make(**settings: Any) -> RedisWheelJobStore:
        store: RedisWheelJobStore = opener(**settings) if opener else RedisWheelJobStore("memory:", **settings)
        if store.connection.fair is not None:
            store.connection.fair.write_to(store.connection.store)
        return store

    return make


def claimed_ids(store: RedisWheelJobStore, limit: int) -> list[str]:
    """The ids of the jobs that a pass claims. Their runs end at once."""
    occurrences = store.claim_batch(datetime.now(UTC), limit).occurrences
    for occurrence in occurrences:
        occurrence.run_at([occurrence.scheduled])
        occurrence.plan(None)
        store.finish(occurrence, Finish.EXECUTED)
    store.tracker.flush()
    return [occurrence.job_id for occurrence in occurrences]


def claimed(store: RedisWheelJobStore, following: datetime | None = None) -> list[Any]:
    """The occurrences of a pass, which begin to run. Their jobs run next at `following`."""
    occurrences: list[Any] = store.claim_batch(datetime.now(UTC)).occurrences
    for occurrence in occurrences:
        occurrence.submitted = True
        occurrence.run_at([occurrence.scheduled])
        occurrence.plan(following)
    store.mark_submitted(occurrences)
    return occurrences


def end(store: RedisWheelJobStore, occurrence: Any) -> None:
    """End a run and report it to the store."""
    store.finish(occurrence, Finish.EXECUTED)
    store.tracker.flush()


def tenants_of(ids: list[str]) -> Counter[str]:
    return Counter(job_id.partition(".")[0] for job_id in ids)


def add(store: RedisWheelJobStore, make_job: Any, tenant: str, count: int, **options: Any) -> None:
    """Add jobs that are due and have the tag of a tenant. Their ids are `<tenant>.<number>`."""
    run_time = options.pop("run_time", OLD)
    jobs = [make_job(run_time, id=f"{tenant}.{number}", **options) for number in range(count)]
    assert store.add_jobs(jobs, tags=[f"tenant:{tenant}", "nightly"]) == []


def test_due_jobs_go_out_by_the_weights_of_their_tags(open_shared: Open, make_job: Any) -> None:
    """While many jobs of two tenants are due, a tenant of weight 3 gets three times as many runs."""
    store = open_shared(fair={"by": "tenant", "weights": {"gold": 3}})
    add(store, make_job, "iron", 200, run_time=OLD)
    add(store, make_job, "gold", 200, run_time=OLD + timedelta(days=1))
    shares = sum((tenants_of(claimed_ids(store, 20)) for _ in range(6)), Counter[str]())
    assert shares.total() == 120
    assert 85 <= shares["gold"] <= 95


def test_a_job_in_the_middle_of_a_backlog_goes_out_early(open_shared: Open, make_job: Any) -> None:
    """A small tenant's job is handed out long before the end of another tenant's backlog. By run time, it would be
    number 4,001.
    """
    store = open_shared(fair="tenant")
    for day, tenant, count in [(0, "big", 4000), (1, "small", 1), (2, "late", 1000)]:
        jobs = [make_job(OLD + timedelta(days=day), id=f"{tenant}.{number}") for number in range(count)]
        store.add_jobs(jobs, tags=["tenant:small" if tenant == "small" else "tenant:big"])
    ids: list[str] = []
    while "small.0" not in ids:
        ids += claimed_ids(store, 100)
    assert len(ids) <= 1200


def test_jobs_without_the_tag_share_one_key(open_shared: Open, make_job: Any) -> None:
    """All jobs without the tag share one key, so they get one share, however many they are. A tag of another name
    counts as none.
    """
    store = open_shared(fair="tenant")
    store.add_jobs([make_job(OLD, id=f"none.{number}") for number in range(100)], tags=["nightly", "tenants:acme"])
    add(store, make_job, "acme", 100, run_time=OLD + timedelta(days=1))
    assert tenants_of(claimed_ids(store, 20)) == {"none": 10, "acme": 10}


def test_a_changed_job_has_the_key_of_its_present_tag(open_shared: Open, make_job: Any) -> None:
    """A change of the job or of its run time leaves the key. Other tags give it another key, and no tag gives none."""
    store = open_shared(fair="tenant")
    store.add_jobs([make_job(FAR, id="j")], tags=["tenant:a", "x"])

    def refs() -> set[str]:
        found = store.store.get(["j"])[0]
        assert found is not None
        return set(found.refs)

    store.update_job(make_job(FAR, id="j", name="renamed"))
    store.run_now("j")
    assert refs() == {"fair:a", "tag:tenant:a", "tag:x"}
    store.set_tags("j", ["tenant:b"])
    assert refs() == {"fair:b", "tag:tenant:b"}
    store.set_tags("j", ["x"])
    assert refs() == {"tag:x"}


def test_a_recurring_job_keeps_its_key_after_a_run(open_shared: Open, make_job: Any) -> None:
    """When the job waits for its next run, it still has its fair key."""
    store = open_shared(fair="tenant")
    trigger = IntervalTrigger(seconds=60, start_date=OLD, timezone="UTC")
    store.add_jobs([make_job(OLD, id="j", trigger=trigger)], tags=["tenant:a"])
    (occurrence,) = store.claim_batch(datetime.now(UTC)).occurrences
    occurrence.run_at([OLD])
    occurrence.plan(FAR)
    store.finish(occurrence, Finish.EXECUTED)
    store.tracker.flush()
    found = store.store.get(["j"])[0]
    assert found is not None
    assert (found.state, set(found.refs)) == ("due", {"fair:a", "tag:tenant:a"})


def test_a_key_keeps_to_its_rate(open_shared: Open, make_job: Any) -> None:
    """With a rate of one an hour, each tenant gets one run of its due jobs."""
    store = open_shared(fair={"by": "tenant", "rate": "1/h"})
    add(store, make_job, "a", 5)
    add(store, make_job, "b", 5)
    assert tenants_of(claimed_ids(store, 20) + claimed_ids(store, 20)) == {"a": 1, "b": 1}


def test_a_key_with_its_most_runs_in_flight_gets_no_other(open_shared: Open, make_job: Any) -> None:
    """The end of a run frees its place, and a run that is put back frees it too. Jobs of other keys run meanwhile."""
    store = open_shared(fair={"by": "tenant", "max_in_flight": 2})
    add(store, make_job, "a", 4)
    add(store, make_job, "b", 1)
    first = claimed(store)
    assert tenants_of([each.job_id for each in first]) == {"a": 2, "b": 1}
    assert claimed(store) == []
    end(store, next(each for each in first if each.job_id == "a.0"))
    (second,) = claimed(store)
    assert second.job_id == "a.2"
    store.release([second])
    store.tracker.flush()
    (again,) = claimed(store)
    assert again.job_id in ("a.2", "a.3")


def test_a_long_run_of_a_recurring_job_keeps_its_place(open_shared: Open, make_job: Any) -> None:
    """The store has such a run in an item of its own, and the job waits again. The place is free when the run ends."""
    store = open_shared(fair={"by": "tenant", "max_in_flight": 1})
    trigger = IntervalTrigger(days=36500, start_date=OLD, timezone="UTC")
    add(store, make_job, "a", 2, trigger=trigger)
    (occurrence,) = claimed(store, following=FAR)
    time.sleep(SPLIT_AFTER_S + 0.01)
    store.tracker.flush()
    assert occurrence.handle.split
    assert store.store.get(["a.0"])[0].state == "due"  # type: ignore[union-attr]
    store.tracker.extend_leases()
    assert claimed(store) == []
    end(store, occurrence)
    (second,) = claimed(store)
    assert second.job_id == "a.1"


def test_a_place_lasts_as_long_as_the_leases_are_extended(open_shared: Open, make_job: Any) -> None:
    """While a process extends the lease of a run, the run keeps its place, however long it takes."""
    store = open_shared(fair={"by": "tenant", "max_in_flight": 1}, lease_s=0.3)
    add(store, make_job, "a", 2)
    (occurrence,) = claimed(store)
    for _ in range(14):
        time.sleep(0.1)
        store.tracker.extend_leases()
        assert claimed(store) == []
    end(store, occurrence)
    assert len(claimed(store)) == 1


def test_runs_that_leave_the_store_first_are_not_counted(open_fake: Any) -> None:
    """With delivery at most once, runs leave the store when they begin, so a limit of runs in flight is refused."""
    with pytest.raises(ConfigError, match="at_least_once"):
        open_fake(fair={"by": "tenant", "max_in_flight": 1}, delivery="at_most_once")


def test_the_numbers_of_the_store_name_who_is_behind(open_shared: Open, make_job: Any) -> None:
    """The command line, the metrics and the dashboard read these numbers."""
    store = open_shared(fair={"by": "tenant", "weights": {"gold": 4}})
    add(store, make_job, "iron", 30)
    add(store, make_job, "gold", 30)
    claimed_ids(store, 20)
    counts: Counts = store.store.counts()
    (numbers,) = fair_topics(store.store, counts)
    assert (numbers.topic, numbers.waiting) == ("job", 40)
    assert {key.key: key.weight for key in numbers.keys} == {"iron": 1, "gold": 4}


def test_off_ends_the_shares_and_none_leaves_them(open_fake: Any, make_job: Any) -> None:
    """A store that is opened without the setting keeps the fair shares of the namespace. "off" ends them for all
    processes.
    """
    for setting, topics in [("tenant", ["job"]), (None, ["job"]), ("off", [])]:
        store = open_fake(fair=setting)
        if store.connection.fair is not None:
            store.connection.fair.write_to(store.store)
        assert FairShares(store.store).topics() == topics
        assert store.claim_batch(datetime.now(UTC)).occurrences == []


def test_without_the_setting_no_job_has_a_key_and_no_key_of_the_server_is_used(
    shared_fake: Any, open_fake: Any, namespace: str, make_job: Any
) -> None:
    """Without the setting, the store writes the same keys and refs as before fair shares existed."""
    store = open_fake()
    add(store, make_job, "a", 3)
    assert len(claimed_ids(store, 2)) == 2
    assert not [name for name in shared_fake.scan_iter(f"*{namespace}:*") if b":fair" in name or b":ready" in name]
    found = store.store.get(["a.2"])[0]
    assert set(found.refs) == {"tag:tenant:a", "tag:nightly"}


@pytest.mark.parametrize(
    ("fair", "wrong"),
    [
        (7, "expected fair to be a tag"),
        ("tenant:acme", "expected fair to be a tag"),
        ({"weights": {"gold": 4}}, "expected fair to be a tag"),
        ({"by": "tenant", "wieghts": {}}, "expected fair to be a tag"),
        ({"by": "tenant", "weights": ["gold"]}, "expected fair.weights"),
        ({"by": "tenant", "weights": {"gold": 400}}, "expected the weight 'gold' to be a number from 0.01 to 100"),
        ({"by": "tenant", "default_weight": "much"}, "expected the weight 'default_weight'"),
        ({"by": "tenant", "rate": "50"}, "expected fair.rate"),
        ({"by": "tenant", "rate": "0/s"}, "expected fair.rate"),
        ({"by": "tenant", "max_in_flight": -1}, "expected max_in_flight to be a whole number from 0 up"),
        ({"by": "tenant", "max_in_flight": "3"}, "expected max_in_flight to be a whole number from 0 up"),
    ],
)
def test_an_error_names_the_wrong_setting(fair: Any, wrong: str) -> None:
    """A wrong setting raises an error before the store is opened."""
    with pytest.raises(ConfigError, match=wrong):
        RedisWheelJobStore("redis://localhost", fair=fair)


def test_a_small_tenant_starts_early_behind_the_backlog_of_another(open_shared: Open) -> None:
    """5,000 jobs of a tenant are due before the only job of another. A scheduler starts that job among the first."""
    STARTED.clear()
    store = open_shared(fair="tenant", allow=ALLOW)
    producer = Producer(store, timezone="UTC", job_defaults={"misfire_grace_time": None})
    now = datetime.now(UTC)
    big = [
        producer.make(note_start, DateTrigger(now - timedelta(minutes=10), "UTC"), ["big"], id=f"big.{number}")
        for number in range(5000)
    ]
    assert store.add_jobs(big, tags=["tenant:big"]) == []
    producer.add_job(note_start, DateTrigger(now - timedelta(minutes=1), "UTC"), args=["small"], tags=["tenant:small"])
    FairShares(store.store).configure("job", None)  # so that the start of the scheduler must make the jobs fair
    scheduler = WheelBackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore(store)
    scheduler.start()
    try:
        until = time.monotonic() + 60
        while not any(tenant == "small" for tenant, _ in STARTED) and time.monotonic() < until:
            time.sleep(0.01)
        scheduler.pause()
    finally:
        scheduler.shutdown()
    tenants = [tenant for tenant, _ in STARTED]
    assert "small" in tenants
    assert tenants.index("small") <= 1000
