"""The dispatcher in a worker. It starts after the pool and beat, so that they do not fork while its threads run.

Any number of workers may run a dispatcher over the same store: while a lease lasts, no other dispatcher sends the task.
Each dispatcher has its own connections to the store and the broker, and waits until both answer. The worker itself does
not wait for them.

Threads: the worker's main thread calls `start` and `stop`; one thread opens the store; the dispatcher has its own.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict
from typing import Any

from celery import bootsteps
from kombu.exceptions import OperationalError

from wheel_sched.dispatcher import Dispatcher, DispatcherConfig, PushTarget
from wheel_sched.errors import StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.fair_shares import FairShares
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.syncing import sync
from wheel_sched_celery.message.held_task import bounded
from wheel_sched_celery.release.preloading import preload
from wheel_sched_celery.release.publishing import TaskPublisher
from wheel_sched_celery.remote_control import commands
from wheel_sched_celery.wheel import Wheel, wheel_with_store

logger = logger_of("wheel_sched.celery")

RETRY_S = (0.2, 0.5, 1.0, 2.0)
CONFIG = DispatcherConfig(
    lease_ms=5_000,  # when a worker dies while it publishes a task, the task is late by this
    script_us=500,  # the requests of workers wait until such a script has ended
    backoff_max_ms=2_000,  # when the broker is back after an outage, due tasks wait at most this long
)


class EmbeddedDispatcher:
    """Opens a store and a publisher, runs a dispatcher over them, and closes both.

    Args:
        wheel: the integration of the app.
        beat: whether to store the entries of the app's schedule before the dispatcher starts. Defaults to the app's
            setting `beat`.
    """

    def __init__(self, wheel: Wheel, beat: bool | None = None) -> None:
        self._wheel = wheel
        self._beat = wheel.settings.beat if beat is None else beat
        self._publisher: TaskPublisher | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-sched-celery", daemon=True)
        self._problem = "it has just started"
        self.dispatcher: Dispatcher | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Claim no more tasks, wait up to `drain_timeout` for the publishes that have begun, and end. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._wheel.settings.drain_timeout / 1000 + 10)

    @property
    def info(self) -> dict[str, Any]:
        """The state of the dispatcher, for `inspect stats` and `inspect wheel_stats`."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            return {"state": f"waiting: {self._problem}"}
        stats = dispatcher.stats
        return {
            "state": "running",
            "mode": "publish" if dispatcher.push is None else "push",
            "published": stats.published,
            "failed": stats.failed,
            "in_doubt": stats.in_doubt,
            "in_flight": stats.in_flight,
            "store_errors": stats.store_errors,
            "beat": {} if self._publisher is None else asdict(self._publisher.beat_stats),
        }

    def _run(self) -> None:
        """Run a dispatcher until `stop`. After an error, try again."""
        failures = 0
        while not self._stopping.is_set():
            try:
                self._serve()
                return
            except (WheelSchedError, OSError, OperationalError) as error:
                self._wait(str(error), failures)
            except Exception as error:  # a client library may raise anything, and this thread must survive
                if failures == 0:
                    logger.exception("celery.dispatcher_failed: the dispatcher starts again")
                self._wait(repr(error), failures)
            failures += 1

    def _wait(self, problem: str, failures: int) -> None:
        if problem != self._problem or failures == 0:
            logger.warning("celery.dispatcher_waits: %s", problem)
        self._problem = problem
        self._stopping.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])

    def share_queues(self, store: DelayStore) -> None:
        """Write the settings of the fair queues into the store.

        Raises:
            StoreError: the store is away; some settings may be written.
        """
        for queue, settings in self._wheel.settings.fair.items():
            FairShares(store).configure(bounded(queue, 240), settings)

    def _serve(self) -> None:
        """Dispatch until `stop`.

        Raises:
            Exception: the store or the broker is away, or refuses the calls.
        """
        with contextlib.closing(self._wheel.open_store()) as store:
            self.share_queues(store)
            server = self._wheel.shared_server
            if not server.ask():
                raise StoreUnavailable("the broker is away")
            queue = server.queue
            if self._beat:
                self._sync(store)
            with contextlib.closing(TaskPublisher(self._wheel.app, queue, store.shards)) as publisher:
                self._publisher = publisher
                dispatcher = Dispatcher(store, publisher, push=None if queue is None else PushTarget(), config=CONFIG)
                dispatcher.start()
                self.dispatcher = dispatcher
                self._stopping.wait()
                dispatcher.stop(self._wheel.settings.drain_timeout / 1000)

    def _sync(self, store: DelayStore) -> None:
        try:
            sync(BeatEntries(self._wheel, store))
        except StoreError:
            raise
        except Exception:  # the app's code may raise anything; held tasks and stored entries are still sent
            logger.exception("celery.beat_not_synced: the entries of the code were not brought into the store")


class DispatcherStep(bootsteps.StartStopStep):
    """Runs the dispatcher in a worker. It starts after the processes of the pool and of embedded beat are forked.

    A pool forks again when it replaces a process, so the dispatcher's threads import nothing (see `preloading`).
    """

    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, w: Any, **kwargs: Any) -> None:
        self._embedded: EmbeddedDispatcher | None = None
        super().__init__(w, **kwargs)

    def include_if(self, w: Any) -> bool:
        wheel = wheel_with_store(w.app)
        return wheel is not None and wheel.settings.dispatch

    def create(self, w: Any) -> DispatcherStep:
        commands.announce_in_heartbeats()
        preload(w.app.wheel)
        return self

    def start(self, w: Any) -> None:
        if self._embedded is None:
            self._embedded = w.wheel_dispatcher = EmbeddedDispatcher(w.app.wheel)
            self._embedded.start()

    def stop(self, w: Any) -> None:
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            embedded.stop()

    terminate = stop

    def info(self, w: Any) -> dict[str, Any]:
        return {"wheel_dispatcher": {} if self._embedded is None else self._embedded.info}
