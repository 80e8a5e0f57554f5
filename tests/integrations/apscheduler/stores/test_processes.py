"""What a shared store promises, with stock schedulers and with ours, in real processes over a real server."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

JOB = "firing:record"
House = Any


@pytest.fixture(params=[["stock"], ["background", "asyncio", "blocking"]], ids=["stock", "ours"])
def house(request: pytest.FixtureRequest, open_house: Any) -> House:
    """Processes in it get these schedulers in turn."""
    return open_house(request.param)


def test_four_processes_fire_each_job_once(house: House) -> None:
    """300 one-shots 2 ms apart: 300 firings, and four schedulers alive."""
    runners = house.run(4)
    house.one_shots(300, in_s=0.2, apart_ms=2)
    house.wait_until(lambda: len(house.fired()) >= 300, "all had fired")
    house.wait_empty()
    assert Counter(firing.occurrence_id for firing in house.fired()).most_common(1)[0][1] == 1
    assert len(house.fired()) == 300
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 4


def test_a_race_of_four_is_run_by_all_four(house: House) -> None:
    """One job at a time each, which waits for the slowest process: all of them come to claim, and none twice."""
    count = 200
    one_at_a_time = {
        "batch": 1,
        "executors": {"default": {"type": "debug"}},
    }  # stock asks its store, ours brings its own
    house.run(4, batch=1, scheduler=one_at_a_time)
    house.one_shots(count, in_s=0, apart_ms=0, func="firing:take_turn", args=(4, count))
    house.wait_until(lambda: len(house.fired()) >= count, "all had fired")
    house.wait_empty()
    shares = Counter(firing.pid for firing in house.fired())
    assert sum(shares.values()) == count
    assert set(shares) == {runner.pid for runner in house.runners}
    assert min(shares.values()) >= count / 10
    assert [runner.stop() for runner in house.runners] == [{"alive": True}] * 4


def test_two_processes_fire_each_tick_once(house: House) -> None:
    """50 jobs of one second, 5 ticks each: 250 firings."""
    house.run(2)
    start = datetime.now(UTC) + timedelta(seconds=1)
    jobs = [
        house.producer.make(
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
    assert house.producer.add_jobs(jobs) == []
    house.wait_until(lambda: len(house.fired()) >= 250, "all ticks had fired")
    house.wait_empty()
    assert len({firing.occurrence_id for firing in house.fired()}) == 250
    assert len(house.fired()) == 250
    assert [runner.stop()["alive"] for runner in house.runners] == [True, True]


def test_a_killed_replica_loses_nothing(house: House) -> None:
    """400 one-shots 10 ms apart, a replica killed: 400 fired, and doubled only what the killed one had."""
    house.one_shots(400, in_s=1, apart_ms=10)
    runners = house.run(2, lease_s=10)

    def busiest() -> tuple[int, int]:
        (first,) = Counter(firing.pid for firing in house.fired()).most_common(1) or [(0, 0)]
        return first

    house.wait_until(lambda: busiest()[1] >= 50, "one of them had fired some")
    doomed, survivor = sorted(runners, key=lambda runner: runner.pid != busiest()[0])
    doomed.kill()
    house.wait_until(lambda: len(house.jobs_fired()) == 400, "all had fired")
    house.wait_empty()
    counts = Counter(firing.occurrence_id for firing in house.fired())
    by_doomed = {firing.occurrence_id for firing in house.fired() if firing.pid == doomed.pid}
    assert {occurrence_id for occurrence_id, count in counts.items() if count > 1} <= by_doomed
    assert max(counts.values()) <= 2
    assert survivor.stop() == {"alive": True}


def test_a_kill_in_the_middle_and_a_restart_lose_nothing(house: House) -> None:
    """1,000 due jobs at APScheduler's default grace, SIGKILL, restart: all of them ran, each later token greater."""
    house.one_shots(300, in_s=-5, apart_ms=1)
    house.one_shots(700, in_s=-3, apart_ms=1, func="firing:record_and_wait", first=300)
    (doomed,) = house.run(1, lease_s=6)
    house.wait_until(lambda: len(house.jobs_fired()) > 302, "it was amid those that wait")
    doomed.kill()
    assert len(house.jobs_fired()) < 400
    house.judge.set("open", 1)
    house.run(1, lease_s=6)
    house.wait_until(lambda: len(house.jobs_fired()) == 1000, "all had fired")
    house.wait_empty()
    tokens: dict[str, int] = {}
    for firing in house.fired():
        assert firing.token > tokens.get(firing.occurrence_id, 0)
        tokens[firing.occurrence_id] = firing.token


def test_nothing_is_dropped_at_default_settings(house: House) -> None:
    """1,000 due jobs that take longer than the default grace of one second together: all of them run."""
    house.one_shots(1000, in_s=0, apart_ms=0, args=(0.02,))
    house.run(1)
    house.wait_until(lambda: len(house.jobs_fired()) == 1000, "all had fired")
    house.wait_empty()
    assert len(house.fired()) == 1000


def test_a_job_of_another_process_wakes_a_sleeping_scheduler(house: House) -> None:
    """Due in 20 ms, added by a process without a scheduler; the fall-back look would come in an hour."""
    house.run(1, max_sleep_s=3600)
    for number in range(20):
        moment = datetime.now(UTC) + timedelta(milliseconds=20)
        house.producer.add_job(JOB, "date", run_date=moment, id=f"j{number}")
        house.wait_until(lambda n=number: len(house.fired()) == n + 1, "it had fired")
    for firing in house.fired():
        assert firing.at_ms >= int(firing.occurrence_id.rpartition(":")[2])


def test_two_processes_never_both_add_an_id(open_house: Any) -> None:
    """200 ids, added by two processes at once: each is added by one of them and refused to the other."""
    house = open_house(["stock"])
    racers = [house.popen("add_jobs.py", house.server.url, "200") for _ in range(2)]
    house.wait_until(lambda: house.judge.llen("here") == 2, "both were ready")
    house.judge.rpush("go", 1, 1)
    added = {racer.pid: int(racer.communicate(timeout=60)[0]) for racer in racers}
    assert sum(added.values()) == house.store.count() == 200
    assert Counter(int(entry.name) for entry in house.store.entries()) == Counter(added)


def test_long_ticks_survive_their_process(house: House) -> None:
    """A recurring job frees itself for its next tick; the tick under way is handed out again after a kill."""
    start = datetime.now(UTC)
    for number in range(3):
        house.producer.add_job(JOB, "interval", args=(60.0,), id=f"long{number}", hours=1, next_run_time=start)
    (doomed,) = house.run(1, lease_s=6)
    house.wait_until(lambda: len(house.fired()) >= 3, "all three were under way")
    house.wait_until(lambda: house.store.count("scheduled") == 3, "they were free for their next ticks")
    first = {firing.occurrence_id for firing in house.fired()}
    assert len(first) == 3
    doomed.kill()
    house.run(1, lease_s=6)
    house.wait_until(lambda: len(house.fired()) >= 6, "all three came again")
    assert {firing.occurrence_id for firing in house.fired()[3:]} == first


def test_a_server_that_is_killed_and_away_stops_nobody(house: House) -> None:
    """Ten seconds without a server: both schedulers live, and nothing is lost."""
    house.one_shots(200, in_s=1, apart_ms=60)
    runners = house.run(2, lease_s=6)
    house.wait_until(lambda: len(house.fired()) >= 20, "some had fired")
    house.server.sigkill()
    time.sleep(10)  # the time it is away is what is tested
    house.server.restart()
    house.wait_until(lambda: len(house.jobs_fired()) == 200, "all had fired")
    house.wait_empty()
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 2
