"""Fixtures: an app whose broker and store are in memory, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.transport import memory
from wheel_sched_celery import HeldTask, Wheel, install
from wheel_sched_celery.message.stored_forms import decode
from wheel_sched_celery.release.publishing import TaskPublisher

from wheel_sched.dispatcher import Batch
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claim
from wheel_sched.store.core.delay_store import DelayStore


class InstalledApp:
    """An app with the integration, with access to its broker's queues and its store."""

    def __init__(self, settings: dict[str, Any], conf: dict[str, Any]) -> None:
        self.app = Celery("installed", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(**conf)
        self.wheel: Wheel = install(self.app, "redis://nowhere.invalid", **settings)
        self.store: DelayStore = open_store("memory:")
        self.wheel._store = self.store

    def held(self) -> list[HeldTask]:
        return [decode(found.body) for found in self.store.list_items("due").found]

    def published(self, queue: str = "celery") -> list[Any]:
        """Take all messages out of the broker's queues and return them."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            found = []
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                found.append(message)
            return found

    def claim(self) -> Claim:
        """Make all waiting tasks due, and claim them as a dispatcher does."""
        for found in self.store.list_items("due").found:
            self.store.reschedule([found.id], 0, route=found.route)
        return self.store.claim()

    def dispatch(self, claim: Claim) -> list[Any]:
        """Publish the claimed tasks without settling them. Returns the broker's messages."""
        batch = Batch(claim, claim.items)
        publisher = TaskPublisher(self.app, None)
        publisher.publish(batch)
        publisher.close()
        return self.published()

    def send(self, name: str = "note", *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(name, arguments, **options)


@pytest.fixture
def make_installed() -> Iterator[Callable[..., InstalledApp]]:
    """Makes apps with the integration. Keywords are settings of `install`, `conf` has the app's own settings."""
    made: list[InstalledApp] = []
    memory.Transport.global_state.clear()
    memory.Channel.queues.clear()

    def make(conf: dict[str, Any] | None = None, **settings: Any) -> InstalledApp:
        made.append(InstalledApp(settings, conf or {}))
        return made[-1]

    yield make
    for installed in made:
        installed.wheel.close()
        installed.app.close()


@pytest.fixture
def installed(make_installed: Callable[..., InstalledApp]) -> InstalledApp:
    return make_installed()
