"""The promises of a shared store, tested with stock schedulers and ours in real processes on a real server."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

JOB = "firing:record"
Fleet = Any


SCHEDULERS = {"stock": ["stock"], "ours": ["background", "asyncio", "blocking"]}

# Where a process or the server dies, one kind of scheduler is enough: the simulated world `apscheduler` kills both
# kinds at every call, and its invariants `lost`, `duplicates` and `token` judge them.
stock = pytest.mark.parametrize("fleet", ["stock"], indirect=True)
ours = pytest.mark.parametrize("fleet", ["ours"], indirect=True)


@pytest.fixture(params=SCHEDULERS)
def fleet(request: pytest.FixtureRequest, open_fleet: Any) -> Fleet:
    """A fleet whose processes get the schedulers of this fixture's parameter in turn."""
    return open_fleet(SCHEDULERS[request.param])


def test_four_processes_fire_each_job_once(fleet: Fleet) -> None:
    """Four processes share 300 one-shot jobs, due 2 ms apart. Each job runs once, and all four schedulers stay
    alive."""
    runners = fleet.run(4)
    fleet.one_shots(300, in_s=0.2, apart_ms=2)
    fleet.wait_until(lambda: len(fleet.fired()) >= 300, "all jobs had run")
    fleet.wait_empty()
    assert Counter(firing.occurrence_id for firing in fleet.fired()).most_common(1)[0][1] == 1
    assert len(fleet.fired()) == 300
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 4


def test_a_race_of_four_is_run_by_all_four(fleet: Fleet) -> None:
    """A job waits while its process is far ahead of the slowest process. So all processes claim jobs, and no job runs
    twice."""
    count = 200
    one_at_a_time = {
        "batch": 1,
        "executors": {"default": {"type": "debug"}},
    }  # a stock scheduler takes the batch of its store; ours has the setting `batch`
    fleet.run(4, batch=1, scheduler=one_at_a_time)
    fleet.one_shots(count, in_s=0, apart_ms=0, func="firing:take_turn", args=(4, count))
    fleet.wait_until(lambda: len(fleet.fired()) >= count, "all jobs had run")
    fleet.wait_empty()
    shares = Counter(firing.pid for firing in fleet.fired())
    assert sum(shares.values()) == count
    assert set(shares) == {runner.pid for runner in fleet.runners}
    assert min(shares.values()) >= count / 10
    assert [runner.stop() for runner in fleet.runners] == [{"alive": True}] * 4


def test_two_processes_fire_each_tick_once(fleet: Fleet) -> None:
    """Two processes share 50 jobs, each due five times, once a second. There are 250 runs, none twice."""
    fleet.run(2)
    start = datetime.now(UTC) + timedelta(seconds=1)
    jobs = [
        fleet.producer.make(
            JOB,
            "interval",
            seconds=1,
            start_date=start,
            end_date=start + timedelta(seconds=4.5),
            id=f"j{n}",
            coalesce=False,
            max_instances=10,
        )
        for n in range(50)
    ]
    assert fleet.producer.add_jobs(jobs) == []
    fleet.wait_until(lambda: len(fleet.fired()) >= 250, "all runs had taken place")
    fleet.wait_empty()
    assert len({firing.occurrence_id for firing in fleet.fired()}) == 250
    assert len(fleet.fired()) == 250
    assert [runner.stop()["alive"] for runner in fleet.runners] == [True, True]


@stock
def test_a_killed_replica_loses_nothing(fleet: Fleet) -> None:
    """Of 400 one-shot jobs all run, although one process is killed. Only runs of the killed process can be doubled."""
    fleet.one_shots(400, in_s=1, apart_ms=10)
    runners = fleet.run(2, lease_s=10)

    def busiest() -> tuple[int, int]:
        (first,) = Counter(firing.pid for firing in fleet.fired()).most_common(1) or [(0, 0)]
        return first

    fleet.wait_until(lambda: busiest()[1] >= 50, "one process had run 50 jobs")
    doomed, survivor = sorted(runners, key=lambda runner: runner.pid != busiest()[0])
    doomed.kill()
    fleet.wait_until(lambda: len(fleet.jobs_fired()) == 400, "all jobs had run")
    fleet.wait_empty()
    counts = Counter(firing.occurrence_id for firing in fleet.fired())
    by_doomed = {firing.occurrence_id for firing in fleet.fired() if firing.pid == doomed.pid}
    assert {occurrence_id for occurrence_id, count in counts.items() if count > 1} <= by_doomed
    assert max(counts.values()) <= 2
    assert survivor.stop() == {"alive": True}


