"""A scheduler announces itself in its store, where `wheel-sched ps` lists it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import RedisWheelJobStore, WheelBackgroundScheduler

from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore, LiveMember, Members, open_store


@pytest.fixture
def shared() -> Iterator[DelayStore]:
    with open_store("memory:") as store:
        yield store


def until(found: Callable[[], list[LiveMember]], condition: Callable[[list[LiveMember]], object]) -> list[LiveMember]:
    until_s = time.monotonic() + 30
    while not condition(members := found()):
        assert time.monotonic() < until_s, members
        time.sleep(0.005)  # polls until the announcer's thread has made its call
    return members


@pytest.mark.parametrize("kind", [WheelBackgroundScheduler, BackgroundScheduler])
def test_a_scheduler_is_listed_while_it_runs(shared: DelayStore, kind: type) -> None:
    """A running scheduler is listed with the alias of its jobstore and the number of its claimed jobs.

    While it is paused, its entry says that it releases nothing. The shutdown removes it from the list.
    """
    live = Members(shared).live
    scheduler = kind(jobstores={"jobs": RedisWheelJobStore(store=shared, allow=[__name__], announce_s=0.02)})
    scheduler.start()
    (found,) = until(live, len)
    member = found.member
    assert (member.kind, member.name, member.topics, member.pid) == ("scheduler", "jobs", ("jobs",), os.getpid())
    assert (member.releases, member.holds) == (True, {"in_flight": 0})
    scheduler.pause()
    until(live, lambda members: not members[0].member.releases)
    scheduler.resume()
    until(live, lambda members: members[0].member.releases)
    scheduler.shutdown()
    assert live() == []


def test_one_setting_switches_it_off(shared: DelayStore) -> None:
    """With `announce_s=0` a running scheduler announces nothing."""
    jobstore = RedisWheelJobStore(store=shared, allow=[__name__], announce_s=0)
    scheduler = BackgroundScheduler(jobstores={"default": jobstore})
    scheduler.start()
    time.sleep(0.1)  # longer than an announcement would take
    assert Members(shared).live() == []
    scheduler.shutdown()


def test_a_jobstore_without_a_scheduler_is_no_member(shared: DelayStore) -> None:
    """A program that only adds or lists jobs starts a jobstore without a scheduler, and is not listed."""
    jobstore = RedisWheelJobStore(store=shared, allow=[__name__], announce_s=0.02)
    jobstore.start(None, "default")
    time.sleep(0.1)  # longer than an announcement would take
    assert Members(shared).live() == []
    jobstore.shutdown()


@pytest.mark.parametrize("announce_s", [-1, 86_400, "often"])
def test_a_wrong_period_is_refused(announce_s: float) -> None:
    """A period that is negative, a day long or no number is refused. The error names the setting."""
    with pytest.raises(ConfigError, match="announce_s"):
        RedisWheelJobStore("redis://127.0.0.1:1", announce_s=announce_s)
