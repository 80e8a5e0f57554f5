"""`BeatScheduler`: the scheduler of `celery -A app beat -S wheel`, for users who keep a beat process.

The process brings the entries of its code into the store and runs a dispatcher, as a worker does. It announces itself
in the store, for `wheel-sched ps`. It has no lock, no leader and no schedule of its own. Any number of such processes
may run side by side. Stop one, kill one or start ten: no occurrence is stored twice as a task.

Threads: Celery's beat calls it from one thread; the dispatcher and the announcer have their own.
"""

from __future__ import annotations

from typing import Any, Final

from celery.beat import Scheduler
from celery.exceptions import ImproperlyConfigured

from wheel_sched.store.members.announcer import MemberAnnouncer
from wheel_sched_celery.announcing import beat_announcer
from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher
from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.wheel import Wheel, wheel_with_store

TICK_S: Final = 5  # how often Celery's beat calls `tick`; the dispatcher sleeps until an entry is due


class BeatScheduler(Scheduler):
    """A scheduler of Celery's beat whose entries are in the app's delay store.

    Its own `schedule` is empty; `BeatEntries` has the entries.

    Raises:
        ImproperlyConfigured: the app has no store.
    """

    max_interval = TICK_S

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._embedded: EmbeddedDispatcher | None = None
        self._announcer: MemberAnnouncer | None = None
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        """Start the dispatcher. As soon as store and broker answer, its thread brings the entries into the store."""
        wheel = self._wheel()
        preload(wheel)
        self._embedded = EmbeddedDispatcher(wheel, beat=True)
        self._embedded.start()
        self._announcer = beat_announcer(wheel, self._embedded)
        self._announcer.start()

    def _wheel(self) -> Wheel:
        wheel = wheel_with_store(self.app)
        if wheel is None:
            raise ImproperlyConfigured(
                "beat -S wheel needs an app with a delay store: call wheel_sched_celery.install(app) where it is made; "
                "nothing was started"
            )
        return wheel

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Do nothing: the dispatcher sends what is due. Returns the seconds until the next call."""
        return min(TICK_S, self.max_interval)

    def close(self) -> None:
        """Send nothing more. Wait up to `drain_timeout` for the broker to have the tasks being sent. Idempotent."""
        embedded, self._embedded = self._embedded, None
        announcer, self._announcer = self._announcer, None
        if embedded is not None:
            embedded.stop()
        if announcer is not None:
            announcer.stop()
        super().close()

    @property
    def info(self) -> str:
        wheel = wheel_with_store(self.app)
        return (
            "" if wheel is None else f"    . store -> namespace {wheel.settings.namespace!r}, shared with all workers"
        )
