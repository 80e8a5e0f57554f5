"""OrderedReader: a thread that reads one topic for a consumer, in the order of its keys, and goes on whatever happens.

What the kinds of readers differ in is a turn: `ordered` reads a topic that one consumer of the group owns, `partitions`
the partitions that this one is given. A turn ends when there is nothing to read for now, or by an error; the next one
begins, after a delay that grows with each failure in a row.
"""

from __future__ import annotations

import threading

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.consumer.settling import AWAY_S
from retry_topic.consumer.term import Reading
from wheel_sched.errors import BrokerError, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread

logger = logger_of("retry_topic.consumer")

READ_AHEAD = 16  # messages read per handler, so that a busy key leaves something to do for the others


class OrderedReader:
    """See the module. `start`, `stop` and `join` from any thread.

    Args:
        reading: what to read, and for whom.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._stopping = threading.Event()
        self._until = 0.0  # what is being handled when it stops has until then (`time.monotonic`) to end
        self._failures = 0  # in a row
        self.thread = RevivedThread(self._run, f"{reading.group}-read-{reading.topic}", self._stopping)

    def start(self) -> None:
        """Begin to read, or to stand by."""
        self.thread.start()

    def stop(self, until: float) -> None:
        """Read no more; what is being handled has until then (`time.monotonic`) to end. `join` waits for it."""
        self._until = until
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self.thread.join(timeout_s)

    def _turn(self) -> None:
        """Read, until it is time to stop or there is nothing to read for now.

        Raises:
            Exception: whatever it is, another turn begins.
        """
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
                self._failures = 0
            except Exception as error:  # whatever it is, somebody has to read the topic
                if not isinstance(error, StoreError | BrokerError):
                    logger.exception("consumer.reading_failed")
                self._pause(error)

    def _polled(self, consumer: BrokerConsumer, limit: int, wait_ms: int) -> list[Delivery]:
        """What is there to read; nothing, after a pause, while the broker is away."""
        try:
            deliveries = consumer.poll(limit, wait_ms)
        except BrokerError as error:
            self._pause(error)
            return []
        self._failures = 0
        self._reading.stats.delivered += len(deliveries)
        return deliveries

    def _pause(self, error: Exception) -> None:
        if self._failures == 0 and isinstance(error, StoreError | BrokerError) and not self._stopping.is_set():
            logger.warning("consumer.away: %s", error)
        self._stopping.wait(AWAY_S[min(self._failures, len(AWAY_S) - 1)])
        self._failures += 1
