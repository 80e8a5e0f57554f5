"""SettlerThread: one thread that decides about the deliveries of ordered keys.

Readers and handlers only report to it; all state belongs to the thread, so there is no lock. It works in turns: a turn
takes all reports, then makes the necessary calls to the store, many keys in one call. If the store does not answer, the
thread keeps the work and repeats it with a growing delay. Where a call is necessary, it settles nothing at the broker
before the store's answer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.outcome import HandlerOutcome, Sink
from retry_topic.consumer.settling import AWAY_S
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.ordering import OrderedKeys

logger = logger_of("retry_topic.consumer")

Succeeded = tuple[str, str, HandlerOutcome]  # key lock, id base, and the outcome to settle


class SettlerThread:
    """A thread that decides about deliveries. It takes reports: deliveries that were read, and their outcomes.

    Args:
        locks: the key locks in the store.
        sink: settles outcomes once the order allows it.
    """

    def __init__(self, locks: OrderedKeys, sink: Sink) -> None:
        self._locks = locks
        self._sink = sink
        self._reports: queue.SimpleQueue[Delivery | HandlerOutcome | None] = queue.SimpleQueue()
        self._succeeded: list[Succeeded] = []
        self._again_at = 0.0  # when a store that did not answer is called again
        self._wake_at: float | None = None  # when a turn is due without a report
        self._failures = 0
        self._finishing = threading.Event()
        self._until = 0.0
        self.thread: RevivedThread | None = None

    def start(self, name: str) -> None:
        """Start the thread."""
        self.thread = RevivedThread(self._run, name, self._finishing)
        self.thread.start()

    def arrived(self, delivery: Delivery) -> None:
        """Report a delivery that was read. Any thread may call it."""
        self._reports.put(delivery)

    def put(self, outcome: HandlerOutcome) -> None:
        """Report the outcome of a delivery; see `Sink`. Any thread may call it."""
        self._reports.put(outcome)

    def put_all(self, outcomes: Sequence[HandlerOutcome]) -> None:
        """Report several outcomes; see `Sink`. Any thread may call it."""
        for outcome in outcomes:
            self._reports.put(outcome)

    def finish(self, timeout_s: float) -> None:
        """Let the thread do the remaining work for at most `timeout_s`, and wait until it ends."""
        self._until = time.monotonic() + timeout_s
        self._finishing.set()
        self._reports.put(None)
        if self.thread is not None:
            self.thread.join(timeout_s + 1)

    def _run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """One turn: wait for reports (deliveries and outcomes), take them, and do the work that follows from them.

        Returns False when the thread must end.
        """
        for report in self._collect():
            if isinstance(report, HandlerOutcome):
                self._ended(report)
            else:
                self._came(report)
        if time.monotonic() >= self._again_at:
            self._work()
        if self._finishing.is_set() and self._reports.empty():
            if not self._left() or time.monotonic() >= self._until:
                return False
            time.sleep(0.05)  # no event signals that the store answers again
        return True

    def _collect(self) -> list[Delivery | HandlerOutcome]:
        now = time.monotonic()
        wait_s: float | None = None if self._wake_at is None else max(0.0, self._wake_at - now)
        if self._finishing.is_set():
            wait_s = 0.0
        elif self._again_at > now:
            wait_s = self._again_at - now
        found: list[Delivery | HandlerOutcome] = []
        with contextlib.suppress(queue.Empty):
            report = self._reports.get(timeout=wait_s) if wait_s is None or wait_s > 0 else self._reports.get_nowait()
            while True:
                if report is not None:
                    found.append(report)
                report = self._reports.get_nowait()
        return found

    def _work(self) -> None:
        self._wake_at = None
        try:
            self._turn()
            self._pass_on()
            self._failures = 0
        except StoreError as error:
            if self._failures == 0:
                logger.warning("consumer.keys_wait: %s", error)
            self._again_at = time.monotonic() + AWAY_S[min(self._failures, len(AWAY_S) - 1)]
            self._failures += 1
        except Exception:  # a bug with one message must not end the thread: all messages wait for it
            logger.exception("consumer.ordering_failed")
            self._again_at = time.monotonic() + AWAY_S[-1]

    def _wake(self, at: float) -> None:
        self._wake_at = at if self._wake_at is None else min(self._wake_at, at)

    def _pass_on(self) -> None:
        """Tell the store which heads succeeded, so that the next messages of their keys follow. Then settle the heads.

        In the other order, a crash between the two steps would leave the key closed.
        """
        while self._succeeded:
            succeeded = self._succeeded[:200]
            self._locks.succeeded([(key_lock, id_base) for key_lock, id_base, _ in succeeded])
            del self._succeeded[: len(succeeded)]
            for _, _, outcome in succeeded:
                self._sink.put(outcome)

    # -- the differences between `KeyQueues` and `KeyHeads`

    def _came(self, delivery: Delivery) -> None:
        raise NotImplementedError

    def _ended(self, outcome: HandlerOutcome) -> None:
        raise NotImplementedError

    def _turn(self) -> None:
        raise NotImplementedError

    def _left(self) -> bool:
        """Whether work is left."""
        return bool(self._succeeded)
