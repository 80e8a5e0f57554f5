"""What a shared store promises, with stock schedulers and with ours, in real processes over a real server."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from wheel_sched_apscheduler import Producer, RedisWheelJobStore

from wheel_sched.testing.servers import TemporaryServer, temporary_server

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

FOLDER = Path(__file__).parent / "processes"
PATIENCE_S = 60.0
JOB = "firing:record"


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for what other processes do."""
    until_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.01)  # another process's doing; there is nothing to wait on


class Firing(NamedTuple):
    """One run, as the job itself told it."""

    fire_id: str
    pid: int
    token: int
    at_ms: int


class Runner:
    """A scheduler process."""

    def __init__(self, settings: dict[str, Any], judge_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "run_scheduler.py"), json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JUDGE_URL": judge_url},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, Any]:
        """End it in order; how it was."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        """Kill it if it still runs. Idempotent."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class House:
    """A server for the jobs, one for the judge, and the processes."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str]) -> None:
        self._stack = stack
        self._kinds = itertools.cycle(kinds)
        # each change is on disk before it is answered: what is lost below is not the server's loss
        self.server: TemporaryServer = stack.enter_context(temporary_server(fsync="always"))
        judge = stack.enter_context(temporary_server())
        self.judge_url = judge.url
        self.judge: redis.Redis = stack.enter_context(redis.Redis.from_url(judge.url))
        monkeypatch.syspath_prepend(str(FOLDER))
        self.store = RedisWheelJobStore(self.server.url, allow=["firing"])
        self.producer = stack.enter_context(Producer(self.store, timezone="UTC"))
        self.runners: list[Runner] = []

    def run(self, count: int = 1, *, lease_s: float = 60.0, **options: Any) -> list[Runner]:
        """Start schedulers, and wait until they are ready."""
        settings = {"url": self.server.url, "store": {"lease_s": lease_s, **options}}
        started = [Runner({**settings, "kind": next(self._kinds)}, self.judge_url) for _ in range(count)]
        self.runners += started
        for runner in started:
            self._stack.callback(runner.kill)
        for runner in started:
            runner.wait_ready()
        return started

    def one_shots(self, count: int, *, in_s: float, apart_ms: float, work_s: float = 0.0, **options: Any) -> None:
        start = datetime.now(UTC) + timedelta(seconds=in_s)
        jobs = [
            self.producer.make(
                JOB,
                "date",
                args=(work_s,),
                id=f"j{n}",
                run_date=start + timedelta(milliseconds=n * apart_ms),
                **options,
            )
            for n in range(count)
        ]
        assert self.producer.add_jobs(jobs) == []

    def fired(self) -> list[Firing]:
        rows: Any = self.judge.lrange("fired", 0, -1)
        return [Firing(row[0], *map(int, row[1:])) for row in (raw.decode().split() for raw in rows)]

    def jobs_fired(self) -> set[str]:
        return {firing.fire_id.partition(":")[0] for firing in self.fired()}

    def wait_empty(self) -> None:
        """Until nothing waits and nothing is in flight: from then on nothing can be doubled."""
        wait_until(lambda: self.store.count() == 0 and self.store.in_flight() == [], "the store was empty")


@pytest.fixture(params=[["stock"], ["background", "asyncio", "blocking"]], ids=["stock", "ours"])
def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Processes in it get these schedulers in turn."""
    with ExitStack() as stack:
        yield House(stack, monkeypatch, request.param)


def test_four_processes_fire_each_job_once(house: House) -> None:
    """300 one-shots 2 ms apart: 300 firings, and four schedulers alive."""
    house.one_shots(300, in_s=1.5, apart_ms=2)
    runners = house.run(4)
    wait_until(lambda: len(house.fired()) >= 300, "all had fired")
    house.wait_empty()
    assert Counter(firing.fire_id for firing in house.fired()).most_common(1)[0][1] == 1
    assert len(house.fired()) == 300
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 4


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
    wait_until(lambda: len(house.fired()) >= 250, "all ticks had fired")
    house.wait_empty()
    assert len({firing.fire_id for firing in house.fired()}) == 250
    assert len(house.fired()) == 250
    assert [runner.stop()["alive"] for runner in house.runners] == [True, True]


