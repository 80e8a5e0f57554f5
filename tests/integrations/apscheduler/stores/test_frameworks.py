"""Every scheduler of APScheduler, each in its own process, over one store on a real server."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

KINDS = ["stock", "stock-blocking", "stock-asyncio", "gevent", "tornado", "twisted"]
JOB = "firing:record"
COROUTINE = "firing:record_later"  # these schedulers run coroutines on their loop


def never_early(fleet: Any) -> bool:
    return all(firing.at_ms >= int(firing.occurrence_id.rpartition(":")[2]) for firing in fleet.fired())


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_what_another_process_adds(open_fleet: Any, kind: str) -> None:
    """A scheduler sleeps for up to an hour. When another process adds a job, the scheduler wakes and runs the job once,
    not early. It is alive at the end."""
    fleet = open_fleet([kind])
    (runner,) = fleet.run(1, max_sleep_s=3600)
    for number in range(3):
        moment = datetime.now(UTC) + timedelta(milliseconds=20)
        func = COROUTINE if number == 2 and kind in ("stock-asyncio", "tornado") else JOB
        fleet.producer.add_job(func, "date", run_date=moment, id=f"j{number}")
        fleet.wait_until(lambda n=number: len(fleet.fired()) == n + 1, f"job {number} had run")
    fleet.producer.add_job(JOB, "interval", seconds=0.1, id="tick")
    fleet.wait_until(lambda: len(fleet.fired()) >= 6, "the job had run three times")
    fleet.producer.remove_job("tick")
    fleet.wait_empty()
    assert max(Counter(firing.occurrence_id for firing in fleet.fired()).values()) == 1
    assert {firing.pid for firing in fleet.fired()} == {runner.pid}
    assert never_early(fleet)
    assert runner.stop() == {"alive": True}


def test_six_kinds_share_a_store(open_fleet: Any) -> None:
    """Six schedulers share 300 one-shot jobs, due 2 ms apart. Each job runs once, not early, and all schedulers are
    alive at the end."""
    fleet = open_fleet(KINDS)
    runners = fleet.run(len(KINDS))
    fleet.one_shots(300, in_s=0.2, apart_ms=2)
    fleet.wait_until(lambda: len(fleet.fired()) >= 300, "all jobs had run")
    fleet.wait_empty()
    assert len(fleet.jobs_fired()) == len(fleet.fired()) == 300
    assert never_early(fleet)
    assert [runner.stop() for runner in runners] == [{"alive": True}] * len(KINDS)
