"""Settling: acknowledges deliveries or forwards them to the retry topic, and renews unsettled ones at the broker.

Invariant: a delivery is in flight from the moment it was read until the broker has confirmed that it is settled. While
it is in flight, `beat` is called for it whenever a third of `idle_ms` has passed since the last call. A
`HeartbeatMonitor` measures this time. If the broker refuses an outcome, the delivery stays in flight, and the outcome
is tried again with a growing delay. The consumer never forgets a message; it stops reading new ones instead.

Threads: handlers put outcomes; one thread settles and renews; another thread reads from the same broker consumer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence

from retry_topic.brokers.protocol import Broker, BrokerConsumer, Delivery
from retry_topic.consumer.config import ConsumerStats
from retry_topic.consumer.outcome import HandlerOutcome
from retry_topic.history import HistoryWriter
from retry_topic.message.headers import lighter
from wheel_sched.errors import BrokerError
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import HeartbeatMonitor
from wheel_sched.store import ENDED, AttemptCounts, DelayStore

logger = logger_of("retry_topic.consumer")

AWAY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
KNOWN_FOR_MS = 3_600_000
"""How long a success is remembered at least. If the message failed before: as long as its attempts are counted."""

_STORE_AWAY_S = 5.0  # after a call that failed, the store is not called for this time
_LOOK_S = 60.0  # how often the store's clock is read
_AT_ONCE = 200  # outcomes that are settled together; twice as many at most
_LAST_TRIES = 3  # how often a draining consumer calls an absent broker; unsettled deliveries then come again


class InFlightDeliveries:
    """The deliveries that were read and are not settled yet, by the place of their records. Any thread may use it.

    Args:
        idle_ms: after this time the broker gives the deliveries of a silent consumer to another one.
        changed: notified whenever deliveries are settled; several objects may share one. Defaults to a new condition.
    """

    def __init__(self, idle_ms: int, changed: threading.Condition | None = None) -> None:
        renew_ms = max(1, idle_ms // 3)
        self._changed = changed or threading.Condition()
        self._held: dict[object, Delivery] = {}
        self._lapsing: list[object] = []
        # a tenth of slack, so that one call renews the deliveries of many polls
        self._holds: HeartbeatMonitor[object] = HeartbeatMonitor(
            renew_ms, self._lapsing.append, tick_ms=max(1, renew_ms // 10)
        )

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery) -> bool:
        """Add a delivery. Returns False if the same record is already in flight.

        That happens when `beat` was called too late and the broker delivered the record again. The running handler
        continues. The newer delivery of the record is the one that is settled.
        """
        key = _key(delivery)
        with self._changed:
            fresh = key not in self._held
            self._held[key] = delivery
            self._holds.add(key)
            return fresh

    def drop_all(self) -> None:
        """Forget all deliveries, because other consumers receive them."""
        with self._changed:
            left = list(self._held.values())
        self.remove(left)

    def current(self, delivery: Delivery) -> Delivery:
        """The latest delivery of the same record: the broker may have delivered the record again."""
        with self._changed:
            return self._held.get(_key(delivery), delivery)

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these deliveries, because they are settled or the broker delivers them again."""
        with self._changed:
            for delivery in deliveries:
                self._held.pop(_key(delivery), None)
                self._holds.remove(_key(delivery))
            self._changed.notify_all()

    def to_renew(self) -> list[Delivery]:
        """The deliveries for which `beat` is due. Each counts as renewed from now on. Only one thread may call it."""
        self._holds.run_due()
        with self._changed:
            lapsing, self._lapsing[:] = list(self._lapsing), ()
            due = [(key, self._held[key]) for key in lapsing if key in self._held]
            for key, _ in due:
                self._holds.add(key)
            return [delivery for _, delivery in due]

    def next_renewal_s(self) -> float | None:
        """When the next renewal is due, by `time.monotonic`; None when nothing is in flight."""
        next_ms = self._holds.next_ms()
        return None if next_ms is None else next_ms / 1000

    def room(self, limit: int, timeout_s: float) -> int:
        """How many more deliveries may be read. Waits up to `timeout_s` until the number is at least one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._held) < limit, timeout_s)
            return max(0, limit - len(self._held))

    def wait_until_at_most(self, count: int, timeout_s: float) -> bool:
        """Wait until at most `count` deliveries are in flight. Returns False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._held) <= count, max(0.0, timeout_s))


