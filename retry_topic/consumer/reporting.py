"""Reporter: reports the results of attempts to the store, for the budgets and circuit breakers of flow control.

EndReporter: reports which attempts have ended, for the `max_in_flight` of fair keys.

`Reporter` reports once a second, and up to ten times a second while many attempts fail, so that a circuit opens before
many attempts are wasted. Results that cannot be reported are dropped: old results say nothing about a destination's
present state. Threads: call `note` from any thread; the reporter's own thread reports.
"""

from __future__ import annotations

import threading
import time

from retry_topic.message import Message
from retry_topic.message.headers import RetryState
from retry_topic.release.flow import destination_of, flow_of
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store import DelayStore
from wheel_sched.store.fair_shares import FairShares
from wheel_sched.store.rate_limits import RateLimits

logger = logger_of("retry_topic.consumer")

_EVERY_S, _AT_MOST_EVERY_S = 1.0, 0.1
_MANY = 10  # after this many failures the reporter reports immediately
_GATHER_S, _TOPICS_EVERY_S = 0.01, 10.0  # how long ended attempts are collected; how often fair topics are read
_MOST_ENDS = 100_000  # ended attempts that are remembered while the store does not answer
_DESTINATIONS = 500  # per topic and report; results of further destinations count for the topic itself


class EndReporter:
    """Reports which attempts have ended, so that the store releases the next messages of their fair keys.

    It reports an ended attempt within some 10 ms. While no topic of the store is fair, it reports nothing. If it does
    not report an ended attempt, the next message of the fair key comes later: the store waits for the policy's
    `in_flight_timeout`, and then counts the message as handled.

    Args:
        store: the store that released the messages.
        group: the consumer group.
    """

    def __init__(self, store: DelayStore, group: str) -> None:
        self._shares = FairShares(store)
        self._lock = threading.Lock()
        self._ended: list[str] = []
        self._stopping = threading.Event()
        self._some = threading.Event()
        self._topics: frozenset[str] = frozenset()
        self._read_at = -_TOPICS_EVERY_S
        self.thread = RevivedThread(self._run, f"{group}-ends", self._stopping)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Report the attempts that have ended, and end the thread."""
        self._stopping.set()
        self._some.set()
        if self.thread.is_alive():
            self.thread.join(5)

    def note(self, item_id: str) -> None:
        """Note that the attempt of a released item has ended. Any thread may call it."""
        with self._lock:
            if len(self._ended) < _MOST_ENDS:
                self._ended.append(item_id)
        self._some.set()

    def note_attempt(self, state: RetryState) -> None:
        """Note that the attempt of a message has ended. Any thread may call it.

        The released item may have had one of several ids, so this method notes each of them. Usually the id is made of
        id base and attempt. A message that was published for later has its own id at the first attempt. A replayed
        dead letter keeps the id that it had as a dead letter.
        """
        if state.id is None:
            return
        self.note(f"{state.id_base}.{state.attempt}")
        if not state.attempt:
            self.note(state.id)
        if state.item_id is not None:
            self.note(state.item_id)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._some.wait()
            self._stopping.wait(_GATHER_S)
            self._some.clear()
            self.report()
        self.report()

    def report(self) -> None:
        """Report the attempts that have ended since the last report."""
        with self._lock:
            ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            now_s = time.monotonic()
            if now_s - self._read_at >= _TOPICS_EVERY_S:
                self._topics, self._read_at = frozenset(self._shares.topics()), now_s
            if self._topics:
                self._shares.finish(ended)
        except WheelSchedError as error:
            logger.warning("consumer.cannot_report_ends: %s", error)


class Reporter:
    """Counts results by topic and destination, and reports them.

    Args:
        store: the store that receives the reports.
        group: the consumer group.
        destination: the header that names the destination; "" for the topic.

    Attributes:
        ends: reports which attempts have ended; it starts and stops with this reporter.
    """

    def __init__(self, store: DelayStore, group: str, destination: str) -> None:
        self.ends = EndReporter(store, group)
        self._control = RateLimits(store)
        self._group = group
        self._destination = destination
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, list[int]]] = {}
        self._failed = 0
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self.thread = RevivedThread(self._run, f"{group}-report", self._stopping)

    def start(self) -> None:
        """Start the threads."""
        self.ends.start()
        self.thread.start()

    def stop(self) -> None:
        """Report the remaining results, and end the threads."""
        self.ends.stop()
        self._stopping.set()
        self._hurry.set()
        if self.thread.is_alive():
            self.thread.join(5)

    def note(self, message: Message, *, first: bool, succeeded: bool) -> None:
        """Count the result of an attempt. Any thread may call it."""
        destination = destination_of(message.headers, self._destination)
        with self._lock:
            counts = self._counts.setdefault(message.topic, {})
            if destination not in counts and len(counts) >= _DESTINATIONS:
                destination = ""
            row = counts.setdefault(destination, [0, 0, 0])
            row[0] += first
            row[1 if succeeded else 2] += 1
            self._failed += not succeeded
            if self._failed >= _MANY:
                self._hurry.set()

    def _run(self) -> None:
        while not self._stopping.wait(_AT_MOST_EVERY_S):
            self._hurry.wait(_EVERY_S - _AT_MOST_EVERY_S)
            self._hurry.clear()
            self.report()
        self.report()

    def report(self) -> None:
        """Report the results since the last report."""
        with self._lock:
            counts, self._counts, self._failed = self._counts, {}, 0
        for topic, rows in counts.items():
            try:
                self._control.report(
                    flow_of(self._group, topic),
                    [(name, *row) for name, row in rows.items()],  # type: ignore[misc]
                )
            except WheelSchedError as error:
                logger.warning("consumer.cannot_report: %s", error)
