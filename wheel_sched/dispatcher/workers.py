"""The threads that publish: they take batches off a queue and report each when its publisher has returned."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.batch import Answer, Batch, Failed, Publisher
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.pulse import STUCK_AFTER_MS, Pulse
from wheel_sched.escaping import logger_of
from wheel_sched.store.items import Refused

logger = logger_of("wheel_sched.dispatcher")


class Workers:
    """A fixed number of publishing threads.

    Args:
        publisher: what they call. With a true attribute `instant` it never waits (a broker in this process) and is
            called in the owner's thread, which spares two changes of thread a batch. With a true attribute `in_order`
            it is given a shard's batches one after another: each shard has one thread.
        config: how many they are, and how long a publisher may take.
        clock: what leases are measured with here.
        pulse: where each thread is heard of while it publishes.
        returned: called from a worker when a batch is through; what is unanswered in it then is in doubt. Not called
            for what a publisher with a true attribute `asynchronous` has sent: that tells of the last answer itself.
    """

    def __init__(
        self,
        publisher: Publisher,
        config: DispatcherConfig,
        clock: Clock,
        pulse: Pulse,
        returned: Callable[[Batch], None],
    ) -> None:
        self._publisher = publisher
        self._asynchronous = bool(getattr(publisher, "asynchronous", False))
        self._instant = bool(getattr(publisher, "instant", False))
        self._clock = clock
        self._returned = returned
        self._pulse = pulse
        self._patience_ms = config.publish_timeout_ms + STUCK_AFTER_MS
        self.in_order = bool(getattr(publisher, "in_order", False))
        lanes: list[queue.SimpleQueue[Batch | None]] = [
            queue.SimpleQueue() for _ in range(config.workers if self.in_order else 1)
        ]
        self._lanes = lanes
        self.threads = [
            threading.Thread(
                target=self._publish, args=(lanes[n % len(lanes)],), name=f"wheel-sched-publisher-{n}", daemon=True
            )
            for n in range(config.workers)
        ]

    @property
    def at_once(self) -> bool:
        """A batch that is given is answered before `give` returns."""
        return self._instant and not self._asynchronous

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def give(self, batch: Batch) -> None:
        """Have a batch published; in the caller's thread when that never waits for anything."""
        if self._instant:
            self._attend(batch)
        else:
            self._lanes[batch.claim.shard % len(self._lanes)].put(batch)

    def refuse(self, refused: Refused) -> Answer:
        """Ask the publisher about an item the server could not push; in the caller's thread."""
        try:
            return self._publisher.refuse(refused.item, refused.reason)
        except BaseException as error:
            logger.exception("dispatcher.refuse_failed")
            return Failed(f"{refused.reason}; and the publisher did not say what to do: {error!r}")

    def stop(self) -> None:
        """Let the threads end after what they are at; does not wait."""
        for n in range(len(self.threads)):
            self._lanes[n % len(self._lanes)].put(None)

    def _publish(self, lane: queue.SimpleQueue[Batch | None]) -> None:
        name = threading.current_thread().name
        while (batch := lane.get()) is not None:
            try:
                self._pulse.beat(name, self._patience_ms)
                self._attend(batch)
                self._pulse.rest(name)
            except BaseException:  # the batch is in doubt at its time limit; the next one finds a publisher
                logger.exception("dispatcher.publisher_failed: it goes on")

    def _attend(self, batch: Batch) -> None:
        try:
            if self._clock.monotonic_ns() < batch.lease_until_ns:
                self._publisher.publish(batch)
                if self._asynchronous:
                    return
            else:  # this process was stopped, or the store was away: others may have the batch by now
                batch.answers = [Failed("its lease had run out before it was published")] * len(batch.items)
        except BaseException as error:  # SystemExit too: a publisher ends no thread of ours
            logger.exception("dispatcher.publish_failed", extra={"items": len(batch.items), "error": repr(error)})
        self._returned(batch)
