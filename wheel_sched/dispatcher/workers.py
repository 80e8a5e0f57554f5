"""Workers publish batches in their own threads. The watchdog finds threads of a dispatcher that are stuck."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.publisher import Answer, Batch, Failed, Publisher
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import HeartbeatMonitor
from wheel_sched.store.push import Refused

logger = logger_of("wheel_sched.dispatcher")

STUCK_AFTER_MS: Final = 60_000
"""A step of the owner that lasts longer than this counts as stuck. With the default timeouts a call ends much earlier.

A worker's step may last longer by `publish_timeout_ms`. A worker with a transactional publisher is never stuck.
"""
SLOW_STORE_MS: Final = 2_000
"""While a round trip lasts longer than this, the dispatcher is not ready. Usually a round trip takes milliseconds."""


class Watchdog:
    """Finds working threads that have sent no heartbeat for too long.

    While a thread works, it is a member of a `HeartbeatMonitor` and sends a heartbeat at each step. The thread leaves
    the monitor before it waits for work, so an idle dispatcher does not wake up for heartbeats. The monitor looks for
    late heartbeats only when a probe calls `stuck`. It works as Kafka's `DelayedHeartbeat`, with steps instead of
    sessions. Any thread may use a watchdog.

    Args:
        clock: local time.
    """

    def __init__(self, clock: Clock) -> None:
        self._stuck: dict[str, None] = {}
        self._monitor: HeartbeatMonitor[str] = HeartbeatMonitor(STUCK_AFTER_MS, self._expired, clock=clock)
        self._clock = clock
        self._round_trip_since_ms: int | None = None
        self._lock = threading.Lock()  # an expiry is recorded before the next heartbeat of its thread

    def beat(self, name: str, timeout_ms: int | None = None) -> None:
        """Note that a thread begins a step; its next beat must come within `timeout_ms` (`STUCK_AFTER_MS` if None)."""
        if not self._monitor.beat(name):
            with self._lock:
                self._stuck.pop(name, None)
                self._monitor.add(name, timeout_ms)

    def rest(self, name: str) -> None:
        """Note that a thread waits for work, so it need not send heartbeats."""
        with self._lock:
            self._monitor.remove(name)
            self._stuck.pop(name, None)

    def stuck(self, *names: str) -> list[str]:
        """One line for each thread that is stuck. `names` limits the answer to these threads; default: all threads."""
        with self._lock:
            self._monitor.run_due()
            return [f"{name} is stuck at one step" for name in self._stuck if not names or name in names]

    @contextlib.contextmanager
    def round_trip(self) -> Iterator[None]:
        """Note that the owner waits for the store's answer during a `with` block; see `store_is_slow`."""
        self._round_trip_since_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            self._round_trip_since_ms = None

    def store_is_slow(self) -> bool:
        """Whether the owner has waited for the store's answer for more than `SLOW_STORE_MS`.

        So a server that hangs is noticed before the call's timeout.
        """
        since_ms = self._round_trip_since_ms
        return since_ms is not None and self._clock.monotonic_ms() - since_ms > SLOW_STORE_MS

    def __repr__(self) -> str:
        return f"<Watchdog at_work={len(self._monitor)} stuck={list(self._stuck)}>"

    def _expired(self, name: str) -> None:
        self._stuck[name] = None


class Workers:
    """A fixed number of threads that publish. With a transactional publisher one thread gets all batches of a shard.

    Args:
        publisher: publishes the batches.
        config: number of workers, and how long a publisher may take.
        clock: local time, with which a worker checks that a batch still has its lease.
        watchdog: gets a heartbeat from a worker before each batch; none from workers of a transactional publisher.
        returned: called with a batch in the publishing thread, when `publish` has returned or raised, or when the lease
            had run out before. Items without an answer are then in doubt. If the publisher acknowledges later, a normal
            return makes no call.
    """

    def __init__(
        self,
        publisher: Publisher,
        config: DispatcherConfig,
        clock: Clock,
        watchdog: Watchdog,
        returned: Callable[[Batch], None],
    ) -> None:
        traits = publisher.traits
        self._publisher = publisher
        self._acknowledges_later = traits.acknowledges_later
        self._never_waits = traits.never_waits
        self._clock = clock
        self._returned = returned
        self._watchdog = watchdog
        # None for a transaction: it waits while its broker is away, and the publisher reports this
        self._patience_ms = None if traits.transactional else config.publish_timeout_ms + STUCK_AFTER_MS
        # the transactions of a shard are published one after another: each shard has one thread
        queues = config.workers if traits.transactional else 1
        self._queues: list[queue.SimpleQueue[Batch | None]] = [queue.SimpleQueue() for _ in range(queues)]
        self.threads = [
            threading.Thread(
                target=self._run, args=(self._queues[n % queues],), name=f"wheel-sched-publisher-{n}", daemon=True
            )
            for n in range(config.workers)
        ]

    @property
    def at_once(self) -> bool:
        """Whether `give` returns only after the batch is answered."""
        return self._never_waits and not self._acknowledges_later

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def give(self, batch: Batch) -> None:
        """Publish a batch in a worker, or in the caller's thread when the publisher never waits."""
        if self._never_waits:
            self._publish(batch)
        else:
            self._queues[batch.claim.shard % len(self._queues)].put(batch)

    def refuse(self, refused: Refused) -> Answer | None:
        """Ask the publisher, in the caller's thread, about an item that the server could not push. None: publish it."""
        try:
            return self._publisher.refuse(refused.item, refused.reason)
        except BaseException as error:
            logger.exception("dispatcher.refuse_failed")
            return Failed(f"{refused.reason}; and the publisher did not say what to do: {error!r}")

    def stop(self) -> None:
        """Tell each thread to end after the batches that it was given. Does not wait."""
        for n in range(len(self.threads)):
            self._queues[n % len(self._queues)].put(None)

    def _run(self, batches: queue.SimpleQueue[Batch | None]) -> None:
        name = threading.current_thread().name
        while (batch := batches.get()) is not None:
            try:
                if self._patience_ms is not None:
                    self._watchdog.beat(name, self._patience_ms)
                self._publish(batch)
                self._watchdog.rest(name)
            except BaseException:  # the batch is in doubt at the publish timeout; the worker publishes the next one
                logger.exception("dispatcher.publisher_failed: the worker continues")

    def _publish(self, batch: Batch) -> None:
        try:
            if self._clock.monotonic_ns() < batch.lease_until_ns:
                self._publisher.publish(batch)
                if self._acknowledges_later:
                    return
            else:  # this process or the store was away: another dispatcher may have claimed the batch since
                batch.answers = [Failed("the lease ran out before the item was published")] * len(batch.items)
        except BaseException as error:  # SystemExit too: a publisher must not end a thread of the dispatcher
            logger.exception("dispatcher.publish_failed", extra={"items": len(batch.items), "error": repr(error)})
        self._returned(batch)