def test_a_killed_replica_loses_nothing(house: House) -> None:
    """400 one-shots 10 ms apart, a replica killed: 400 fired, and doubled only what the killed one had."""
    house.one_shots(400, in_s=1, apart_ms=10)
    doomed, survivor = house.run(2, lease_s=8)
    wait_until(lambda: sum(firing.pid == doomed.pid for firing in house.fired()) >= 50, "it had fired some")
    doomed.kill()
    wait_until(lambda: len(house.jobs_fired()) == 400, "all had fired")
    house.wait_empty()
    counts = Counter(firing.fire_id for firing in house.fired())
    by_doomed = {firing.fire_id for firing in house.fired() if firing.pid == doomed.pid}
    assert {fire_id for fire_id, count in counts.items() if count > 1} <= by_doomed
    assert max(counts.values()) <= 2
    assert survivor.stop() == {"alive": True}


def test_a_kill_in_the_middle_and_a_restart_lose_nothing(house: House) -> None:
    """1,000 due jobs at APScheduler's default grace, SIGKILL, restart: all of them ran, each later token greater."""
    house.one_shots(1000, in_s=-0.5, apart_ms=0, work_s=0.01)
    (doomed,) = house.run(1, lease_s=5)
    wait_until(lambda: len(house.fired()) >= 200, "some had fired")
    doomed.kill()
    assert len(house.jobs_fired()) < 1000
    house.run(1, lease_s=5)
    wait_until(lambda: len(house.jobs_fired()) == 1000, "all had fired")
    house.wait_empty()
    tokens: dict[str, int] = {}
    for firing in house.fired():
        assert firing.token > tokens.get(firing.fire_id, 0)
        tokens[firing.fire_id] = firing.token


def test_nothing_is_dropped_at_default_settings(house: House) -> None:
    """1,000 due jobs that take longer than the default grace of one second together: all of them run."""
    house.one_shots(1000, in_s=0, apart_ms=0, work_s=0.02)
    house.run(1)
    wait_until(lambda: len(house.jobs_fired()) == 1000, "all had fired")
    house.wait_empty()
    assert len(house.fired()) == 1000


def test_a_job_of_another_process_wakes_a_sleeping_scheduler(house: House) -> None:
    """Due in 20 ms, added by a process without a scheduler; the fall-back look would come in an hour."""
    house.run(1, max_sleep_s=3600)
    for number in range(20):
        moment = datetime.now(UTC) + timedelta(milliseconds=20)
        house.producer.add_job(JOB, "date", run_date=moment, id=f"j{number}")
        wait_until(lambda n=number: len(house.fired()) == n + 1, "it had fired")  # type: ignore[misc]
    for firing in house.fired():
        assert firing.at_ms >= int(firing.fire_id.rpartition(":")[2])


def test_long_ticks_survive_their_process(house: House) -> None:
    """A recurring job frees itself for its next tick; the tick under way is handed out again after a kill."""
    start = datetime.now(UTC)
    for number in range(3):
        house.producer.add_job(JOB, "interval", args=(60.0,), id=f"long{number}", hours=1, next_run_time=start)
    (doomed,) = house.run(1, lease_s=5)
    wait_until(lambda: len(house.fired()) == 3, "all three were under way")
    wait_until(lambda: house.store.count("scheduled") == 3, "they were free for their next ticks")
    first = {firing.fire_id for firing in house.fired()}
    assert len(first) == 3
    doomed.kill()
    house.run(1, lease_s=5)
    wait_until(lambda: len(house.fired()) == 6, "all three came again")
    assert {firing.fire_id for firing in house.fired()[3:]} == first


def test_a_server_that_is_killed_and_away_stops_nobody(house: House) -> None:
    """Ten seconds without a server: both schedulers live, and nothing is lost."""
    house.one_shots(200, in_s=1, apart_ms=60)
    runners = house.run(2, lease_s=5)
    wait_until(lambda: len(house.fired()) >= 20, "some had fired")
    house.server.sigkill()
    time.sleep(10)  # the time it is away is what is tested
    house.server.restart()
    wait_until(lambda: len(house.jobs_fired()) == 200, "all had fired")
    house.wait_empty()
    assert [runner.stop() for runner in runners] == [{"alive": True}] * 2
