"""Fixtures: an app whose schedule is in a store in memory, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from wheel_sched_celery import Wheel, install
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import is_entry
from wheel_sched_celery.beat.syncing import Synced, sync
from wheel_sched_celery.beat.ticking import Ticker
from wheel_sched_celery.message.stored_forms import decode

from wheel_sched.dispatcher import Failed
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Done, Settlement
from wheel_sched.store.recurring import Recurring

if TYPE_CHECKING:
    from wheel_sched_celery.beat.entry import BeatEntry
    from wheel_sched_celery.message.held_task import HeldTask


def ms_of(text: str) -> int:
    """An instant, in UTC unless the text has an offset, in ms since 1970."""
    instant = datetime.fromisoformat(text)
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)


def text_of(at_ms: int) -> str:
    """An instant in UTC, as `ms_of` reads it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None).isoformat()


class BeatApp:
    """An app with an empty schedule. The clock of its store shows `now_ms`."""

    def __init__(self, conf: dict[str, Any], settings: dict[str, Any], shards: int = 1) -> None:
        self.now_ms = ms_of("2026-03-10T12:00:00")
        self.app = Celery("beat", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(**conf)
        self.wheel: Wheel = install(self.app, "redis://nowhere.invalid", **settings)
        self.store: DelayStore = open_store("memory:", shards=shards, test_clock=lambda: self.now_ms)
        self.wheel._store = self.store
        self.entries = BeatEntries(self.app)
        self.ticker = Ticker(self.wheel, shards)
        self.recurring = Recurring(self.store)
        self.sent: list[HeldTask] = []

        self.app.task(_note, name="note", shared=False)

    ms_of = staticmethod(ms_of)

    def add(self, name: str = "one", schedule: Any = 60, **rest: Any) -> BeatEntry:
        stored = self.entries.add(self.entries.make(name, "note", schedule, **rest))
        assert stored.entry is not None
        return stored.entry

    def entry(self, name: str = "one") -> BeatEntry:
        stored = self.entries.get(name)
        assert stored is not None
        assert stored.entry is not None
        return stored.entry

    def sync(self, *, force: bool = False) -> Synced:
        return sync(self.entries, force=force)

    def pass_ms(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    def tick(self) -> list[Outcome]:
        """Claim what is due and settle it as a dispatcher does: entries by a `Ticker`, tasks go to `sent`."""
        outcomes: list[Outcome] = []
        for shard in range(self.store.shards):
            claim = self.store.claim(shard=shard)
            if claim.items:
                answers = [self._answer(item) for item in claim.items]
                outcomes += self.recurring.settle(claim, answers).outcomes
        return outcomes

    def _answer(self, item: Claimed) -> Settlement:
        if is_entry(item.body):
            answer = self.ticker.tick(item, self.now_ms)
            assert not isinstance(answer, Failed), answer
            return answer
        self.sent.append(decode(item.body))
        return Done(item.id)

    def run_until(self, until_ms: int) -> list[str]:
        """Let time pass from due time to due time. Returns the due times of the tasks that were sent, in UTC."""
        known = len(self.sent)
        while True:
            heads = [window.due_head_ms for window in self.store.windows(0) if window.due_head_ms is not None]
            if not heads or min(heads) > until_ms:
                self.now_ms = until_ms
                return [text_of(task.eta_ms) for task in self.sent[known:]]
            self.now_ms = max(self.now_ms, min(heads))
            self.tick()


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
