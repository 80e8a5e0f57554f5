"""The intake's thread: it reads the group's retry topic and takes in the records, until it is stopped.

The thread repeats `IntakeWorker.step`. While store or broker do not answer, a step repeats its call and keeps its
records. If it gave them up, they would wait for `idle_ms` even after a short outage. After any other error the next
step reads with a new consumer: records that were read and not settled come again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from retry_topic.brokers.protocol import Broker, BrokerConsumer, Delivery, LogBroker, LogReader
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.message.topic_names import intake_group_of
from wheel_sched.errors import BrokerError, BrokerUnavailable, StoreError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread

logger = logger_of("retry_topic.service")

T = TypeVar("T")

_POLL_MS = 1_000  # how long an idle intake waits at the broker; only the reaction to `stop` depends on it
_AWAY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_HEALTHY_S = 10.0  # after this time without a failure the reader counts as healthy; most faults show sooner


@dataclass(frozen=True, slots=True)
class Reading:
    """What an `IntakeWorker` reads, and how.

    Args:
        topic: the group's retry topic.
        group: the owner of the topic.
        batch: the number of failed messages taken in at a time.
        idle_ms: after this time another service takes over the records that a dead service had read.
        reconnects: returns how often the store has reconnected so far. After each reconnect, the store's positions are
            checked.
    """

    topic: str
    group: str
    batch: int
    idle_ms: int
    reconnects: Callable[[], int]


class IntakeWorker:
    """Reads a retry topic and takes in its records. Call `start` and `stop` from any thread.

    Args:
        broker: holds the topic.
        intake: an intake from a log if the broker's topics are logs, else from a queue.
        reading: what it reads, and how.
    """

    def __init__(self, broker: Broker, intake: IntakeFromQueue | IntakeFromLog, reading: Reading) -> None:
        self._broker, self._intake, self._reading = broker, intake, reading
        self._stopping = threading.Event()
        self._thread = RevivedThread(self._run, f"retry-intake-{reading.group}", self._stopping)
        self._away = True  # until the broker has answered the first call
        self._refused = False  # the broker accepts the intake as a member but does not let it read
        self._failures = 0  # reads that failed in a row
        self._turns = self._read()

    @property
    def alive(self) -> bool:
        """Whether the worker's thread runs."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether the worker reaches the broker and may read the topic. The log names a missing permission."""
        return self._thread.works and not self._away and not self._refused

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop reading. A record that is not settled comes again."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def step(self) -> None:
        """Poll the retry topic once, and take in the records that came.

        After an error it waits, and the next step opens a new reader. It blocks while it polls, while it waits, and
        while store or broker do not answer. Only one thread may call it.
        """
        try:
            next(self._turns)
        except Exception as error:  # nothing is lost by waiting
            self._failed(error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()
        try:
            self._turns.close()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._turns = self._read()
        if isinstance(error, _Stopped):
            return  # records that are not stored come again
        self._away = True
        if not isinstance(error, WheelSchedError):
            logger.error("service.intake_failed", exc_info=error)
        elif self._failures == 0 and not self._stopping.is_set():
            logger.warning("service.away: %s", error)
        self._refused = isinstance(error, BrokerError) and not isinstance(error, BrokerUnavailable)
        self._stopping.wait(_AWAY_S[min(self._failures, len(_AWAY_S) - 1)])
        self._failures += 1

    def _read(self) -> Generator[None]:
        """Read with one consumer until the generator is closed or fails. Each step of the generator polls once."""
        intake = self._intake
        return self._read_log(intake) if isinstance(intake, IntakeFromLog) else self._read_queue(intake)

    def _polled(self, since_s: float, *, anything: bool) -> None:
        """Forget earlier failures after a poll that succeeded, if it read `anything` or the reader is old enough.

        `since_s`: when the reader was made, by `time.monotonic`.
        """
        if self._failures and (anything or time.monotonic() - since_s >= _HEALTHY_S):
            self._refused, self._failures = False, 0

    # -- from a queue

    def _read_queue(self, intake: IntakeFromQueue) -> Generator[None]:
        reading = self._reading
        with contextlib.closing(
            self._broker.consumer([reading.topic], reading.group, idle_ms=reading.idle_ms)
        ) as consumer:
            self._away, since_s = False, time.monotonic()
            while True:
                deliveries = consumer.poll(reading.batch, _POLL_MS)
                self._polled(since_s, anything=bool(deliveries))
                if deliveries:
                    begun = intake.with_spans(deliveries)
                    try:
                        self._take(intake, consumer, begun)
                    finally:
                        intake.leave(begun)
                yield

    def _take(
        self, intake: IntakeFromQueue, consumer: BrokerConsumer, deliveries: Sequence[Delivery], *, again: bool = False
    ) -> None:
        """Take in a batch. If it fails, take in its records one by one, and leave a failing record for later."""

        def until_available(call: Callable[[], T]) -> T:
            return self._until_available(lambda: consumer.beat(deliveries), call)

        try:
            entries = intake.store(deliveries, again=again, until_available=until_available)
            until_available(lambda: intake.settle(consumer, entries))
        except _Stopped:
            pass  # the record is unsettled, so it comes again
        except Exception as error:
            if len(deliveries) > 1:
                for delivery in deliveries:
                    self._take(intake, consumer, [delivery], again=True)
                return
            logger.exception("service.record_left", extra={"error": repr(error)})

    # -- from a log

    def _read_log(self, intake: IntakeFromLog) -> Generator[None]:
        with contextlib.closing(self._log_reader(intake)) as reader:
            self._away = False

            def until_available(call: Callable[[], T]) -> T:
                return self._until_available(reader.beat, call)

            reconnects, since_s = self._reading.reconnects(), time.monotonic()
            try:
                while True:
                    part = reader.poll(self._reading.batch, 0 if intake.busy else _POLL_MS)
                    self._polled(since_s, anything=part is not None)
                    if part is not None:
                        intake.offer(reader, part, until_available)
                    else:
                        intake.finish(until_available)
                    if self._reading.reconnects() != reconnects:
                        reconnects = self._reading.reconnects()
                        intake.look_back(reader, until_available)
                    yield
            finally:
                intake.finish(until_available)

    def _log_reader(self, intake: IntakeFromLog) -> LogReader:
        reading, broker = self._reading, self._broker
        assert isinstance(broker, LogBroker)  # noqa: S101  # the intake is one from a log
        return broker.log_reader(
            reading.topic,
            intake_group_of(reading.group),
            lambda sources: self._until_available(None, lambda: intake.positions(sources)),
            idle_ms=reading.idle_ms,
        )

    def _until_available(self, beat: Callable[[], None] | None, call: Callable[[], T]) -> T:
        """Repeat a call until store and broker are available. Meanwhile, `beat` keeps the records for this reader.

        Raises:
            _Stopped: the service stops before they are available.
        """
        failures = 0
        while True:
            try:
                answer = call()
                self._away = False
                return answer
            except (StoreError, BrokerError) as error:
                self._away = True
                if failures == 0:
                    logger.warning("service.away: %s", error)
            if self._stopping.wait(_AWAY_S[min(failures, len(_AWAY_S) - 1)]):
                raise _Stopped
            failures += 1
            with contextlib.suppress(BrokerError):
                if beat is not None:
                    beat()


class _Stopped(Exception):
    """The service stops while the store or the broker does not answer."""
