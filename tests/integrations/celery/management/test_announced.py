"""A worker announces itself in the delay store, where `wheel-sched ps` lists it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.announcing import AnnounceStep

from wheel_sched.errors import ConfigError
from wheel_sched.store import LiveMember, Members

pytestmark = pytest.mark.usefixtures("real_server")


def until(found: Callable[[], list[LiveMember]], count: int) -> list[LiveMember]:
    until_s = time.monotonic() + 30
    while len(members := found()) != count:
        assert time.monotonic() < until_s, members
        time.sleep(0.005)  # polls until the announcer's thread has made its call
    return members


def test_a_worker_is_listed_while_it_runs(app: Celery) -> None:
    """A running worker is listed with its node name, its queues and its counts of tasks, until it stops."""
    live = Members(app.wheel.store).live
    worker: Any = SimpleNamespace(app=app, hostname="w1@here", wheel_dispatcher=None)
    step = AnnounceStep(worker)
    assert step.include_if(worker)
    step.create(worker)
    step.start(worker)
    step.start(worker)  # Celery starts steps again after a reconnect
    (found,) = until(live, 1)
    member = found.member
    assert (member.kind, member.name, member.pid) == ("celery-worker", "w1@here", os.getpid())
    assert member.topics == (app.conf.task_default_queue,)
    assert (member.releases, member.takes_in) == (True, ())
    assert member.holds == {"active": 0, "reserved": 0}
    step.stop(worker)
    assert live() == []
    step.start(worker)
    until(live, 1)
    step.terminate(worker)
    assert live() == []


def test_a_worker_that_dispatches_nothing_says_so(other_app: Callable[..., Celery], redis_url: str, name: str) -> None:
    """A worker with `dispatch=False` announces that it releases nothing, so `doctor` expects no releases from it."""
    app = other_app(redis_url, name, dispatch=False)
    worker: Any = SimpleNamespace(app=app, hostname="w1@here")
    step = AnnounceStep(worker)
    step.start(worker)
    (found,) = until(Members(app.wheel.store).live, 1)
    assert not found.member.releases
    step.stop(worker)
    app.wheel.close()
    app.close()


@pytest.mark.parametrize("settings", [{"announce": 0}, {"horizon": None, "announce": "0s"}])
def test_one_setting_switches_it_off(
    other_app: Callable[..., Celery], redis_url: str, name: str, settings: dict[str, Any]
) -> None:
    """With `announce` 0, in seconds or as a duration, a worker does not include the step that announces."""
    app = other_app(redis_url, name, **settings)
    worker: Any = SimpleNamespace(app=app)
    assert not AnnounceStep(worker).include_if(worker)
    app.close()


def test_without_a_store_there_is_nothing_to_announce_in() -> None:
    """With `url=None` the integration has no store, so a worker does not include the step that announces."""
    app = Celery("bare", broker="memory://", set_as_current=False)
    install(app, None, None)
    worker: Any = SimpleNamespace(app=app)
    assert not AnnounceStep(worker).include_if(worker)
    app.close()


@pytest.mark.parametrize("announce", ["often", -1, 86_400])
def test_a_wrong_period_is_refused(other_app: Callable[..., Celery], redis_url: str, name: str, announce: Any) -> None:
    """A period that is negative, a day long or no duration is refused. The error names the setting."""
    app = other_app(redis_url, name, announce=announce)
    with pytest.raises(ConfigError, match="announce"):
        _ = app.wheel.settings
    app.close()
