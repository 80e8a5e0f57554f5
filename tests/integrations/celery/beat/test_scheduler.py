"""The scheduler of `celery beat -S wheel`, and which scheduler an app gets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import Service
from celery.exceptions import ImproperlyConfigured
from wheel_sched_celery import install
from wheel_sched_celery.beat import scheduler
from wheel_sched_celery.beat.scheduler import BeatScheduler
from wheel_sched_celery.installing import SCHEDULER
from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher

from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.errors import ConfigError, StoreUnavailable
from wheel_sched.store import Members


class Embedded:
    """Stands in for the dispatcher of a beat process."""

    made: list[Embedded]
    dispatcher = SimpleNamespace(stats=DispatcherStats(in_flight=2))

    def __init__(self, _wheel: Any, beat: bool) -> None:
        self.calls = [f"beat={beat}"]
        Embedded.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


def test_a_beat_process_runs_a_dispatcher_until_it_is_closed(beat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Embedded.made = []
    monkeypatch.setattr(scheduler, "EmbeddedDispatcher", Embedded)
    service = Service(beat.app, scheduler_cls=SCHEDULER, schedule_filename="unused")
    assert isinstance(service.get_scheduler(lazy=True), BeatScheduler)
    assert Embedded.made == []
    made = service.scheduler
    (member,) = _live(beat.store)
    assert (member.kind, member.releases, dict(member.holds)) == ("celery-beat", True, {"in_flight": 2})
    assert (member.name, member.pid) == (f"beat@{member.host}", os.getpid())
    assert 0 < made.tick() <= made.max_interval
    assert "celery" in made.info
    service.sync()
    service.sync()
    assert [embedded.calls for embedded in Embedded.made] == [["beat=True", "start", "stop"]]
    assert Members(beat.store).live() == []


def _live(store: Any) -> list[Any]:
    """The members, as soon as there is one: a thread announces it."""
    by_s = time.monotonic() + 10
    while not (found := Members(store).live()) and time.monotonic() < by_s:
        time.sleep(0.001)
    return [one.member for one in found]


def test_an_app_without_a_store_is_refused() -> None:
    app = Celery("plain", broker="memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=r"install\(app\)"):
        Service(app, scheduler_cls=SCHEDULER, schedule_filename="unused").get_scheduler()


@pytest.mark.parametrize("where", ["argument", "conf", "conf before"])
def test_beat_takes_the_entries_of_the_store(where: str) -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    if where == "conf before":
        app.conf.wheel_beat = True
        assert app.conf.timezone is None  # the app is configured now
    install(app, "redis://nowhere.invalid", **({"beat": True} if where == "argument" else {}))
    if where == "conf":
        app.conf.wheel_beat = True
    assert app.conf.beat_scheduler == SCHEDULER


@pytest.mark.parametrize("conf", [{"wheel_beat": True, "beat_scheduler": "my:Own"}, {}])
def test_a_scheduler_that_the_app_chose_stays(make_beat: Callable[..., Any], conf: dict[str, Any]) -> None:
    beat = make_beat(**conf)
    assert beat.app.conf.beat_scheduler == conf.get("beat_scheduler", "celery.beat:PersistentScheduler")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"beat": "yes"}, "True or False"),
        ({"beat": True, "dispatch": False}, "dispatch=True"),
        ({"beat_catch_up": "some"}, "beat_catch_up"),
        ({"beat_catch_up_limit": 0}, "beat_catch_up_limit"),
        ({"beat_grace": -1}, "beat_grace"),
        ({"beat_file": 5}, "beat_file"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], problem: str) -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    wheel = install(app, "redis://nowhere.invalid", **settings)
    with pytest.raises(ConfigError, match=problem):
        _ = wheel.settings


def test_a_schedule_that_cannot_be_read_does_not_stop_the_dispatcher(
    beat: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    embedded = EmbeddedDispatcher(beat.wheel, beat=True)
    beat.app.conf.beat_schedule = 5
    embedded._sync(beat.store)
    assert "celery.beat_not_synced" in caplog.text
    monkeypatch.setattr(type(beat.store), "find", _away)
    beat.app.conf.beat_schedule = {}
    with pytest.raises(StoreUnavailable):  # the dispatcher waits, and tries it again
        embedded._sync(beat.store)


def _away(*_args: Any, **_options: Any) -> None:
    raise StoreUnavailable("away")
