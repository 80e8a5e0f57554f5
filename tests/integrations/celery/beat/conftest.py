"""Fixtures: an app whose schedule is in a store in memory, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from wheel_sched_celery import Wheel, install
from wheel_sched_celery.beat.entries import BeatEntries

from wheel_sched.store.connect import open_store
from wheel_sched.store.core.delay_store import DelayStore

if TYPE_CHECKING:
    from wheel_sched_celery.beat.entry import BeatEntry


def ms_of(text: str) -> int:
    """An instant, in UTC unless the text has an offset, in ms since 1970."""
    instant = datetime.fromisoformat(text)
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)


class BeatApp:
    """An app with an empty schedule. Its store lives on the time `now_ms`."""

    def __init__(self, conf: dict[str, Any], settings: dict[str, Any], shards: int = 1) -> None:
        self.now_ms = ms_of("2026-03-10T12:00:00")
        self.app = Celery("beat", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(**conf)
        self.wheel: Wheel = install(self.app, "redis://nowhere.invalid", **settings)
        self.store: DelayStore = open_store("memory:", shards=shards, test_clock=lambda: self.now_ms)
        self.wheel._store = self.store
        self.entries = BeatEntries(self.app)

        self.app.task(_note, name="note", shared=False)

    def add(self, name: str = "one", schedule: Any = 60, **rest: Any) -> BeatEntry:
        stored = self.entries.add(self.entries.make(name, "note", schedule, **rest))
        assert stored.entry is not None
        return stored.entry

    def entry(self, name: str = "one") -> BeatEntry:
        stored = self.entries.get(name)
        assert stored is not None
        assert stored.entry is not None
        return stored.entry

    def pass_ms(self, passed_ms: int) -> None:
        self.now_ms += passed_ms


def _note(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


@pytest.fixture
def make_beat() -> Iterator[Callable[..., BeatApp]]:
    """Makes a `BeatApp`: keyword arguments are its configuration; `settings` are arguments of `install`."""
    made: list[BeatApp] = []

    def make(settings: dict[str, Any] | None = None, shards: int = 1, **conf: Any) -> BeatApp:
        made.append(BeatApp(conf, settings or {}, shards))
        return made[-1]

    yield make
    for one in made:
        one.wheel.close()
        one.app.close()


@pytest.fixture
def beat(make_beat: Callable[..., BeatApp]) -> BeatApp:
    return make_beat()
