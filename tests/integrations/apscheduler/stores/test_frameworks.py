"""Every scheduler of APScheduler over the shared store, each in a process of its own, over a real server."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]

KINDS = ["stock", "stock-blocking", "stock-asyncio", "gevent", "tornado", "twisted"]
JOB = "firing:record"
COROUTINE = "firing:record_later"  # these run them on their loop


def never_early(house: Any) -> bool:
    return all(firing.at_ms >= int(firing.occurrence_id.rpartition(":")[2]) for firing in house.fired())


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_what_another_process_adds(open_house: Any, kind: str) -> None:
    """Woken while it sleeps (its own next look would come in an hour), once each, on time, and alive at the end."""
    house = open_house([kind])
    (runner,) = house.run(1, max_sleep_s=3600)
    for number in range(3):
        moment = datetime.now(UTC) + timedelta(milliseconds=20)
        func = COROUTINE if number == 2 and kind in ("stock-asyncio", "tornado") else JOB
        house.producer.add_job(func, "date", run_date=moment, id=f"j{number}")
        house.wait_until(lambda n=number: len(house.fired()) == n + 1, f"job {number} had fired")
    house.producer.add_job(JOB, "interval", seconds=0.1, id="tick")
    house.wait_until(lambda: len(house.fired()) >= 6, "it had ticked thrice")
    house.producer.remove_job("tick")
    house.wait_empty()
    assert max(Counter(firing.occurrence_id for firing in house.fired()).values()) == 1
    assert {firing.pid for firing in house.fired()} == {runner.pid}
    assert never_early(house)
    assert runner.stop() == {"alive": True}


def test_six_kinds_share_a_store(open_house: Any) -> None:
    """300 one-shots 2 ms apart: 300 firings, and six schedulers alive."""
    house = open_house(KINDS)
    runners = house.run(len(KINDS))
    house.one_shots(300, in_s=0.2, apart_ms=2)
    house.wait_until(lambda: len(house.fired()) >= 300, "all had fired")
    house.wait_empty()
    assert len(house.jobs_fired()) == len(house.fired()) == 300
    assert never_early(house)
    assert [runner.stop() for runner in runners] == [{"alive": True}] * len(KINDS)