def _key(delivery: Delivery) -> object:
    return delivery.message.source or id(delivery)


class Settler:
    """Settles outcomes and renews the deliveries in flight, in the one thread that calls `run` (or `step`).

    Args:
        broker: creates the retry topic again if it was deleted.
        consumer: the broker consumer that read the deliveries.
        in_flight: the deliveries that were read.
        stats: the consumer's counters.
        idle_ms: as in `InFlightDeliveries`.
        history: gets a row for each success after a failure. Defaults to None: no history.
        successes: gets the key of each success before it is acknowledged. Defaults to None.
        in_order: an outcome that could not be settled holds back all later ones. Otherwise a crash could let an earlier
            message of a key be handled again after a later one. Defaults to False.
    """

    def __init__(
        self,
        broker: Broker,
        consumer: BrokerConsumer,
        in_flight: InFlightDeliveries,
        stats: ConsumerStats,
        idle_ms: int,
        history: HistoryWriter | None = None,
        successes: Successes | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self._in_order = in_order
        self._broker = broker
        self._consumer = consumer
        self._in_flight = in_flight
        self._stats = stats
        self._history = history
        self._successes = successes
        self._look_s = idle_ms / 3000
        self._outcomes: queue.SimpleQueue[Sequence[HandlerOutcome]] = queue.SimpleQueue()
        self.finishing = threading.Event()
        self._again: list[HandlerOutcome] = []  # tried again at `_again_at`
        self._again_at = 0.0
        self._failures = 0

    def put(self, outcome: HandlerOutcome) -> None:
        """Settle an outcome soon. Any thread may call it."""
        self._outcomes.put((outcome,))

    def put_all(self, outcomes: Sequence[HandlerOutcome]) -> None:
        """Settle outcomes soon, in their order. Any thread may call it."""
        for start in range(0, len(outcomes), _AT_ONCE):
            self._outcomes.put(outcomes[start : start + _AT_ONCE])

    def finish(self) -> None:
        """Say that no more outcomes follow.

        `run` ends when all outcomes are settled, or after a few more tries if the broker does not answer.
        """
        self.finishing.set()
        self._outcomes.put(())

    def run(self) -> None:
        """Settle outcomes and renew deliveries. Returns after `finish`, see there. The settling thread runs this."""
        while self.step():
            pass

    def step(self) -> bool:
        """Wait for outcomes, settle them, and call `beat` if it is due. Returns False when it is time to end."""
        until = time.monotonic() + self._look_s  # deliveries that are read meanwhile need `beat` later
        if (renewal_s := self._in_flight.next_renewal_s()) is not None:
            until = min(until, renewal_s)
        ready = self._collect(min(until, self._again_at) if self._again else until)
        if self._again and (time.monotonic() >= self._again_at or self.finishing.is_set()):
            ready, self._again = self._again + ready, []
        elif self._again and self._in_order:
            ready, self._again = [], self._again + ready
        if ready:
            self._settle(ready)
        self._beat()
        if self.finishing.is_set() and self._outcomes.empty():
            if not self._again or self._failures > _LAST_TRIES:
                return False
            time.sleep(AWAY_S[0])  # while draining there is nothing else to wait for
        return True

    def _collect(self, until: float) -> list[HandlerOutcome]:
        """Take the outcomes that wait. If there are none, wait for the first one until `until` (`time.monotonic`)."""
        taken: list[HandlerOutcome] = []
        with contextlib.suppress(queue.Empty):
            timeout_s = 0 if self.finishing.is_set() else max(0.0, until - time.monotonic())
            taken += self._outcomes.get(timeout=timeout_s)
            while len(taken) < _AT_ONCE:
                taken += self._outcomes.get_nowait()
        return taken

    def _settle(self, outcomes: list[HandlerOutcome]) -> None:
        left: list[HandlerOutcome] = []
        forwards = [outcome for outcome in outcomes if outcome.forward is not None]
        for settle, part in (
            (self._acknowledge, [outcome for outcome in outcomes if outcome.forward is None]),
            (self._forward, forwards),
        ):
            if not part:
                continue
            try:
                left += settle(part)
            except Exception as error:  # a bug in a broker must not end the thread that calls `beat`
                if not isinstance(error, BrokerError):
                    logger.exception("consumer.settling_failed")
                elif self._failures == 0:
                    logger.warning("consumer.cannot_settle: %s", error)
                left += part
        self._failures = self._failures + 1 if left else 0
        if left:
            self._again += left
            self._again_at = time.monotonic() + AWAY_S[min(self._failures, len(AWAY_S)) - 1]

    def _acknowledge(self, outcomes: list[HandlerOutcome]) -> list[HandlerOutcome]:
        if self._successes is not None:
            self._successes.remember([one.success for one in outcomes if one.success is not None])
        self._consumer.ack([self._in_flight.current(outcome.delivery) for outcome in outcomes])
        self._done(outcomes)
        return []

    def _forward(self, outcomes: list[HandlerOutcome]) -> list[HandlerOutcome]:
        """Publish the records of outcomes to the retry topic, and settle the deliveries.

        Returns the outcomes whose record the broker refused. After a permanent refusal, `_refused` changes the outcome.
        """
        pairs = [(self._in_flight.current(one.delivery), one.forward) for one in outcomes if one.forward is not None]
        answers = self._consumer.forward(pairs)
        done: list[HandlerOutcome] = []
        left: list[HandlerOutcome] = []
        for outcome, answer in zip(outcomes, answers, strict=True):
            if answer is None:
                done.append(outcome)
                continue
            if outcome.refusals == 0:
                logger.warning("consumer.retry_topic_refused: %s", answer.reason)
            if not answer.transient:
                self._refused(outcome)
            left.append(outcome)
        self._done(done)
        return left

    def _refused(self, outcome: HandlerOutcome) -> None:
        """Change an outcome whose record the broker refused for good: the retry topic was deleted, or our headers make
        the record too large.

        After the first refusal, creates the topic again. After each further one, removes a header that no decision
        needs (see `lighter`), and at last all our new headers.
        """
        outcome.refusals += 1
        if outcome.forward is None:
            return
        topic = outcome.forward.topic
        if outcome.refusals == 1:
            with contextlib.suppress(BrokerError):
                self._broker.create_topic(topic)
        else:
            outcome.forward = lighter(outcome.forward) or outcome.delivery.message.to(topic)

    def _done(self, outcomes: Sequence[HandlerOutcome]) -> None:
        stats = self._stats
        for outcome in outcomes:
            setattr(stats, outcome.ended, getattr(stats, outcome.ended) + 1)
        if self._history is not None and (rows := [one.attempt for one in outcomes if one.attempt is not None]):
            self._history.put(rows)
        self._in_flight.remove([outcome.delivery for outcome in outcomes])
        stats.in_flight = len(self._in_flight)

    def _beat(self) -> None:
        deliveries = self._in_flight.to_renew()
        if not deliveries:
            return
        try:
            self._consumer.beat(deliveries)
        except Exception as error:  # a bug in a broker must not end this thread
            logger.warning("consumer.cannot_beat: %s", error)


class Successes:
    """Remembers in the store which messages have succeeded, so that no second copy is retried or becomes a dead letter.

    It writes the success before the delivery is acknowledged. If the consumer dies in between, the message is handled
    again; a failure of that attempt then has no effect. If the store does not answer, the message is still
    acknowledged, and a second copy that fails counts as an ordinary attempt.

    Cost: one call for all deliveries that are acknowledged together. Only the settler's thread may use it.

    Args:
        store: the store into which the group's service takes failed messages.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._silent_until = 0.0
        self._ahead_ms = 0.0  # the store's clock minus this process's steady clock
        self._looked: float | None = None

    def remember(self, keys: Sequence[str]) -> None:
        """Remember these messages, by the keys of `success_of`."""
        if not keys or time.monotonic() < self._silent_until:
            return
        try:
            until_ms = self._now_ms() + KNOWN_FOR_MS
            AttemptCounts(self._store).raise_to([(key, ENDED, until_ms) for key in keys])
        except Exception as error:  # the success is acknowledged, whatever the error is
            logger.warning("consumer.cannot_remember_success: %d messages: %s", len(keys), error)
            self._silent_until = time.monotonic() + _STORE_AWAY_S

    def _now_ms(self) -> int:
        now = time.monotonic()
        if self._looked is None or now - self._looked > _LOOK_S or not self._store.ticks:
            self._ahead_ms, self._looked = self._store.now_ms() - now * 1000, now
        return int(now * 1000 + self._ahead_ms)