@ours
def test_a_kill_in_the_middle_and_a_restart_lose_nothing(fleet: Fleet) -> None:
    """A scheduler with 1,000 due jobs is killed and restarted. All jobs run, and a repeated run has a greater token."""
    fleet.one_shots(300, in_s=-5, apart_ms=1)
    fleet.one_shots(700, in_s=-3, apart_ms=1, func="firing:record_and_wait", first=300)
    (doomed,) = fleet.run(1, lease_s=6)
    fleet.wait_until(lambda: len(fleet.jobs_fired()) > 302, "jobs that wait had begun")
    doomed.kill()
    assert len(fleet.jobs_fired()) < 400
    fleet.judge.set("open", 1)
    fleet.run(1, lease_s=6)
    fleet.wait_until(lambda: len(fleet.jobs_fired()) == 1000, "all jobs had run")
    fleet.wait_empty()
    tokens: dict[str, int] = {}
    for firing in fleet.fired():
        assert firing.token > tokens.get(firing.occurrence_id, 0)
        tokens[firing.occurrence_id] = firing.token


def test_nothing_is_dropped_at_default_settings(fleet: Fleet) -> None:
    """1,000 jobs are due at once and take longer to run than the default grace time of one second. All of them run."""
    fleet.one_shots(1000, in_s=0, apart_ms=0, args=(0.02,))
    fleet.run(1)
    fleet.wait_until(lambda: len(fleet.jobs_fired()) == 1000, "all jobs had run")
    fleet.wait_empty()
    assert len(fleet.fired()) == 1000


def test_a_job_of_another_process_wakes_a_sleeping_scheduler(fleet: Fleet) -> None:
    """A process without a scheduler adds a job that is due in 20 ms. The scheduler runs it, although its next pass is
    in an hour."""
    fleet.run(1, max_sleep_s=3600)
    for number in range(20):
        moment = datetime.now(UTC) + timedelta(milliseconds=20)
        fleet.producer.add_job(JOB, "date", run_date=moment, id=f"j{number}")
        fleet.wait_until(lambda n=number: len(fleet.fired()) == n + 1, "the job had run")
    for firing in fleet.fired():
        assert firing.at_ms >= int(firing.occurrence_id.rpartition(":")[2])


def test_two_processes_never_both_add_an_id(open_fleet: Any) -> None:
    """Two processes add the same 200 ids at once. For each id one succeeds and the other is refused."""
    fleet = open_fleet(["stock"])
    racers = [fleet.popen("add_jobs.py", fleet.server.url, "200") for _ in range(2)]
    fleet.wait_until(lambda: fleet.judge.llen("here") == 2, "both were ready")
    fleet.judge.rpush("go", 1, 1)
    added = {racer.pid: int(racer.communicate(timeout=60)[0]) for racer in racers}
    assert sum(added.values()) == fleet.store.count() == 200
    assert Counter(int(entry.name) for entry in fleet.store.entries()) == Counter(added)


@ours
def test_long_ticks_survive_their_process(fleet: Fleet) -> None:
    """A long run of a recurring job gets an item of its own. After a kill another process runs it again."""
    start = datetime.now(UTC)
    for number in range(3):
        fleet.producer.add_job(JOB, "interval", args=(60.0,), id=f"long{number}", hours=1, next_run_time=start)
    (doomed,) = fleet.run(1, lease_s=6)
    fleet.wait_until(lambda: len(fleet.fired()) >= 3, "all three were under way")
    fleet.wait_until(lambda: fleet.store.count("scheduled") == 3, "the jobs waited for their next runs")
    first = {firing.occurrence_id for firing in fleet.fired()}
    assert len(first) == 3
    doomed.kill()
    fleet.run(1, lease_s=6)
    fleet.wait_until(lambda: len(fleet.fired()) >= 6, "all three runs were repeated")
    assert {firing.occurrence_id for firing in fleet.fired()[3:]} == first


@stock
def test_a_server_that_is_killed_and_away_stops_nobody(fleet: Fleet) -> None:
    """The server is killed and is away for ten seconds. Both schedulers stay alive, and all jobs run."""
    fleet.one_shots(200, in_s=1, apart_ms=60)
    runners = fleet.run(2, lease_s=6)
    fleet.wait_until(lambda: len(fleet.fired()) >= 20, "some jobs had run")
    fleet.server.sigkill()
    time.sleep(10)  # the test is about this outage
    fleet.server.restart()
    fleet.wait_until(lambda: len(fleet.jobs_fired()) == 200, "all jobs had run")
    fleet.wait_empty()
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 2
