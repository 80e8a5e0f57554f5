"""OrderedReader: a thread that reads one topic for a consumer in the order of its keys, and continues after any error.

The thread repeats `step`, which polls once. There are two kinds of readers: `leased_topic` reads a topic that one
consumer of the group owns, `assigned_partitions` reads the partitions that are assigned to this consumer. After an
error the reader starts again, after a delay that grows with each failure in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Generator

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.consumer.ordered.assignment import ReaderContext
from retry_topic.consumer.settling import AWAY_S
from wheel_sched.errors import BrokerError, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread

logger = logger_of("retry_topic.consumer")

READ_AHEAD = 16  # messages read per handler, so that a busy key leaves work for the other handlers


class OrderedReader:
    """A thread that reads one topic in the order of its keys. Call `start`, `stop` and `join` from any thread.

    Args:
        context: what to read and for which consumer.
    """

    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._stopping = threading.Event()
        self._until = 0.0  # after `stop`, running handlers have until then (`time.monotonic`) to end
        self._failures = 0  # failures in a row
        self._in_doubt = False  # the reply of the last poll was lost: the broker may have handed out records in it
        self._turns = self._read()
        self.thread = RevivedThread(self._run, f"{context.group}-read-{context.topic}", self._stopping)

    def start(self) -> None:
        """Start the thread. It reads the topic, or waits until it may read it."""
        self.thread.start()

    def stop(self, until: float) -> None:
        """Read no more. Running handlers have until `until` (`time.monotonic`) to end; `join` waits for that."""
        self._until = until
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self.thread.join(timeout_s)

    def step(self) -> None:
        """Poll at most once, and pass the deliveries on. After an error, wait; the next step tries again.

        The method blocks while it polls, while too many messages are in flight, and while it waits. Only one thread may
        call it.
        """
        try:
            next(self._turns)
        except Exception as error:  # the topic must be read after any error
            self._failed(error)

    def _read(self) -> Generator[None]:
        """Read until the generator is closed or fails. Each step of the generator polls at most once."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()
        try:
            self._turns.close()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._turns = self._read()
        if not isinstance(error, StoreError | BrokerError):
            logger.error("consumer.reading_failed", exc_info=error)
        self._pause(error)

    def _polled(self, consumer: BrokerConsumer, limit: int, wait_ms: int) -> list[Delivery]:
        """Poll for deliveries. If the broker does not answer, pause and return none."""
        try:
            deliveries = consumer.poll(limit, wait_ms)
        except BrokerError as error:
            self._in_doubt = error.in_doubt
            self._pause(error)
            return []
        self._failures = 0
        self._context.stats.delivered += len(deliveries)
        return deliveries

    def _pause(self, error: Exception) -> None:
        if self._failures == 0 and isinstance(error, StoreError | BrokerError) and not self._stopping.is_set():
            logger.warning("consumer.away: %s", error)
        self._stopping.wait(AWAY_S[min(self._failures, len(AWAY_S) - 1)])
        self._failures += 1
