"""Keeper: one thread that decides, in turns, what becomes of deliveries whose keys have an order.

Readers and handlers only leave notes; all state belongs to the keeper's thread, so there is no lock around it. A turn
takes the notes there are, then does what is to be done at the store, many keys in one call. What the store does not
answer stays to be done and is tried again with a growing delay; nothing is settled at the broker before it is done.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.settling import AWAY_S, Outcome, Sink
from wheel_sched.errors import StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.key_gates import KeyGates

logger = logger_of("retry_topic.consumer")

Passing = tuple[str, str, Outcome]  # gate, stem, what is to be settled after


class Keeper:
    """The thread and its notes.

    Args:
        gates: the ordering keys.
        sink: where outcomes go when the order allows it.
    """

    def __init__(self, gates: KeyGates, sink: Sink) -> None:
        self._gates = gates
        self._sink = sink
        self._notes: queue.SimpleQueue[Delivery | Outcome | None] = queue.SimpleQueue()
        self._passing: list[Passing] = []
        self._again_at = 0.0  # when a store that was away is asked again
        self._wake_at: float | None = None  # when a turn has something to do without a note
        self._failures = 0
        self._finishing = threading.Event()
        self._until = 0.0
        self.thread: RevivedThread | None = None

    def start(self, name: str) -> None:
        """Begin."""
        self.thread = RevivedThread(self._run, name, self._finishing)
        self.thread.start()

    def arrived(self, delivery: Delivery) -> None:
        """A delivery was read. Any thread."""
        self._notes.put(delivery)

    def put(self, outcome: Outcome) -> None:
        """A delivery was handled. Any thread; see `Sink`."""
        self._notes.put(outcome)

    def put_all(self, outcomes: Sequence[Outcome]) -> None:
        """Deliveries were handled. Any thread; see `Sink`."""
        for outcome in outcomes:
            self._notes.put(outcome)

    def finish(self, timeout_s: float) -> None:
        """Do what is left to be done, for so long at most, and end."""
        self._until = time.monotonic() + timeout_s
        self._finishing.set()
        self._notes.put(None)
        if self.thread is not None:
            self.thread.join(timeout_s + 1)

    def _run(self) -> None:
        while True:
            for note in self._collect():
                if isinstance(note, Outcome):
                    self._ended(note)
                else:
                    self._came(note)
            if time.monotonic() >= self._again_at:
                self._work()
            if self._finishing.is_set() and self._notes.empty():
                if not self._left() or time.monotonic() >= self._until:
                    return
                time.sleep(0.05)  # a store that is away has nothing to wait on

    def _collect(self) -> list[Delivery | Outcome]:
        now = time.monotonic()
        wait_s: float | None = None if self._wake_at is None else max(0.0, self._wake_at - now)
        if self._finishing.is_set():
            wait_s = 0.0
        elif self._again_at > now:
            wait_s = self._again_at - now
        found: list[Delivery | Outcome] = []
        with contextlib.suppress(queue.Empty):
            note = self._notes.get(timeout=wait_s) if wait_s is None or wait_s > 0 else self._notes.get_nowait()
            while True:
                if note is not None:
                    found.append(note)
                note = self._notes.get_nowait()
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
        except Exception:  # a bug about one message must not end the thread that all of them wait for
            logger.exception("consumer.keeper_failed")
            self._again_at = time.monotonic() + AWAY_S[-1]

    def _wake(self, at: float) -> None:
        self._wake_at = at if self._wake_at is None else min(self._wake_at, at)

    def _pass_on(self) -> None:
        """Heads that were handled let the next ones follow; only then are they settled."""
        while self._passing:
            passing = self._passing[:200]
            self._gates.succeeded([(gate, stem) for gate, stem, _ in passing])
            del self._passing[: len(passing)]
            for _, _, outcome in passing:
                self._sink.put(outcome)

    # -- what the kinds of keepers differ in

    def _came(self, delivery: Delivery) -> None:
        raise NotImplementedError

    def _ended(self, outcome: Outcome) -> None:
        raise NotImplementedError

    def _turn(self) -> None:
        raise NotImplementedError

    def _left(self) -> bool:
        """Whether something is to be done still."""
        return bool(self._passing)
